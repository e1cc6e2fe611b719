"""Fields that know their legal values and their text: short form, identifier, C++ literal, docs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Self

from flashsmith.base.errors import ConfigError

_KNOB = "flashsmith.knob"
_ALWAYS_WRITTEN = object()


@dataclass(frozen=True, slots=True)
class Knob:
    """What one field may be, and how it is written.

    `word` is empty for a field inside the parentheses of the short form. Otherwise it is a word
    after the colon: consecutive fields with the same `word` fill its `{}` in order. A word is left
    out where every field of it has its `absent` value.
    """

    values: tuple[Any, ...]  # Any: int, bool or members of one Enum
    doc: str
    word: str
    absent: object


@dataclass(frozen=True, slots=True)
class Word:
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

    def absent_values(self) -> dict[str, Any]:  # Any: of each knob's type
        """The fields' values where the word is not written."""
        return {name: knob.absent for name, knob in zip(self.names, self.knobs, strict=True)}


# Any: a field stands where a value of its type will be.
def knob(values: tuple[object, ...], doc: str, word: str = "", **absent: object) -> Any:
    """A dataclass field with legal `values`; `absent=` is the value that is not written."""
    what = Knob(values, doc, word, absent.get("absent", _ALWAYS_WRITTEN))
    return field(metadata={_KNOB: what})


def flag(word: str, doc: str) -> Any:  # Any: as above
    """A dataclass field that is True where `word` is written."""
    return knob((False, True), doc, word, absent=False)


def value_text(value: object) -> str:
    """A value as it stands in short forms, identifiers and messages."""
    return value.name if isinstance(value, Enum) else str(value)


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
    # Any: of each knob's type
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    NAME: ClassVar[str]  # in identifiers, headers, documents and profilers alike
    FORMER_NAMES: ClassVar[tuple[str, ...]] = ()  # in identifiers of older versions
    CPP_TYPE: ClassVar[str]
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

    def replace(self, **changes: Any) -> Self:  # Any: values of any knob
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
