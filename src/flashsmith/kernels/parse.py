"""From any text that names a kernel to its configuration, whichever family it is of."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain

from flashsmith.base.errors import ConfigError
from flashsmith.base.plain_text import shortened
from flashsmith.kernels.catalogue import CATALOGUE, PARTS
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import (
    form_text,
    parse_identifier,
    parse_short_form,
    search_cpp_struct,
    search_short_form,
)

_MOST_LETTERS = 4000  # a C++ literal in a profiler's line takes under 1,500

_KERNEL_NAME = re.compile(r"\bflashsmith_([A-Za-z0-9_]+?)__[a-z0-9_]+\b")
_LOOKS_LIKE_SHORT_FORM = re.compile(r"\([^(),]*,[^()]*\)")


# Kept: a table of measurements names a few configurations many times, and a first call reads it.
@lru_cache(maxsize=1024)
def parse_config(text: str) -> KernelConfig:
    """The configuration that `text` names: short form, kernel name, identifier or C++ literal.

    The name may stand anywhere in the text (a table row, a profiler's line).
    """
    require_short(text)
    names = [text.strip(), *_KERNEL_NAME.findall(text)]
    for name in filter(str.isidentifier, names):
        for family in chain(CATALOGUE, PARTS):
            config = parse_identifier(name, family)
            if config is not None:
                return config
    # What the text begins with is asked first: no other family is imported for it then.
    likely = CATALOGUE.written(text.partition("(")[0].strip())
    for family in chain(likely, CATALOGUE, PARTS):
        config = search_cpp_struct(text, family) or search_short_form(text, family)
        if config is not None:
            return config
    return parse_short_form(text, _nearest_family(text))


def parse_kernel_name_into_config(kernel_name: str) -> KernelConfig:
    """The configuration in a kernel's name as profilers print it, or in a table's row."""
    return parse_config(kernel_name)


def require_short(text: str) -> None:
    """Raises for a text that is too long to name anything: patterns take its length squared."""
    if len(text) > _MOST_LETTERS:
        raise ConfigError(
            f"{shortened(text)!r} has {len(text):,} letters; what names a configuration or a set "
            f"has at most {_MOST_LETTERS:,}; `flashsmith configs` shows some."
        )


def looks_like_config(text: str) -> bool:
    """Whether `text` is meant as a configuration rather than as the key of a set."""
    return len(text) <= _MOST_LETTERS and _looks_like_config(text)


def _looks_like_config(text: str) -> bool:
    return bool(_LOOKS_LIKE_SHORT_FORM.search(text)) or "{" in text or "flashsmith_" in text


def _nearest_family(text: str) -> type[KernelConfig]:
    """The family whose parser can say best what is wrong with `text`."""
    if not looks_like_config(text):
        raise ConfigError(f"{shortened(text.strip())!r} is not a configuration; {_meant(text)}.")
    prefixed = [
        f for f in chain(CATALOGUE, PARTS) if f.PREFIX and text.strip().startswith(f.PREFIX.strip())
    ]
    return prefixed[0] if prefixed else CATALOGUE[0]


def _meant(text: str) -> str:
    """What a text that is no configuration may have been meant as: a set, or a family's prefix."""
    name = text.strip()
    sets = [name for family in CATALOGUE for name in family.named_sets()]
    if name in sets:
        return f"it is a set, of which `flashsmith configs {name}` lists the configurations"
    for near in get_close_matches(name, sets, 1):
        return f"did you mean one of the set {near!r}? `flashsmith configs {near}` lists them"
    like = get_close_matches(name.partition("(")[0], [f.PREFIX for f in CATALOGUE], 2)
    families = [f for f in CATALOGUE if f.PREFIX in like] or [CATALOGUE[0]]
    forms = " or ".join(repr(form_text(family)) for family in families)
    return f"a configuration is written {forms}; `flashsmith configs --page` shows all kernels'"
