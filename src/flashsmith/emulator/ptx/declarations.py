"""Parameters, variables and registers as PTX declares them; what cannot be is refused."""

from __future__ import annotations

import re
import struct

from flashsmith.emulator.ptx.module import Param, Variable
from flashsmith.emulator.ptx.operands import (
    Names,
    OperandError,
    parse_constant,
    split_operands,
)
from flashsmith.emulator.ptx.types import SIZES

MOST_ALIGN = 1 << 20
MOST_BYTES = 1 << 36  # of one variable: more than any GPU has
MOST_REGISTERS = 1 << 20  # of one range

_VARIABLE = re.compile(
    r"((?:\.(?:visible|extern|weak|common)\s+)*)\.(shared|global|const|local)\s+"
    r"(?:\.align\s+(\d+)\s+)?(?:\.attribute\([^)]*\)\s*)?\.(\w+)\s+([\w$]+)"
    r"((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr(?:\s+\.\w+)*(?:\s+\.align\s+\d+)?\s+)?"
    r"([\w$]+)(?:\[(\d+)\])?$"
)
_REGISTERS = re.compile(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", re.S)
_NAMES = re.compile(r"[%A-Za-z_$][\w$]*(?:<(\d+)>)?$")


class DeclarationError(Exception):
    """A declaration that means nothing; the text says why."""


def _size(kind: str) -> int:
    if kind not in SIZES:
        raise DeclarationError(f"type .{kind} is not known")
    return SIZES[kind]


def _align(text: str | None, size: int) -> int:
    align = int(text[:20]) if text else size
    if not 1 <= align <= MOST_ALIGN or align & (align - 1):
        raise DeclarationError(f".align {text}; it is a power of two up to {MOST_ALIGN:,}")
    return align


def _bytes(name: str, size: int, extents: list[str]) -> int:
    total = size
    for extent in extents:
        total *= int(extent[:20] or 0)
    if total > MOST_BYTES:
        raise DeclarationError(f"{name} has {total:,} bytes; {MOST_BYTES:,} are possible")
    return total


def read_params(text: str) -> tuple[Param, ...]:
    """The parameters between the brackets of an entry, at their offsets in the buffer."""
    params: list[Param] = []
    offset = 0
    for part in split_operands(text):
        found = _PARAM.match(part.strip())
        if not found:
            raise DeclarationError(f"parameter {part[:60]!r} is not understood")
        size = _size(found[2])
        if any(param.name == found[3] for param in params):
            raise DeclarationError(f"parameter {found[3]} is declared twice")
        align = max(_align(found[1], size), size)
        n_bytes = _bytes(found[3], size, [found[4]] if found[4] is not None else [])
        offset = -(-offset // align) * align
        params.append(Param(found[3], offset, n_bytes))
        offset += n_bytes
    return tuple(params)


def read_variable(text: str) -> Variable | None:
    """The variable that a declaration makes, or None when it is none."""
    found = _VARIABLE.match(text)
    if not found:
        return None
    flags, space, align, kind, name, extents, initial = found.groups()
    size = _size(kind)
    data = b""
    if initial:
        values = split_operands(initial.strip().strip("{}"))
        data = b"".join(_initial(value, size) for value in values)
    n_bytes = _bytes(name, size, re.findall(r"\[(\d*)\]", extents))
    if len(data) > n_bytes:
        raise DeclarationError(f"{name} has {n_bytes} bytes, and {len(data)} to begin with")
    return Variable(name, space, _align(align, size), n_bytes, "extern" in flags, data)


def _initial(text: str, size: int) -> bytes:
    try:
        constant = parse_constant(text)
    except (OperandError, ValueError) as error:
        raise DeclarationError(str(error)[:200]) from None
    value = constant.value if constant else 0
    return struct.pack("<Q", value & (1 << 64) - 1)[:size]


def declare_registers(names: Names, text: str) -> None:
    """`.reg .b32 %r<917>` or `.reg .pred P1, P2`."""
    found = _REGISTERS.match(text)
    if not found:
        raise DeclarationError(f"{text[:60]!r} is not understood")
    _size(found[1])
    for name in found[2].split(","):
        single = _NAMES.match(name.strip())
        if not single:
            raise DeclarationError(f"register {name.strip()[:60]!r} is not understood")
        if single[1] and (len(single[1]) > 8 or int(single[1]) > MOST_REGISTERS):
            raise DeclarationError(f"{name.strip()[:60]}: {MOST_REGISTERS:,} are possible")
    names.declare(found[1], found[2])
