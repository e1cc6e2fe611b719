"""What became of one configuration on one problem: a value for every way it can end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from flashsmith.base.errors import DamagedFile
from flashsmith.base.loose_types import DataClass


@dataclass(frozen=True, slots=True)
class Timed:
    """It ran, was right, and took this long; `fingerprint` names the bits of its output."""

    median_us: float
    p20_us: float
    p80_us: float
    rounds: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Verified:
    """It ran and was right on a device that cannot time it."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Ended:
    """Without a time. Kinds of it are other classes and no other dataclasses: each would take
    half a millisecond of the first call's, which reads shipped outcomes."""

    reason: str


class Refused(_Ended):
    """It was never built: a rule, or a limit of the architecture."""

    __slots__ = ()


class DidNotCompile(_Ended):
    """The compiler refused it."""

    __slots__ = ()


class DidNotRun(_Ended):
    """The launch failed, the kernel trapped, or the process that ran it died."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TimedOut:
    """It was still running when its time was up."""

    seconds: float


class Wrong(_Ended):
    """It ran, and its output is not attention."""

    __slots__ = ()


Outcome = Timed | Verified | Refused | DidNotCompile | DidNotRun | TimedOut | Wrong
KINDS: dict[str, DataClass] = {
    kind.__name__: kind
    for kind in (Timed, Verified, Refused, DidNotCompile, DidNotRun, TimedOut, Wrong)
}
_TYPES = {"float": (int, float), "int": (int,), "str": (str,)}
_MOST = 1e12  # microseconds, seconds or rounds: no measurement lasts that long
_MOST_LETTERS = 10_000  # of a reason: a compiler's log is cut long before


def outcome_fields(outcome: Outcome) -> dict[str, object]:
    """The outcome as flat data, its kind under `outcome`."""
    return {"outcome": type(outcome).__name__, **asdict(outcome)}


def outcome_from_fields(data: dict[str, object]) -> Outcome:
    """The outcome that `outcome_fields` wrote; anything else is refused by name."""
    name = data.get("outcome")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise DamagedFile(f"outcome is {str(name)[:40]!r}; it must be one of {', '.join(KINDS)}.")
    values: dict[str, object] = {}
    for field in fields(kind):
        value = data.get(field.name)
        allowed = _TYPES[str(field.type)]
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise DamagedFile(
                f"{field.name} of {name} is {str(value)[:40]!r}; it must be a {field.type}."
            )
        if isinstance(value, str) and len(value) > _MOST_LETTERS:
            raise DamagedFile(f"{field.name} of {name} has more than {_MOST_LETTERS} letters.")
        if isinstance(value, int | float) and not 0 < value <= _MOST:
            raise DamagedFile(
                f"{field.name} of {name} is {str(value)[:40]}; it must be above 0 and at most "
                f"{_MOST:g}."
            )
        values[field.name] = value
    outcome: Outcome = kind(**values)
    return outcome


def reason_of(outcome: Outcome) -> str:
    """Why there is no time, in words; empty for what ended well."""
    if isinstance(outcome, Timed | Verified):
        return ""
    if isinstance(outcome, TimedOut):
        return f"still running after {outcome.seconds:g} s"
    return outcome.reason
