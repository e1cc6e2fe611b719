"""Fields that are declared once: a configuration's knobs and a problem's facts, with all texts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import field, fields
from enum import Enum
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

from flashsmith.base.errors import ConfigError
from flashsmith.base.loose_types import DataClass, KnobValue

_KNOB = "flashsmith.knob"
_FACT = "flashsmith.fact"
_ALWAYS_WRITTEN = object()
_MOST_BITS = 256  # of an integer that a message spells
MOST = 2**31 - 1  # of every size: kernels count in 32 bits
# What kernels reckon in; the smallest normal number, because they take smaller ones for 0.
FLOAT32 = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
Declared = Any  # Any: a declared field stands where a value of its type will be


class Knob(NamedTuple):
    """What one field may be, and how it is written.

    `word` is empty for a field inside the parentheses of the short form. Otherwise it is a word
    after the colon: consecutive fields with the same `word` fill its `{}` in order. A word is left
    out where every field of it has its `absent` value.
    """

    values: tuple[KnobValue, ...]
    doc: str
    word: str
    absent: object


class Word(NamedTuple):
    """One word after the colon of a short form, with the fields that it spells."""

    form: str
    names: tuple[str, ...]
    knobs: tuple[Knob, ...]

    @property
    def is_flag(self) -> bool:
        """Whether the word is there or not, and holds no values."""
        return "{}" not in self.form

    @property
    def may_be_absent(self) -> bool:
        """Whether a short form without this word is complete."""
        return all(knob.absent is not _ALWAYS_WRITTEN for knob in self.knobs)

    def absent_values(self) -> dict[str, KnobValue]:
        """The fields' values where the word is not written."""
        return {name: knob.absent for name, knob in zip(self.names, self.knobs, strict=True)}


def knob(values: tuple[object, ...], doc: str, word: str = "", **absent: object) -> Declared:
    """A dataclass field with legal `values`; `absent=` is the value that is not written."""
    what = Knob(values, doc, word, absent.get("absent", _ALWAYS_WRITTEN))
    return field(metadata={_KNOB: what})


def flag(word: str, doc: str) -> Declared:
    """A dataclass field that is True where `word` is written."""
    return knob((False, True), doc, word, absent=False)


def value_text(value: object) -> str:
    """A value as it stands in short forms, identifiers and messages."""
    return value.name if isinstance(value, Enum) else str(value)


class Fact(NamedTuple):
    """One thing that is true of a problem: what it may be, and where it matters.

    A fact with an `absent` value is not written where it has that value, so that texts of versions
    without it stay the same. A `compiled` one is a bit of the kernel: the code for it is there only
    where the problem needs it. One with an `argument` is passed to the kernel, as that C++ type.
    """

    kind: type[Any]  # bool, int, float, str or an Enum
    doc: str
    absent: object
    least: float | None  # of numbers
    choices: Mapping[str, str]  # of texts, each with what it means
    hint: str  # what to do with a value that cannot be
    call: str  # what callers of the API name it by; empty where shapes say it
    option: str  # of the command line; empty where there is none
    compiled: bool
    changes_scores: bool
    exact: bool  # a kernel that is compiled with it computes nothing without it
    argument: str

    @property
    def is_optional(self) -> bool:
        """Whether it has a value that means that it does not matter."""
        return self.absent is not _ALWAYS_WRITTEN

    def obstacle(self, name: str, value: object) -> str:
        """Why `value` cannot be this fact, as a message; empty if it can."""
        if self.is_optional and value is None and self.absent is None:
            return ""
        if not _is_of_kind(value, self.kind):
            return f"{name} is {_shown(value)}; it must be {self.wanted()}."
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value:g}; it must be {self.wanted()}."
        if self.least is not None and isinstance(value, int | float) and value < self.least:
            return f"{name} is {_shown(value)}; it must be {self.wanted()}."
        if self.least is not None and isinstance(value, int) and value > MOST:
            return f"{name} is {_shown(value)}; kernels count in 32 bits, up to {MOST:,}."
        if self.kind is float and isinstance(value, int | float) and not value > 0:
            shown = _shown(value) if isinstance(value, int) else f"{value:g}"
            return f"{name} is {shown}; it must be {self.wanted()}."
        if self.kind is float and isinstance(value, int | float):
            least, most = FLOAT32
            if not least <= value <= most:
                advice = f"; {self.hint}" if self.hint else ""
                return (
                    f"{name} is {_shown(value)}; kernels take it as float32, from {least:.4g} to "
                    f"{most:.4g}{advice}."
                )
        if self.choices and value not in self.choices:
            return f"{name} is {_shown(value)}; it must be {self.wanted()}."
        return ""

    def is_of_kind(self, value: object) -> bool:
        """Whether `value` has the fact's type, whatever it is worth."""
        return _is_of_kind(value, self.kind)

    def wanted(self) -> str:
        """What a value must be, in words."""
        return f"{self._wanted()} ({self.hint})" if self.hint else self._wanted()

    def _wanted(self) -> str:
        if self.choices:
            return " or ".join(f"{name!r} {means}" for name, means in self.choices.items())
        or_none = " or None" if self.is_optional and self.absent is None else ""
        if self.kind is bool:
            return "True or False"
        if self.kind is float:
            return f"a finite number above 0{or_none}"
        if self.kind is int:
            bound = "" if self.least is None else f" of at least {self.least:g}"
            return f"an integer{bound}{or_none}"
        return " or ".join(f"{self.kind.__name__}.{member.name}" for member in self.kind)


def fact(
    kind: type,
    doc: str,
    *,
    least: float | None = None,
    choices: Mapping[str, str] | None = None,
    hint: str = "",
    call: str = "",
    option: str = "",
    compiled: bool = False,
    changes_scores: bool = False,
    exact: bool = False,
    argument: str = "",
    **more: object,
) -> Declared:
    """A dataclass field of a problem; `absent=` is its default, the value that is not written."""
    absent = more.get("absent", _ALWAYS_WRITTEN)
    exact = exact or changes_scores
    needed = compiled or exact
    what = Fact(
        *(kind, doc, absent, least, choices or {}, hint),
        *(call, option, needed, changes_scores, exact, argument),
    )
    if "default" in more:
        return field(default=more["default"], metadata={_FACT: what})
    if what.is_optional:
        return field(default=absent, metadata={_FACT: what})
    return field(metadata={_FACT: what})


def facts_of(cls: DataClass) -> dict[str, Fact]:
    """Every fact of a problem's class, in the order of the fields."""
    return {f.name: f.metadata[_FACT] for f in fields(cls)}


def _is_of_kind(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool | Enum)
    return isinstance(value, kind)


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"an integer of {value.bit_length():,} bits"  # Python writes no such number
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def value_cpp(value: object) -> str:
    """A value as a C++ literal; members of an Enum are `kNAME` of the C++ enum of that name."""
    if isinstance(value, Enum):
        return f"flashsmith::{type(value).__name__}::k{value.name}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def legal_text(values: tuple[object, ...]) -> str:
    """Legal values as a message lists them."""
    return ", ".join(value_text(value) for value in values)


class Knobs:
    """A frozen dataclass whose fields are knobs; every text of it follows from the fields."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[KnobValue]]]
    NAME: ClassVar[str]  # in identifiers, headers, documents and profilers alike
    FORMER_NAMES: ClassVar[tuple[str, ...]] = ()  # in identifiers of older versions
    CPP_TYPE: ClassVar[str]
    CONSTANTS: ClassVar[Mapping[str, int]] = {}  # that both languages reckon with, by C++ names
    CPP_METHODS: ClassVar[str] = ""  # the header with what C++ derives from the fields
    PREFIX: ClassVar[str] = ""  # what a short form of this family begins with

    def __post_init__(self) -> None:
        for name, what in self.knobs().items():
            require_legal(name, what, getattr(self, name))

    @classmethod
    def knobs(cls) -> dict[str, Knob]:
        """Every field's knob, in the order of the fields."""
        return _knobs(cls)  # type: ignore[arg-type]  # mypy: a class is no Hashable

    @classmethod
    def head(cls) -> tuple[str, ...]:
        """The fields inside the parentheses of the short form."""
        return tuple(name for name, what in cls.knobs().items() if not what.word)

    @classmethod
    def words(cls) -> tuple[Word, ...]:
        """The words after the colon of the short form."""
        return _words(cls)  # type: ignore[arg-type]  # as above

    @classmethod
    def of(cls, **given: KnobValue) -> Self:
        """The configuration with these values, and absent ones where a knob has one."""
        absent = {n: k.absent for n, k in cls.knobs().items() if k.absent is not _ALWAYS_WRITTEN}
        return cls(**{**absent, **given})

    def short_form(self) -> str:
        """One line that parses back: `(FP16, 128, 64, 64, 4): async+load_2_2_2_tiles`."""
        head = ", ".join(value_text(getattr(self, name)) for name in self.head())
        words = "+".join(self._written_words())
        return f"{self.PREFIX}({head}): {words}" if words else f"{self.PREFIX}({head})"

    def identifier(self) -> str:
        """A C identifier that spells every field and parses back."""
        head = [value_text(getattr(self, name)) for name in self.head()]
        return "_".join([self.NAME, *head, *self._written_words()])

    def to_cpp_struct(self) -> str:
        """The C++ literal, with designated initialisers: a forgotten field does not compile."""
        pairs = (f".{f.name} = {value_cpp(getattr(self, f.name))}" for f in fields(self))
        return f"{self.CPP_TYPE}{{{', '.join(pairs)}}}"

    @classmethod
    def cpp_struct(cls) -> str:
        """The C++ types of the fields and the struct itself, written from the declarations."""
        kinds = {name: type(what.values[0]) for name, what in cls.knobs().items()}
        enums = [kind for kind in dict.fromkeys(kinds.values()) if _is_own_enum(kind)]
        lines = [
            f"    {_cpp_type(kinds[name])} {name} = required<{_cpp_type(kinds[name])}>();"
            f"  // {what.doc}"
            for name, what in cls.knobs().items()
        ]
        methods = [f'\n#include "{cls.CPP_METHODS}"'] if cls.CPP_METHODS else []
        name = cls.CPP_TYPE.rpartition("::")[2]
        known = [f"inline constexpr int {n} = {value};" for n, value in cls.CONSTANTS.items()]
        order = [f"        if ({n} != other.{n}) return {n} < other.{n};" for n in kinds]
        struct = [
            f"struct {name} {{",
            *lines,
            "",
            f"    constexpr bool operator==(const {name}&) const = default;",
            f"    constexpr bool operator<(const {name}& other) const {{",
            *order,
            "        return false;",
            "    }",
            *methods,
            "};",
        ]
        return "\n".join([*map(_cpp_enum, enums), *known, *struct])

    def replace(self, **changes: KnobValue) -> Self:
        """The configuration that differs in the given fields."""
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        return self.short_form()

    def _written_words(self) -> list[str]:
        words = []
        for word in self.words():
            values = {name: getattr(self, name) for name in word.names}
            if values != word.absent_values():
                words.append(word.form.format(*map(value_text, values.values())))
        return words


def _is_own_enum(kind: type) -> bool:
    """Whether C++ knows an Enum from here; the element type has a header that needs no kernel."""
    return issubclass(kind, Enum) and kind.__name__ != "DType"


def _cpp_type(kind: type) -> str:
    return kind.__name__ if issubclass(kind, Enum) else {int: "int", bool: "bool"}[kind]


def _cpp_enum(kind: type[Enum]) -> str:
    members = ", ".join(f"k{member.name} = {member.value}" for member in kind)
    return f"enum class {kind.__name__} : int {{ {members} }};"


def require_legal(name: str, what: Knob, value: object) -> None:
    """Raises unless `value` is one of the knob's values, of the same type."""
    # True == 1 and DType.FP16 == 5, so equality alone would let the wrong type in.
    if not any(type(value) is type(legal) and value == legal for legal in what.values):
        raise ConfigError(
            f"{name} cannot be {value!r}; it takes {legal_text(what.values)}; choose one of these."
        )


@cache
def _knobs(cls: type[Knobs]) -> dict[str, Knob]:
    return {f.name: f.metadata[_KNOB] for f in fields(cls)}


@cache
def _words(cls: type[Knobs]) -> tuple[Word, ...]:
    words: list[Word] = []
    for name, what in cls.knobs().items():
        if not what.word:
            continue
        if words and words[-1].form == what.word:
            last = words.pop()
            words.append(Word(last.form, (*last.names, name), (*last.knobs, what)))
        else:
            words.append(Word(what.word, (name,), (what,)))
    return tuple(words)
