"""Names of a package whose modules are imported when the name is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from flashsmith.base.loose_types import Foreign


def late_names(
    namespace: dict[str, Foreign], places: Mapping[str, str]
) -> Callable[[str], Foreign]:
    """The `__getattr__` of the module with this namespace: names, each with its module."""

    def find(name: str) -> Foreign:
        if name not in places:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        namespace[name] = value
        return value

    return find
