"""How mma instructions that follow each other become few large matrix products.

D = A x B + C in float32, not in the hardware's order: chains of mma through one accumulator are
one product with a longer K, rounded once, and chains with the same A fragments are one product
with a wider N. With `mma_in_order` each mma of a chain is added by itself: kernels that do
the same mma in the same order then have the same bits, as they have on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.undefined import spreads_in_warp
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Instruction, Operand, Reg, Vector

if TYPE_CHECKING:
    from flashsmith.emulator.machine.emit import Emitter

_HALF_TO_F64 = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)


@dataclass(slots=True)
class Product:
    """One mma that is not written out yet."""

    d: tuple[Operand, ...]
    a: tuple[Operand, ...]
    b: tuple[Operand, ...]
    c: tuple[Operand, ...]
    bf16: bool

    @staticmethod
    def of(i: Instruction) -> Product:
        """The product an mma instruction stands for."""
        parts = [x.items if isinstance(x, Vector) else (x,) for x in i.operands]
        return Product(parts[0], parts[1], parts[2], parts[3], i.has("bf16"))

    def clashes(self, written: int, read: int, ends: dict[tuple[Operand, ...], bool]) -> bool:
        """Whether earlier products, by what they write and read, must be written out first.

        Going on in the accumulator of an earlier one (`ends`, with its type) is fine.
        """
        own_read = _bits(*self.a, *self.b)
        own_written = _bits(*self.d)
        if ends.get(self.c) is self.bf16:
            written &= ~_bits(*self.c)
        else:
            own_read |= _bits(*self.c)
        return bool(written & (own_read | own_written) or own_written & read)


def _bits(*operands: Operand) -> int:
    bits = 0
    for operand in operands:
        if isinstance(operand, Reg):
            bits |= 1 << operand.number
    return bits


class PendingProducts:
    """The mma instructions of a segment whose results nothing has asked for yet."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self.written = 0  # registers, as bits
        self.read = 0
        self.ends: dict[tuple[Operand, ...], bool] = {}  # open accumulators, and if they are bf16

    def add(self, e: Emitter, product: Product) -> None:
        """Takes one more product, after writing out those it cannot be put off with."""
        if product.clashes(self.written, self.read, self.ends):
            self.write_out(e)
        self.ends.pop(product.c, None)
        self.ends[product.d] = product.bf16
        self.written |= _bits(*product.d)
        self.read |= _bits(*product.a, *product.b, *product.c)
        self.products.append(product)

    def needed_by(self, reads: int, writes: int) -> bool:
        """Whether an instruction reads a result, or changes a register of a product."""
        return bool(reads & self.written or writes & (self.written | self.read))

    def write_out(self, e: Emitter) -> None:
        """Writes all of them, as few matrix products as possible."""
        if not self.products:
            return
        products = self.products
        self.products, self.ends, self.written, self.read = [], {}, 0, 0
        guard, e.guard = e.guard, None
        for group in _grouped(products):
            _write_group(e, group)
        e.guard = guard


@dataclass(slots=True)
class _Chain:
    start: tuple[Operand, ...]  # the accumulator before
    end: tuple[Operand, ...]
    a: list[tuple[Operand, ...]]
    b: list[tuple[Operand, ...]]
    bf16: bool


def _grouped(products: list[Product]) -> list[list[_Chain]]:
    """Chains through one accumulator, together with those that have the same A fragments."""
    chains: list[_Chain] = []
    open_ends: dict[tuple[Operand, ...], _Chain] = {}
    for product in products:
        chain = open_ends.pop(product.c, None)
        if chain is None:
            chain = _Chain(product.c, product.d, [], [], product.bf16)
            chains.append(chain)
        chain.a.append(product.a)
        chain.b.append(product.b)
        chain.end = product.d
        open_ends[product.d] = chain
    groups: dict[tuple[object, ...], list[_Chain]] = {}
    for chain in chains:
        groups.setdefault((chain.bf16, *chain.a), []).append(chain)
    return list(groups.values())


def _write_group(e: Emitter, group: list[_Chain]) -> None:
    first = group[0]
    a = ", ".join(e.read(r, "u32") for fragment in first.a for r in fragment)
    b = ", ".join(e.read(r, "u32") for chain in group for fragment in chain.b for r in fragment)
    start = ", ".join(e.read(r, "f32") for chain in group for r in chain.start)
    function = e.use(matrix_product)
    fixed = f"u.pairs, c.options.mma_in_order, {first.bf16}, {len(first.a)}"
    out = e.assign(f"{function}({fixed}, ({a},), ({b},), ({start},))")
    e.write_rows([register for chain in group for register in chain.end], out, "f32")


def _stacked(pairs: int, registers: tuple[Value, ...]) -> NDArray[np.uint32]:
    """Registers as rows; scalars are spread over the lanes."""
    out = np.empty((len(registers), 32 * pairs), np.uint32)
    for number, register in enumerate(registers):
        out[number] = register
    return out


def wide_numbers(halves: NDArray[np.uint16], bf16: bool) -> NDArray[np.float64]:
    """The numbers that 16 bits stand for."""
    if bf16:
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return _HALF_TO_F64.take(halves)


@spreads_in_warp
def matrix_product(
    pairs: int,
    in_order: bool,
    bf16: bool,
    depth: int,
    a: tuple[Value, ...],  # u32, four a fragment
    b: tuple[Value, ...],  # two a fragment, fragments of one column cta together
    start: tuple[Value, ...],  # f32, four a column cta
) -> NDArray[np.float32]:
    """The accumulators, a row each, after `depth` products of 16 x 16 by 16 x 8 each.

    PTX ISA "Matrix Fragments for mma.m16n8k16": lane 4g+t holds, of A, row g (+8 in a1, a3) and
    columns 2t, 2t+1 (+8 in a2, a3); of B, rows 2t, 2t+1 (+8 in b1) of column g; of C, columns
    2t, 2t+1 of row g (c0, c1) and of row g+8 (c2, c3).
    """
    ctas = len(b) // (2 * depth)
    # A: [k cta, column half, row half, pair, g, t] → [pair, row half, g, k cta, column half, t]
    left = _stacked(pairs, a).reshape(depth, 2, 2, pairs, 8, 4).transpose(3, 2, 4, 0, 1, 5)
    halves = np.ascontiguousarray(left).view(np.uint16)
    rows = wide_numbers(halves, bf16).reshape(pairs, 16, 16 * depth)
    # B: [column cta, k cta, k half, pair, g, t] → [pair, column cta, g, k cta, k half, t]
    right = _stacked(pairs, b).reshape(ctas, depth, 2, pairs, 8, 4).transpose(3, 0, 4, 1, 2, 5)
    halves = np.ascontiguousarray(right).view(np.uint16)
    columns = wide_numbers(halves, bf16).reshape(pairs, 8 * ctas, 16 * depth)
    if not in_order:
        return _plus(start, exact_product(rows, columns.transpose(0, 2, 1)))
    sums: tuple[Value, ...] = start
    for k in range(0, 16 * depth, 16):
        part = exact_product(rows[:, :, k : k + 16], columns[:, :, k : k + 16].transpose(0, 2, 1))
        sums = tuple(_plus(sums, part))
    return np.stack(sums)


def exact_product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """A x B of 16-bit numbers: an element's bits follow from its row and column alone.

    A float32 product by BLAS adds in an order that depends on the CPU and on how many rows and
    columns are multiplied together. Sums in float64 are exact, unless products of one sum lie
    2**30 apart or more.
    """
    product: NDArray[np.float64] = np.matmul(left, right)
    return product


def _plus(start: tuple[Value, ...], product: NDArray[np.float64]) -> NDArray[np.float32]:
    """Accumulators, a row each, plus the rounded products of 16 rows by 8 columns a cta.

    [pair, row half, g, column cta, t, e] → [column cta, row half, e, pair, g, t]
    """
    pairs, ctas = product.shape[0], product.shape[2] // 8
    parts = product.reshape(pairs, 2, 8, ctas, 4, 2).transpose(3, 1, 5, 0, 2, 4)
    out = parts.astype(np.float32, order="C").reshape(4 * ctas, 32 * pairs)
    for number, value in enumerate(start):
        out[number] += value
    return out
