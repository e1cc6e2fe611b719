"""The options of an attention call, checked: everything that is not an array."""

from __future__ import annotations

from numbers import Integral, Real
from typing import NamedTuple

from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.base.fields import Fact
from flashsmith.base.loose_types import FactValue
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.attention import FACTS

_CONFIGS = (KernelConfig, str)  # a tuple: torch.compile of torch 2.6 cannot trace a union
BACKENDS = (None, "cuda", "emulator")
# What a caller may ask for beside arrays, by the names of the API; declared with the problem.
CALL_FACTS = {what.call: name for name, what in FACTS.items() if what.call}
_ORDER = {name: position for position, name in enumerate(CALL_FACTS.values())}
_ABSENT = tuple(FACTS[name].absent for name in _ORDER)
# Every call passes here, so what can be known beforehand is: the place of each argument.
_POSITIONS = {call_name: _ORDER[name] for call_name, name in CALL_FACTS.items()}
_FACTS = tuple(FACTS[name] for name in _ORDER)
_KINDS = tuple(what.kind for what in _FACTS)
# Values that are often given and need no look at the fact.
_ACCEPTED = tuple(
    frozenset(v for v in (True, 0, *what.choices) if not what.obstacle("", v)) for what in _FACTS
)
_CAUSAL, _DIAGONAL, LSE = (_ORDER[name] for name in ("causal", "diagonal", "lse"))


class CallOptions(NamedTuple):
    """What a call asks for, beside its arrays; a tuple, because every call makes one."""

    facts: tuple[FactValue, ...] = _ABSENT  # of `CALL_FACTS`, in their order
    config: KernelConfig | str | None = None  # a text is read when the kernel is prepared
    backend: str | None = None

    def fact(self, name: str) -> FactValue:
        """The value of a fact, by its name in the problem."""
        return self.facts[_ORDER[name]]

    def given(self) -> dict[str, FactValue]:
        """All facts by their names in the problem."""
        return dict(zip(_ORDER, self.facts, strict=True))

    def with_fact(self, name: str, value: object) -> CallOptions:
        """The same with another value of one fact."""
        position = _ORDER[name]
        return self._replace(facts=(*self.facts[:position], value, *self.facts[position + 1 :]))


def checked_options(
    *, config: object = None, backend: object = None, **given: object
) -> CallOptions:
    """The options of a call, facts by the API's names; raises where one cannot be used."""
    if backend not in BACKENDS:
        raise ArgumentError(f"backend is {backend!r}; it must be None, 'cuda' or 'emulator'.")
    values = list(_ABSENT)
    for call_name, value in given.items():
        position = _POSITIONS.get(call_name, -1)
        if position < 0:
            raise _unknown(call_name)
        if value is _ABSENT[position]:
            continue
        # Equal to one of these in type too: True == 1.
        if type(value) is _KINDS[position] and value in _ACCEPTED[position]:
            values[position] = value
        else:
            values[position] = checked_fact(call_name, _FACTS[position], value)
    if values[_DIAGONAL] is not None and not values[_CAUSAL]:
        raise ArgumentError("diagonal is given without causal, whose mask it moves; add causal.")
    if config is not None:
        config = checked_config(config)
    return CallOptions(tuple(values), config, backend)


COMMON = {
    (causal, diagonal, layout, lse): checked_options(
        causal=causal, diagonal=diagonal, layout=layout, return_lse=lse
    )
    for causal, diagonal in ((False, None), (True, None), (True, 0))
    for layout in FACTS["layout"].choices
    for lse in (False, True)
}


def common_options(
    causal: object, diagonal: object, layout: object, return_lse: object
) -> CallOptions | None:
    """The options of most calls, looked up; None where they have to be checked one by one."""
    # True == 1, so types count; a text that is no layout is not found.
    if type(causal) is bool and type(return_lse) is bool and type(layout) is str:
        return COMMON.get((causal, diagonal, layout, return_lse))  # type: ignore[arg-type]
    return None


def _unknown(call_name: str) -> ArgumentTypeError:
    near = [name for name in CALL_FACTS if _other_letters(name, call_name) <= 2]
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CALL_FACTS)}."
    return ArgumentTypeError(f"{call_name!r} is not an argument of this call; {hint}")


def _other_letters(name: str, given: str) -> int:
    """Letters that only one of two names has; torch.compile cannot trace difflib."""
    return sum(abs(name.count(letter) - given.count(letter)) for letter in set(name + given))


def checked_fact(name: str, what: Fact, value: object) -> FactValue:
    """`value` as the fact's own type (NumPy's numbers are taken too); raises where it is none."""
    if value is what.absent:
        return value
    plain = _plain(what.kind, value)
    if not what.is_of_kind(plain):
        raise ArgumentTypeError(what.obstacle(name, value) or f"{name} is {value!r}.")
    obstacle = what.obstacle(name, plain)
    if obstacle:
        raise ArgumentError(obstacle)
    return plain


def _plain(kind: type, value: object) -> object:
    """Numbers of array libraries as Python's own; a bool stays one, it is mostly misplaced."""
    if type(value) in (bool, int, float, str) and not (kind is float and type(value) is int):
        return value
    if kind is bool and type(value).__name__ in ("bool", "bool_") and hasattr(value, "item"):
        return bool(value)
    if kind is int and isinstance(value, Integral):
        return int(value)
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return value  # refused by name, with the range that there is
    return value


def checked_flag(name: str, value: object) -> bool:
    """`value` as a bool; numbers and texts are refused, they are mostly misplaced arguments."""
    if value is True or value is False:
        return value
    plain = _plain(bool, value)
    if plain is True or plain is False:
        return plain
    raise ArgumentTypeError(f"{name} is {value!r}; it must be True or False.")


def checked_config(config: object) -> KernelConfig | str | None:
    """A configuration, or a text that may name one."""
    if config is None or isinstance(config, _CONFIGS):
        return config
    raise ArgumentTypeError(
        f"config is of type {type(config).__name__}; it must be a kernel configuration, its short "
        f"form, or None."
    )


def read_config(config: KernelConfig | str | None) -> KernelConfig | None:
    """The configuration that is meant; raises for a text that names none."""
    return parse_config(config) if isinstance(config, str) else config
