"""The instruction families: importing this package registers every opcode."""

from importlib import import_module
from pkgutil import iter_modules

LOADED = tuple(sorted(module.name for module in iter_modules(__path__)))
for _name in LOADED:
    import_module(f"{__name__}.{_name}")
