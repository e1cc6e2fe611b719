"""Names for types that Python cannot spell: each is `Any`, and its name says what it holds."""

from __future__ import annotations

from typing import Any

Json = Any  # Any: what a text of JSON or TOML says
JsonObject = dict[str, Json]
KnobValue = Any  # Any: an int, a bool or a member of an Enum, as its knob declares
FactValue = Any  # Any: of the kind that its fact declares, or None
DataClass = type[Any]  # Any: a class that `dataclasses.fields` takes
CLibrary = Any  # Any: ctypes makes a library's functions by name
OptionalModule = Any  # Any: a module that may not be installed
Foreign = Any  # Any: an object of a package that may not be installed, or has no types
TorchTensor = Foreign
