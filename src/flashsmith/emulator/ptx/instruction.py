"""What one PTX instruction is: opcode, modifiers, typed operands, guard predicate, line."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reg:
    """A register by its name inside the kernel, scopes resolved; `number` is its index in R."""

    name: str
    number: int
    kind: str  # as declared: "pred", "b32", "f32", "u64"…
    negated: bool = False  # `!%p1` as a source


@dataclass(frozen=True, slots=True)
class Imm:
    """A constant: an integer, or the bits of a float with their width."""

    value: int
    float_bits: int = 0  # 32 for 0fXXXXXXXX, 64 for 0dXXXXXXXXXXXXXXXX, 0 for an integer


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter or label by name, used for its address; `offset` bytes past it."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register: `%tid.x`, `%laneid`."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; base is a register, a symbol or nothing (an absolute address)."""

    base: Reg | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, c, d}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`[a, {b, c}]`: the tuple operands of tensor copies, without their brackets."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a destination nobody wants."""


Operand = Reg | Imm | Symbol | Special | Address | Vector | Group | Pair | Sink


@dataclass(slots=True)  # not frozen: kernels have thousands, and those are made at half the speed
class Instruction:
    """One statement of a kernel; nobody changes it."""

    index: int
    line: int
    text: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Reg | None = None
    full: str = field(default="", compare=False)  # opcode with all its modifiers

    def has(self, modifier: str) -> bool:
        """Whether the opcode carries a modifier."""
        return modifier in self.modifiers

    @property
    def type(self) -> str:
        """The last modifier, which is the operand type of most instructions."""
        return self.modifiers[-1] if self.modifiers else ""


def registers(operand: Operand) -> tuple[Reg, ...]:
    """All registers inside an operand, those of addresses included."""
    if type(operand) is Reg:  # most are: no chain of questions then
        return (operand,)
    if isinstance(operand, Address):
        return (operand.base,) if isinstance(operand.base, Reg) else ()
    if isinstance(operand, Vector | Group):
        return tuple(reg for item in operand.items for reg in registers(item))
    if isinstance(operand, Pair):
        return registers(operand.first) + registers(operand.second)
    return ()
