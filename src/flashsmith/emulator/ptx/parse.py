"""PTX text → one kernel's typed instructions; what cannot be read is listed with its lines."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.ptx.instruction import Instruction, Operand, Reg
from flashsmith.emulator.ptx.module import Kernel, Param, Variable
from flashsmith.emulator.ptx.operands import (
    Names,
    OperandError,
    parse_constant,
    split_operands,
)

SIZES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip

_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STATEMENT = re.compile(r"\s*(?:([{}])|([$\w%.]+)\s*:(?!:)|([^;]*);)", re.S)
_GUARD = re.compile(r"@(!?)\s*([%\w$]+)\s*")
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


@dataclass(slots=True)
class _Reader:
    """The state of reading one kernel body."""

    text: str
    kernel: Kernel
    names: Names = field(default_factory=Names)
    problems: list[tuple[int, str]] = field(default_factory=list)
    pending_table: str = ""


def parse_kernel(text: str, entry: str | None = None) -> Kernel:
    """The kernel `entry` of a PTX module (the only one when not named)."""
    clean = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    entries = {m[1]: m for m in _ENTRY.finditer(clean)}
    if not entries:
        raise EmulationError("bad PTX", "no .entry in this text; give the PTX of a kernel")
    if entry is None and len(entries) > 1:
        raise EmulationError("bad PTX", f"{len(entries)} entries; name one of {', '.join(entries)}")
    if entry is not None and entry not in entries:
        raise EmulationError("bad PTX", f"no entry {entry}; there is {', '.join(entries)}")
    match = entries[entry] if entry else next(iter(entries.values()))
    start, params = _params(clean, match)
    opening = clean.find("{", start)
    if opening < 0:
        raise EmulationError(
            "truncated PTX", "the kernel has no body", kernel=match[1], line=_line(clean, start)
        )
    target = re.search(r"\.target\s+(\w+)", clean)
    kernel = Kernel(match[1], target[1] if target else "", _line(clean, match.start()), params, {})
    _bounds(kernel, clean[start:opening])
    reader = _Reader(clean, kernel)
    _module_variables(reader, clean[: match.start()])
    end = _body(reader, opening + 1)
    _module_variables(reader, clean[end:])
    kernel.registers = reader.names.registers
    _refuse(reader)
    return kernel


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _params(text: str, match: re.Match[str]) -> tuple[int, tuple[Param, ...]]:
    opening = text.find("(", match.end())
    brace = text.find("{", match.end())
    if opening < 0 or 0 <= brace < opening:
        return match.end(), ()
    closing = text.find(")", opening)
    if closing < 0:
        raise EmulationError(
            "truncated PTX",
            "the parameter list does not end",
            kernel=match[1],
            line=_line(text, opening),
        )
    params: list[Param] = []
    offset = 0
    for part in split_operands(text[opening + 1 : closing]):
        found = _PARAM.match(part.strip())
        if not found:
            raise EmulationError(
                "bad PTX",
                f"parameter {part!r} is not understood",
                kernel=match[1],
                line=_line(text, opening),
            )
        size = SIZES[found[2]]
        align = max(int(found[1] or 0), size)
        n_bytes = size * int(found[4] or 1)
        offset = -(-offset // align) * align
        params.append(Param(found[3], offset, n_bytes))
        offset += n_bytes
    return closing + 1, tuple(params)


def _bounds(kernel: Kernel, directives: str) -> None:
    found = re.search(r"\.(?:max|req)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    if found:
        kernel.max_threads = int(found[1]) * int(found[2] or 1) * int(found[3] or 1)
    found = re.search(r"\.maxnreg\s+(\d+)", directives)
    if found:
        kernel.max_registers = int(found[1])


def _module_variables(reader: _Reader, text: str) -> None:
    depth = 0
    text = re.sub(r"\.(?:version|target|address_size)\b[^\n]*", "", text)  # they end without `;`
    for part in re.split(r"([{};])", text):
        depth += (part == "{") - (part == "}")
        # A table's initialiser holds braces too; it is joined again by _variable's own reading.
        if depth == 0 and _VARIABLE.match(part.strip()):
            _variable(reader, part.strip())
    for found in re.finditer(r"\.(?:global|const)[^;{]*=\s*\{[^}]*\}", text):
        _variable(reader, found.group())


def _variable(reader: _Reader, text: str) -> bool:
    found = _VARIABLE.match(text)
    if not found:
        return False
    flags, space, align, kind, name, extents, initial = found.groups()
    count = 1
    for extent in re.findall(r"\[(\d*)\]", extents):
        count *= int(extent or 0)
    size = SIZES[kind]
    is_extern = "extern" in flags
    data = b""
    if initial:
        values = split_operands(initial.strip().strip("{}"))
        data = b"".join(_initial(value, size) for value in values)
    reader.kernel.variables[name] = Variable(
        name, space, int(align or size), size * count, is_extern, data
    )
    return True


def _initial(text: str, size: int) -> bytes:
    constant = parse_constant(text)
    value = constant.value if constant else 0
    return struct.pack("<Q", value & (1 << 64) - 1)[:size]


def _body(reader: _Reader, start: int) -> int:
    """Reads statements from `start` to the closing brace; returns the position after it."""
    text, position, counted, line = reader.text, start, start, _line(reader.text, start)
    while True:
        match = _STATEMENT.match(text, position)
        if match is None:
            raise EmulationError(
                "truncated PTX",
                "the text ends inside the kernel's body",
                kernel=reader.kernel.name,
                line=_line(text, len(text.rstrip())),
            )
        first = match.start(match.lastindex or 0)
        line += text.count("\n", counted, first)
        counted = first
        position = match.end()
        brace, label, statement = match.groups()
        if brace == "{":
            reader.names.open()
        elif brace == "}":
            if not reader.names.close():
                return position
        elif label:
            reader.kernel.labels[label] = len(reader.kernel.instructions)
            reader.pending_table = label
        elif statement.strip():
            _statement(reader, statement.strip(), line)


def _statement(reader: _Reader, text: str, line: int) -> None:
    if text.startswith("."):
        if not _directive(reader, text):
            reader.problems.append((line, text.split()[0]))
        return
    guard_text = _GUARD.match(text)
    rest = text[guard_text.end() :] if guard_text else text
    opcode, _, operand_text = _split_opcode(rest)
    try:
        guard = _guard(reader, guard_text) if guard_text else None
        operands = tuple(reader.names.operand(part) for part in split_operands(operand_text))
    except (OperandError, ValueError) as error:
        reader.problems.append((line, f"{opcode}: {error}"))
        return
    if opcode.startswith(("bar.red", "barrier.red", "barrier.cta.red")):
        # The result is known after the wait only: a second instruction takes it.
        _append(reader, text, line, opcode.replace("red", "vote"), operands[1:], guard)
        opcode = opcode.replace("red", "result")
        operands = operands[:2]
    _append(reader, text, line, opcode, operands, guard)


def _append(
    reader: _Reader,
    text: str,
    line: int,
    opcode: str,
    operands: tuple[Operand, ...],
    guard: Reg | None,
) -> None:
    parts = opcode.split(".")
    reader.kernel.instructions.append(
        Instruction(
            len(reader.kernel.instructions), line, " ".join(text.split()),
            parts[0], tuple(parts[1:]), operands, guard, opcode,
        )
    )  # fmt: skip


def _split_opcode(text: str) -> tuple[str, str, str]:
    parts = text.split(None, 1)
    return parts[0], " ", parts[1] if len(parts) > 1 else ""


def _guard(reader: _Reader, match: re.Match[str]) -> Reg:
    reg = reader.names.register(match[2])
    if reg is None:
        raise OperandError(f"predicate {match[2]} is not declared")
    return Reg(reg.name, reg.number, reg.kind, negated=bool(match[1]))


def _directive(reader: _Reader, text: str) -> bool:
    word = text.split()[0]
    if word == ".reg":
        found = re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", text, re.S)
        if found:
            reader.names.declare(found[1], found[2])
        return bool(found)
    if word in (".pragma", ".loc", ".file", ".branchtargets", ".callprototype"):
        if word == ".branchtargets":
            targets = tuple(split_operands(text[len(word) :]))
            reader.kernel.branch_targets[reader.pending_table] = targets
        return True
    return _variable(reader, text)


def _refuse(reader: _Reader) -> None:
    if not reader.problems:
        return
    listed = "; ".join(f"line {line}: {what}" for line, what in reader.problems)
    raise EmulationError(
        "unreadable PTX", listed, kernel=reader.kernel.name, line=reader.problems[0][0]
    )
