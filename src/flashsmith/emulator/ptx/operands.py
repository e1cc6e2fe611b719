"""How the text of an operand becomes a typed operand, with registers looked up by scope."""

from __future__ import annotations

import re

from flashsmith.emulator.ptx.instruction import (
    Address,
    Group,
    Imm,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)

_BY_AXIS = "tid ntid ctaid nctaid cluster_ctaid cluster_nctaid clusterid nclusterid"
_SINGLE = (
    "laneid warpid nwarpid smid nsmid gridid clock clock_hi clock64 globaltimer globaltimer_lo "
    "globaltimer_hi lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt cluster_ctarank "
    "cluster_nctarank is_explicit_cluster dynamic_smem_size total_smem_size"
)
SPECIALS = frozenset(
    [f"%{name}.{axis}" for name in _BY_AXIS.split() for axis in "xyz"]
    + [f"%{name}" for name in _SINGLE.split()]
)

_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"0[fFdD]([0-9a-fA-F]{16}|[0-9a-fA-F]{8})$")
_RANGED = re.compile(r"(%?[A-Za-z_$][\w$]*?)(\d+)$")
_NAME = re.compile(r"[%A-Za-z_$][\w$.]*$")


class OperandError(Exception):
    """An operand that means nothing here; the text says why."""


class Names:
    """The registers of one kernel: ranges, single names, and the scopes that hide them."""

    def __init__(self) -> None:
        self.registers: list[Reg] = []
        self._known: dict[str, Reg] = {}
        self._scopes: list[dict[str, Reg]] = [{}]
        self._ranges: list[dict[str, tuple[str, int]]] = [{}]
        self._cache: dict[str, Operand] = {}  # of texts with no name that an inner scope declares
        self._hidden: list[str] = []  # names that inner scopes declare

    def open(self) -> None:
        """Begins a `{` scope."""
        self._scopes.append({})
        self._ranges.append({})

    def close(self) -> bool:
        """Ends a scope; False when it was the kernel's own."""
        self._scopes.pop()
        self._ranges.pop()
        self._hidden = [name for scope in self._scopes[1:] for name in scope]
        self._hidden += [prefix for ranges in self._ranges[1:] for prefix in ranges]
        return bool(self._scopes)

    def declare(self, kind: str, names: str) -> None:
        """Takes `.reg` declarations: `%r<917>` or `P1, P2`."""
        for name in (part.strip() for part in names.split(",")):
            if name.endswith(">"):
                prefix, count = name[:-1].split("<")
                self._ranges[-1][prefix] = (kind, int(count))
                hidden = prefix
            else:
                self._scopes[-1][name] = self._new(name, kind)
                hidden = name
            if len(self._scopes) > 1:
                self._hidden.append(hidden)

    def _new(self, name: str, kind: str) -> Reg:
        reg = Reg(name, len(self.registers), kind)
        self.registers.append(reg)
        return reg

    def register(self, name: str) -> Reg | None:
        """The register a name stands for in the innermost scope that has it."""
        ranged = _RANGED.match(name)
        for depth in range(len(self._scopes) - 1, -1, -1):
            scope = self._scopes[depth]
            if name in scope:
                return scope[name]
            if ranged and ranged[1] in self._ranges[depth]:
                kind, count = self._ranges[depth][ranged[1]]
                if int(ranged[2]) < count:
                    return scope.setdefault(name, self._new(name, kind))
        return None

    def operand(self, text: str) -> Operand:
        """The operand that `text` spells; raises OperandError."""
        if self._hidden and any(hidden in text for hidden in self._hidden):
            return self._parse(text)
        operand = self._cache.get(text)
        if operand is None:
            operand = self._cache[text] = self._parse(text)
        return operand

    def _parse(self, text: str) -> Operand:
        if text.startswith("{") and text.endswith("}"):
            return Vector(tuple(self.operand(part) for part in split_operands(text[1:-1])))
        if text.startswith("[") and text.endswith("]"):
            return self._address(text[1:-1])
        if text == "_":
            return Sink()
        if text.startswith("!"):
            reg = self.register(text[1:].strip())
            if reg is None or reg.kind != "pred":
                raise OperandError(f"{text[1:]} is not a predicate that is declared")
            return Reg(reg.name, reg.number, reg.kind, negated=True)
        if "|" in text:
            first, second = text.split("|")
            return Pair(self.operand(first.strip()), self.operand(second.strip()))
        number = parse_constant(text)
        if number is not None:
            return number
        if text in SPECIALS:
            return Special(text)
        reg = self.register(text)
        if reg is not None:
            return reg
        if text.startswith("%"):
            raise OperandError(f"register {text} is not declared")
        if "+" in text:
            name, _, offset = text.partition("+")
            return Symbol(name.strip(), int(offset, 0))
        if not _NAME.match(text):
            raise OperandError(f"operand {text!r} is not understood")
        return Symbol(text)

    def _address(self, text: str) -> Operand:
        parts = split_operands(text)
        if len(parts) > 1:
            return Group(tuple(self.operand(part) for part in parts))
        base, sign, offset = _split_offset(text.strip())
        if _INTEGER.match(base):
            return Address(None, int(base, 0))
        operand = self.operand(base)
        if not isinstance(operand, Reg | Symbol):
            raise OperandError(f"address [{text}] is not understood")
        return Address(operand, sign * int(offset, 0) if offset else 0)


def _split_offset(text: str) -> tuple[str, int, str]:
    base, plus, offset = text.partition("+")
    if plus:
        return base.strip(), 1, offset.strip()
    base, minus, offset = text.partition("-")
    return base.strip(), -1, offset.strip() if minus and base else ""


def parse_constant(text: str) -> Imm | None:
    """The constant that `text` spells, or None."""
    if text == "WARP_SZ":
        return Imm(32)
    floating = _FLOAT.match(text)
    if floating:
        return Imm(int(floating[1], 16), 4 * len(floating[1]))
    integer = _INTEGER.match(text)
    if not integer:
        return None
    digits = integer[2]
    octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    value = int(digits, 8 if octal else 0)
    if value >= 1 << (63 if integer[1] else 64) and value != 1 << 63:
        raise OperandError(f"constant {text[:40]} does not fit into 64 bits")
    return Imm(-value if integer[1] else value)


def split_operands(text: str) -> list[str]:
    """Parts between the commas that stand outside all brackets."""
    if "{" not in text and "[" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts
