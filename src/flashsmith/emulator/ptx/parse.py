"""PTX text → one kernel's typed instructions; what cannot be read is listed with its lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.ptx.declarations import (
    DeclarationError,
    declare_registers,
    read_params,
    read_variable,
)
from flashsmith.emulator.ptx.instruction import Instruction, Operand, Reg
from flashsmith.emulator.ptx.module import Kernel, Param
from flashsmith.emulator.ptx.operands import Names, OperandError, split_operands

_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STRING = re.compile(r'"[^"\n]*"')
_STATEMENT = re.compile(r"\s*(?:([{}])|([$\w%.]+)\s*:(?!:)|([^;]*);)", re.S)
_GUARD = re.compile(r"@(!?)\s*([%\w$]+)\s*")


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
    clean = _without_comments(text)
    entries = {m[1]: m for m in _ENTRY.finditer(clean)}
    if not entries:
        raise EmulationError("bad PTX", "no .entry in this text; give the PTX of a kernel", line=1)
    first = _line(clean, next(iter(entries.values())).start())
    if entry is None and len(entries) > 1:
        names = ", ".join(entries)
        raise EmulationError("bad PTX", f"{len(entries)} entries; name one of {names}", line=first)
    if entry is not None and entry not in entries:
        there = ", ".join(entries)
        raise EmulationError("bad PTX", f"no entry {entry}; there is {there}", line=first)
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
    _module_variables(reader, 0, match.start())
    end = _body(reader, opening + 1)
    _module_variables(reader, end, len(clean))
    kernel.registers = reader.names.registers
    _refuse(reader)
    return kernel


def _without_comments(text: str) -> str:
    """The text with blanks for comments and for what strings hold; lines stay where they are."""
    clean = _COMMENT.sub(lambda m: _blanks(m.group()), text)
    clean = _STRING.sub(lambda m: f'"{" " * (len(m.group()) - 2)}"', clean)
    for mark, what in (("/*", "comment"), ('"', "string")):
        left = clean if mark == "/*" else re.sub(r'" *"', lambda m: " " * len(m.group()), clean)
        at = left.find(mark)
        if at >= 0:
            raise EmulationError("bad PTX", f"a {what} does not end", line=_line(clean, at))
    return clean


def _blanks(comment: str) -> str:
    return "\n".join(" " * len(line) for line in comment.split("\n"))


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _params(text: str, match: re.Match[str]) -> tuple[int, tuple[Param, ...]]:
    opening = text.find("(", match.end())
    brace = text.find("{", match.end())
    if opening < 0 or 0 <= brace < opening:
        return match.end(), ()
    line = _line(text, opening)
    closing = text.find(")", opening)
    if closing < 0:
        message = "the parameter list does not end"
        raise EmulationError("truncated PTX", message, kernel=match[1], line=line)
    try:
        return closing + 1, read_params(text[opening + 1 : closing])
    except DeclarationError as error:
        raise EmulationError("bad PTX", str(error), kernel=match[1], line=line) from None


def _bounds(kernel: Kernel, directives: str) -> None:
    found = re.search(r"\.(?:max|req)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    if found:
        extents = [int(extent[:20]) for extent in found.groups() if extent]
        kernel.max_threads = 1
        for extent in extents:
            kernel.max_threads *= extent
    found = re.search(r"\.maxnreg\s+(\d+)", directives)
    if found:
        kernel.max_registers = int(found[1][:20])


def _module_variables(reader: _Reader, start: int, end: int) -> None:
    """Takes the variables declared outside of the kernel, in one part of the text."""
    depth, position = 0, start
    text = reader.text[start:end]
    # These directives end without `;`: blanks keep the places of what follows.
    text = re.sub(
        r"\.(?:version|target|address_size)\b[^\n]*", lambda m: " " * len(m.group()), text
    )
    for part in re.split(r"([{};])", text):
        depth += (part == "{") - (part == "}")
        # A table's initialiser holds braces too; the search below takes it whole.
        if depth == 0 and "=" not in part and re.match(r"\s*\.[\w\s.]*\b", part):
            first = position + len(part) - len(part.lstrip())
            _variable(reader, part.strip(), _line(reader.text, first))
        position += len(part)
    for found in re.finditer(r"\.(?:global|const)[^;{]*=\s*(?:\{[^}]*\}|[^;{]*)", text):
        _variable(reader, found.group(), _line(reader.text, start + found.start()))


def _variable(reader: _Reader, text: str, line: int) -> bool:
    """Takes a declaration of a variable; false when it is none."""
    try:
        variable = read_variable(text)
    except DeclarationError as error:
        reader.problems.append((line, str(error)))
        return True
    if variable is None:
        return False
    kernel = reader.kernel
    taken = variable.name in kernel.variables or any(p.name == variable.name for p in kernel.params)
    if taken and not variable.is_extern:
        reader.problems.append((line, f"{variable.name} is declared twice"))
    kernel.variables[variable.name] = variable
    return True


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
            if label in reader.kernel.labels:
                reader.problems.append((line, f"label {label} is defined twice"))
            reader.kernel.labels[label] = len(reader.kernel.instructions)
            reader.pending_table = label
        elif statement.strip():
            _statement(reader, statement.strip(), line)


def _statement(reader: _Reader, text: str, line: int) -> None:
    if text.startswith("."):
        _directive(reader, text, line)
        return
    guard_text = _GUARD.match(text)
    rest = text[guard_text.end() :] if guard_text else text
    if not rest:
        reader.problems.append((line, f"{text}: no instruction follows the guard"))
        return
    opcode, _, operand_text = _split_opcode(rest)
    try:
        guard = _guard(reader, guard_text) if guard_text else None
        operands = tuple(reader.names.operand(part) for part in split_operands(operand_text))
    except (OperandError, ValueError, RecursionError) as error:
        reader.problems.append((line, f"{opcode[:60]}: {str(error)[:200]}"))
        return
    if opcode.startswith(("bar.red", "barrier.red", "barrier.cta.red")) and len(operands) > 2:
        # The result is known after the wait only: a second instruction takes it.
        _append(reader, text, line, opcode.replace("red", "vote", 1), operands[1:], guard)
        opcode = opcode.replace("red", "result", 1)
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
    if reg.kind != "pred":
        raise OperandError(f"guard {match[2]} is not a predicate")
    return Reg(reg.name, reg.number, reg.kind, negated=bool(match[1]))


def _directive(reader: _Reader, text: str, line: int) -> None:
    word = text.split()[0]
    if word == ".reg":
        try:
            declare_registers(reader.names, text)
        except DeclarationError as error:
            reader.problems.append((line, str(error)))
    elif word == ".branchtargets":
        targets = tuple(split_operands(text[len(word) :]))
        reader.kernel.branch_targets[reader.pending_table] = targets
    elif word not in (".pragma", ".loc", ".file", ".callprototype") and not _variable(
        reader, text, line
    ):
        reader.problems.append((line, word[:60]))


def _refuse(reader: _Reader) -> None:
    if not reader.problems:
        return
    listed = "; ".join(f"line {line}: {what}" for line, what in reader.problems)
    raise EmulationError(
        "unreadable PTX", listed, kernel=reader.kernel.name, line=reader.problems[0][0]
    )
