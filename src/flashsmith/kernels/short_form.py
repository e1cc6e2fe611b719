"""From text to a configuration of one family: short form, identifier, C++ literal."""

from __future__ import annotations

import difflib
import re
from enum import Enum
from functools import cache
from typing import TypeVar

from flashsmith.base.errors import ConfigError
from flashsmith.base.fields import Knob, Knobs, Word, legal_text, require_legal, value_text
from flashsmith.base.loose_types import KnobValue
from flashsmith.base.whole_number import whole_number

C = TypeVar("C", bound=Knobs)
Values = dict[str, KnobValue]

_VALUE = "([A-Za-z0-9]+)"
_INITIALISER = re.compile(r"(?:\.(?P<name>\w+)\s*=)?\s*(?:\([\w:\s]+\))?\s*(?P<value>[\w:-]+)\s*")


def form_text(family: type[Knobs]) -> str:
    """How a short form of the family is written, with the fields' names."""
    words = "+".join(word.form.format(*_placeholders(word)) for word in family.words())
    return f"{family.PREFIX}({', '.join(family.head())}): {words}"


def _placeholders(word: Word) -> list[str]:
    """What stands for a word's values: initials where there are many, else what kind it is."""
    if len(word.names) > 1:
        return [name[0].upper() for name in word.names]
    return ["NAME" if isinstance(what.values[0], Enum) else "N" for what in word.knobs]


def parse_short_form(text: str, family: type[C]) -> C:
    """The configuration that exactly `text` spells; words may stand in any order."""
    found = re.fullmatch(rf"\s*{re.escape(family.PREFIX)}\s*\(([^()]*)\)\s*(?::\s*(\S*))?\s*", text)
    if found is None:
        raise ConfigError(
            f"{text.strip()!r} is not a configuration; a configuration is written "
            f"{form_text(family)!r}; `flashsmith configs` shows some."
        )
    values = _head_values(text, [part.strip() for part in found[1].split(",")], family)
    values |= _word_values(text, found[2] or "", family)
    return family(**values)


def search_short_form(text: str, family: type[C]) -> C | None:
    """The first short form of the family anywhere in `text` (a table row, a log line), or None."""
    pattern = _short_form_pattern(family)  # type: ignore[arg-type]  # mypy: a class is no Hashable
    for found in pattern.finditer(text):
        before = text[: found.start()]
        # No family may claim the end of another one's prefix, nor the one without any its head.
        if not re.search(r"\w$", before if family.PREFIX else before.rstrip()):
            return parse_short_form(found[0], family)
    return None


def parse_identifier(text: str, family: type[C]) -> C | None:
    """The configuration whose `identifier()` is exactly `text`, or None."""
    pattern = _identifier_pattern(family)  # type: ignore[arg-type]  # as above
    found = pattern.fullmatch(text)
    if found is None:
        return None
    values: Values = {}
    groups = iter(found.groups())
    for name, what in zip(family.head(), _head_knobs(family), strict=True):
        values[name] = _value(name, what, next(groups))
    for word in family.words():
        written = next(groups) is not None
        inner = [] if word.is_flag else [next(groups) for _ in word.names]
        values |= _written(word, inner) if written else word.absent_values()
    return family(**values)


def search_cpp_struct(text: str, family: type[C]) -> C | None:
    """The first C++ literal or demangled template argument of the family in `text`, or None."""
    type_name = family.CPP_TYPE.rpartition("::")[2]
    found = re.search(rf"\b{type_name}\s*\{{([^{{}}]*)\}}", text)
    if found is None:
        return None
    items = found[1].split(",")
    knobs = family.knobs()
    if len(items) != len(knobs):
        raise ConfigError(
            f"{found[0]!r} has {len(items)} values; {type_name} has {len(knobs)} fields: "
            f"{', '.join(knobs)}; give every one."
        )
    values = {}
    for (name, what), item in zip(knobs.items(), items, strict=True):
        part = _INITIALISER.fullmatch(item.strip())
        if part is None or (part["name"] or name) != name:
            raise ConfigError(
                f"{item.strip()!r} stands where {name} belongs; it takes "
                f"{legal_text(what.values)}; write the fields in order."
            )
        values[name] = _cpp_value(name, what, part["value"])
    return family(**values)


def _head_knobs(family: type[Knobs]) -> list[Knob]:
    return [family.knobs()[name] for name in family.head()]


def _alternatives(what: Knob) -> str:
    return "|".join(re.escape(value_text(value)) for value in what.values)


@cache
def _short_form_pattern(family: type[Knobs]) -> re.Pattern[str]:
    head = r"\s*,\s*".join(f"(?:{_alternatives(what)})" for what in _head_knobs(family))
    return re.compile(rf"{re.escape(family.PREFIX)}\s*\(\s*{head}\s*\)(?:\s*:\s*[\w+]*)?")


@cache
def _identifier_pattern(family: type[Knobs]) -> re.Pattern[str]:
    names = "|".join((family.NAME, *family.FORMER_NAMES))
    parts = [f"(?:{names})"] + [f"_({_alternatives(what)})" for what in _head_knobs(family)]
    for word in family.words():
        inner = word.form.format(*(f"({_alternatives(what)})" for what in word.knobs))
        parts.append(f"(_{inner}){'?' if word.may_be_absent else ''}")
    return re.compile("".join(parts))


def _head_values(text: str, parts: list[str], family: type[Knobs]) -> Values:
    names = family.head()
    if len(parts) != len(names):
        raise ConfigError(
            f"{text.strip()!r} has {len(parts)} values in parentheses; there are {len(names)}: "
            f"({', '.join(names)}); give every one."
        )
    knobs = family.knobs()
    return {name: _value(name, knobs[name], part) for name, part in zip(names, parts, strict=True)}


def _word_values(text: str, written: str, family: type[Knobs]) -> Values:
    values: Values = {}
    for token in written.split("+") if written else []:
        word, inner = _match_word(text, token, family)
        if word.names[0] in values:
            raise ConfigError(f"{text.strip()!r} has {token!r} twice; write each word once.")
        values |= _written(word, inner)
    for word in family.words():
        if word.names[0] not in values:
            if not word.may_be_absent:
                example = word.form.format(*(value_text(what.values[0]) for what in word.knobs))
                raise ConfigError(
                    f"{text.strip()!r} does not state {', '.join(word.names)}; add the word "
                    f"{word.form!r}, for example {example!r}."
                )
            values |= word.absent_values()
    return values


def _match_word(text: str, token: str, family: type[Knobs]) -> tuple[Word, list[str]]:
    for word in family.words():
        found = re.fullmatch(word.form.replace("{}", _VALUE), token)
        if found is not None:
            return word, list(found.groups())
    examples = [
        word.form.format(*(value_text(k.values[-1]) for k in word.knobs)) for word in family.words()
    ]
    near = difflib.get_close_matches(token, examples, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "use these."
    forms = ", ".join(word.form for word in family.words())
    raise ConfigError(f"{text.strip()!r} has no flag {token!r}; the flags are {forms}; {hint}")


def _written(word: Word, inner: list[str]) -> Values:
    if word.is_flag:
        (name,), (what,) = word.names, word.knobs
        return {name: next(value for value in what.values if value != what.absent)}
    triples = zip(word.names, word.knobs, inner, strict=True)
    return {name: _value(name, what, text) for name, what, text in triples}


def _value(name: str, what: Knob, text: str) -> KnobValue:
    for value in what.values:
        if value_text(value) == text:
            return value
    raise ConfigError(
        f"{name} cannot be {text!r}; it takes {legal_text(what.values)}; choose one of these."
    )


def _cpp_value(name: str, what: Knob, text: str) -> KnobValue:
    last = text.rpartition("::")[2]
    kind = type(what.values[0])
    if issubclass(kind, Enum):
        for value in what.values:
            if last in (f"k{value.name}", str(value.value)):
                return value
    elif kind is bool and last in ("0", "1", "true", "false"):
        return last in ("1", "true")
    number = whole_number(last)
    value = last if number is None else number
    require_legal(name, what, value)
    return value
