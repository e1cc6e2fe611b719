"""How one segment becomes the text of a Python function over numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsmith.emulator.checks.definedness import defined_by, require_defined
from flashsmith.emulator.checks.undefined import Undefined, require_defined_value
from flashsmith.emulator.machine.convergence import is_apart, members_of
from flashsmith.emulator.machine.matrix_products import PendingProducts
from flashsmith.emulator.machine.opcode import OPCODES, Unknown, opcode_of
from flashsmith.emulator.machine.segments import CONTROL, Segment, numbers
from flashsmith.emulator.machine.values import ScalarClass, Value
from flashsmith.emulator.ptx.instruction import (
    Address,
    Imm,
    Instruction,
    Operand,
    Reg,
    Sink,
    Special,
    Symbol,
    registers,
)
from flashsmith.emulator.ptx.modifiers import unknown_modifier
from flashsmith.emulator.ptx.module import Kernel
from flashsmith.emulator.ptx.types import SIZES

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

# The numpy type that holds a value of each PTX type, and its name in generated text.
NUMPY: dict[str, ScalarClass] = {
    "pred": np.bool_, "b8": np.uint8, "u8": np.uint8, "s8": np.int8,
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "bf16": np.uint16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32,
    "f16x2": np.uint32, "bf16x2": np.uint32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64,
}  # fmt: skip


# What Python says of operands that are too few, too many or of another kind.
BAD_OPERANDS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, StopIteration,
    TypeError, ValueError,
)  # fmt: skip

_NAMES = {
    kind: "B1" if kind == "pred" else f"{np.dtype(t).kind.upper()}{8 * np.dtype(t).itemsize}"
    for kind, t in NUMPY.items()
}


def name_of(kind: str) -> str:
    """How generated text names the numpy type of a PTX type: `U32`, `F16`."""
    return _NAMES[kind]


class Emitter:
    """Collects the statements of one kernel's segments, and the objects they refer to."""

    def __init__(self, kernel: Kernel, storage: list[str], symbols: dict[str, tuple[str, int]]):
        self.kernel = kernel
        self.storage = storage  # type each register is kept in, by number
        self.symbols = symbols  # name → (space, address in it)
        self.namespace: dict[str, Value] = {name_of(k): v for k, v in NUMPY.items()}
        self.namespace["np"] = np
        self.unknown: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self.line_of: list[int] = []  # line of PTX that each line comes from
        self.segment: Segment | None = None
        self.index = 0
        self.guard: Reg | None = None
        self._indent = " "
        self._constants: dict[tuple[int, int, str], str] = {}
        self._used: dict[Callable[..., object], str] = {}
        self._temporaries = 0
        self.products = PendingProducts()
        self.companions: dict[int, int] = {}  # of registers that may be read unwritten
        self.doubtful = 0  # those registers as bits
        self._doubtful = 0  # those of them, as bits, not looked at yet in this segment

    # -- operands ---------------------------------------------------------------------------

    def read(self, operand: Operand, kind: str) -> str:
        """An expression for `operand` as a numpy value of PTX type `kind`."""
        if isinstance(operand, Reg):
            return self._read_register(operand, kind)
        if isinstance(operand, Imm):
            return self.constant(operand, kind)
        if isinstance(operand, Special):
            name = operand.name
            wide = name in ("%clock64", "%globaltimer")
            value = f"c.special(u, {name!r})"
            have = "u64" if wide else "u32"
            return value if name_of(have) == name_of(kind) else f"{value}.astype({name_of(kind)})"
        if isinstance(operand, Symbol):
            return self.symbol(operand, kind)
        raise Unknown(f"operand {operand}")

    def _read_register(self, reg: Reg, kind: str) -> str:
        name = f"r{reg.number}"
        have = self.storage[reg.number]
        if have == "pred":
            return f"(~{name})" if reg.negated else name
        wanted, held = name_of(kind), name_of(have)
        if wanted == held:
            return name
        if SIZES[have] == SIZES[kind]:
            return f"{name}.view({wanted})"
        unsigned = name if held[0] == "U" else f"{name}.view(U{8 * SIZES[have]})"
        narrow = f"{unsigned}.astype(U{8 * SIZES[kind]})"
        return narrow if wanted[0] == "U" else f"{narrow}.view({wanted})"

    def constant(self, imm: Imm, kind: str) -> str:
        """The name of a numpy scalar with the value of `imm`."""
        key = (imm.value, imm.float_bits, kind)
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = self._new_constant(imm, kind)
        return name

    def _new_constant(self, imm: Imm, kind: str) -> str:
        dtype = np.dtype(NUMPY[kind])
        if dtype.kind == "b":
            return self.value(f"K_pred_{imm.value != 0:d}", np.bool_(imm.value != 0))
        bits = imm.value & (1 << 8 * dtype.itemsize) - 1
        if dtype.kind == "f" and not imm.float_bits:
            bits = int(np.array(imm.value, dtype).view(f"u{dtype.itemsize}"))
        elif dtype.kind == "f" and imm.float_bits != 8 * dtype.itemsize:
            bits = _narrow_float(imm, dtype)
        value = np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
        return self.value(f"K_{name_of(kind)}_{bits:x}", value)

    def symbol(self, symbol: Symbol, kind: str) -> str:
        """The address of a variable or parameter in its own state space."""
        if symbol.name not in self.symbols:
            raise Unknown(f"name {symbol.name}, which is not declared")
        space, address = self.symbols[symbol.name]
        if space in ("global", "const"):
            plus = f" + U64({symbol.offset})" if symbol.offset else ""
            return f"(c.symbols[{symbol.name!r}]{plus})"
        return self.constant(Imm(address + symbol.offset), kind)

    def address(self, operand: Operand, space: str) -> str:
        """An expression for an address operand: 32 bits in shared memory, 64 elsewhere."""
        kind = "u32" if space in ("shared", "cluster") else "u64"
        if not isinstance(operand, Address):
            raise Unknown(f"address {operand}")
        if operand.base is None:
            return self.constant(Imm(operand.offset), kind)
        if isinstance(operand.base, Symbol):
            return self.symbol(Symbol(operand.base.name, operand.offset), kind)
        have = self.storage[operand.base.number]
        base = self.read(operand.base, "u64" if SIZES[have] == 8 else "u32")
        if SIZES[have] != SIZES[kind]:
            base = f"{base}.astype({name_of(kind)})"
        if not operand.offset:
            return base
        return f"({base} + {self.constant(Imm(operand.offset), kind)})"

    # -- statements -------------------------------------------------------------------------

    def do(self, statement: str) -> None:
        """Writes one statement."""
        self.lines.append(self._indent + statement)

    def write(self, operand: Operand, expression: str, kind: str) -> None:
        """Assigns a value of PTX type `kind` to a register, in the lanes the guard lets through."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Reg):
            raise Unknown(f"destination {operand}")
        have = self.storage[operand.number]
        name = f"r{operand.number}"
        if name_of(kind) != name_of(have):
            expression = _converted(expression, kind, have)
        if self.guard is not None:
            expression = f"{self.use(pick)}({self.guard_text}, {expression}, {name})"
        self.lines.append(f"{self._indent}{name} = {expression}")
        if operand.number in self.companions:
            self._note_written(operand.number)

    def write_rows(self, operands: Sequence[Operand], rows: str, kind: str) -> None:
        """Assigns the rows of a named array, one each; in one statement where nothing converts."""
        found = [operand for operand in operands if isinstance(operand, Reg)]
        is_plain = self.guard is None and len(found) == len(operands) > 1
        if not is_plain or any(name_of(self.storage[r.number]) != name_of(kind) for r in found):
            for number, operand in enumerate(operands):
                self.write(operand, f"{rows}[{number}]", kind)
            return
        self.do(f"{', '.join(f'r{reg.number}' for reg in found)} = {rows}")
        for reg in found:
            if reg.number in self.companions:
                self._note_written(reg.number)

    def _note_written(self, number: int) -> None:
        name = f"r{self.companions[number]}"
        if self.guard is None:
            self.do(f"{name} = {self.value('K_pred_1', np.True_)}")
            self._doubtful &= ~(1 << number)
        else:
            self.do(f"{name} = {self.use(defined_by)}({self.guard_text}, {name})")

    def _require_written(self, instruction: Instruction, reads: int) -> None:
        """Looks once a segment; copying what is not needed later is harmless."""
        doubtful = reads & self._doubtful
        if not doubtful or instruction.opcode == "mov":
            return
        # What an instruction only adds to if it is told so, it looks at itself.
        for position in opcode_of(instruction).updates(instruction):
            for reg in registers(instruction.operands[position]):
                doubtful &= ~(1 << reg.number)
        for number in numbers(doubtful):
            companion = f"r{self.companions[number]}"
            mask = f"{self.use(both)}(m, {self.guard_text})" if self.guard else "m"
            name = self.kernel.registers[number].name
            self.do(f"if {companion} is not {self.value('K_pred_1', np.True_)}:")
            self.do(
                f" {self.use(require_defined)}(c, u, {mask}, {companion}, {name!r}, "
                f"{instruction.index})"
            )
        if self.guard is None:
            self._doubtful &= ~doubtful

    def assign(self, expression: str) -> str:
        """Puts an expression into a fresh local and returns its name."""
        self._temporaries += 1
        name = f"t{self._temporaries}"
        self.do(f"{name} = {expression}")
        return name

    def use(self, function: Callable[..., object]) -> str:
        """Makes a Python function callable from generated text; returns its name there."""
        known = self._used.get(function)
        if known is not None:
            return known
        name = re.sub(r"\W", "_", function.__qualname__)
        if self.namespace.setdefault(name, function) is not function:
            name = f"{name}_{re.sub(r'[^a-z0-9]', '_', function.__module__.rpartition('.')[2])}"
            self.namespace[name] = function
        self._used[function] = name
        return name

    def value(self, name: str, value: Value) -> str:
        """Makes an object known to generated text under `name`."""
        self.namespace[name] = value
        return name

    @property
    def guard_text(self) -> str:
        """The guard predicate as an expression."""
        assert self.guard is not None
        return self.read(self.guard, "pred")

    @contextmanager
    def active(self) -> Iterator[str]:
        """Statements inside run only if some lane is active; gives the name of the lane mask."""
        if self.guard is None:
            yield "m"
            return
        mask = self.assign(f"{self.use(active_by)}(c, u, m, {self.guard_text}, {self.index})")
        self.do(f"if {mask} is not False:")
        self._indent += " "
        yield mask
        self._indent = self._indent[:-1]

    # -- segments ---------------------------------------------------------------------------

    def emit(self, segment: Segment) -> None:
        """Writes the function of one segment: registers in, statements, registers out, next."""
        self.segment = segment
        self._note_lines(segment.instructions[0])
        self.lines.append(f"def s{segment.number}(u, R, m, c):")
        self._require_convergence(segment)
        self._doubtful = self.doubtful
        self._take_registers(segment)
        last = segment.instructions[-1]
        goes_on = last.opcode not in CONTROL
        body = segment.instructions if goes_on else segment.instructions[:-1]
        for instruction, (reads, writes) in zip(body, segment.effects, strict=False):
            if instruction.opcode != "mma" and self.products.needed_by(reads, writes):
                self.products.write_out(self)
            self._instruction(instruction, reads)
        self.products.write_out(self)
        changed = 0
        for _, writes in segment.effects:
            changed |= writes
        self._give_registers(numbers(changed & segment.live_out))
        if goes_on:
            self.lines.append(f" return {segment.successors[0]}")
        else:
            self._instruction(last, segment.effects[-1][0])
        self._note_lines(last)
        self.segment = None

    def _take_registers(self, segment: Segment) -> None:
        """Registers into locals; many in one call, which Python also compiles much sooner."""
        uses = numbers(segment.uses)
        if len(uses) < 3:
            self.lines += [f" r{number} = R[{number}]" for number in uses]
            return
        taken = self.value(f"G{segment.number}", itemgetter(*uses))
        self.lines.append(f" {', '.join(f'r{number}' for number in uses)} = {taken}(R)")

    def _give_registers(self, found: list[int]) -> None:
        """Locals into registers; neighbours in one statement, which Python compiles much sooner."""
        begin = 0
        for end in range(1, len(found) + 1):
            if end < len(found) and found[end] == found[end - 1] + 1:
                continue
            first, names = found[begin], [f"r{number}" for number in found[begin:end]]
            if end - begin < 3:
                self.lines += [f" R[{first + n}] = {name}" for n, name in enumerate(names)]
            else:
                self.lines.append(f" R[{first}:{first + end - begin}] = {', '.join(names)}")
            begin = end

    def _require_convergence(self, segment: Segment) -> None:
        """Diverged lanes wait at the start of a segment that has an instruction of whole warps."""
        members = {i.index: members_of(i) for i in segment.instructions}
        together = 0
        for mask in members.values():
            together |= mask
        if together:
            index = next(index for index, mask in members.items() if mask)
            condition = f"m is not None and {self.use(is_apart)}(c, u, m, {together}, {index})"
            self.lines.append(f" if {condition}: return {segment.number}")

    def _note_lines(self, instruction: Instruction) -> None:
        """All lines since the last note come from this instruction."""
        self.line_of += [instruction.line] * (len(self.lines) - len(self.line_of))

    def _instruction(self, instruction: Instruction, reads: int) -> None:
        self.index = instruction.index
        self.guard = instruction.guard
        if self.companions:
            self._require_written(instruction, reads)
        word = unknown_modifier(instruction.modifiers)
        if word is not None and instruction.opcode in OPCODES:
            self.unknown.append((instruction.line, f"{instruction.full}: there is no .{word}"))
            return
        indent = self._indent
        try:
            opcode_of(instruction).translate(self, instruction)
        except Unknown as problem:
            self.unknown.append((instruction.line, f"{instruction.full}: {problem}"))
        except BAD_OPERANDS as problem:
            self.unknown.append(
                (instruction.line, f"{instruction.full}: operands not understood ({problem})")
            )
        self._indent = indent
        self._note_lines(instruction)


def _converted(expression: str, kind: str, have: str) -> str:
    if SIZES[kind] == SIZES[have]:
        return f"({expression}).view({name_of(have)})"
    wide = f"({expression}).astype({'I' if kind[0] == 's' else 'U'}{8 * SIZES[have]})"
    return wide if name_of(have)[0] == "U" and kind[0] != "s" else f"{wide}.view({name_of(have)})"


def _narrow_float(imm: Imm, dtype: np.dtype[Any]) -> int:
    given = np.array(imm.value, f"u{imm.float_bits // 8}").view(f"f{imm.float_bits // 8}")
    return int(given.astype(dtype).view(f"u{dtype.itemsize}"))


def pick(guard: Value, new: Value, old: Value) -> Value:
    """`new` where the guard holds, `old` elsewhere."""
    if guard.ndim == 0:
        return new if guard else old
    return new if old is None else np.where(guard, new, old)


def active_by(c: Chunk, u: Unit, mask: Value, guard: Value, index: int) -> Value:
    """As `both`, for what a guard lets out of a thread: it must be defined."""
    if isinstance(guard, Undefined):
        require_defined_value(c, u, mask, guard, index)
    return both(mask, np.asarray(guard) if isinstance(guard, Undefined) else guard)


def both(mask: Value, guard: Value) -> Value:
    """The lanes of `mask` where the guard holds: None for all lanes, False for none."""
    if guard.ndim == 0:
        return mask if guard else False
    active = guard if mask is None else mask & guard
    if not active.any():
        return False
    return None if mask is None and active.all() else active
