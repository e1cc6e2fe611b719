"""flash_attn: `install()` lets code that imports it, and is not to be changed, find flashsmith."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import ModuleType

import flashsmith
from flashsmith.api.notices import say_once
from flashsmith.base.errors import Unsupported
from flashsmith.base.loose_types import Foreign

PACKAGE = "flash_attn"
VERSION = "2.8.3+flashsmith"  # whose names and return values these are
# Distributions, their versions and the packages that they bring.
_DISTRIBUTIONS = {
    PACKAGE: (VERSION, PACKAGE),
    "flash_attn_3": ("3.0.0+flashsmith", "flash_attn_interface"),
}
_FUNCTIONS = (
    *("flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func"),
    *("flash_attn_varlen_func", "flash_attn_varlen_qkvpacked_func"),
    *("flash_attn_varlen_kvpacked_func", "flash_attn_with_kvcache"),
)
_PADDING = ("index_first_axis", "index_put_first_axis", "pad_input", "unpad_input")
# Modules, where their names are from, and the names.
_MODULES = {
    PACKAGE: ("flashsmith", _FUNCTIONS),
    f"{PACKAGE}.flash_attn_interface": ("flashsmith", _FUNCTIONS),
    f"{PACKAGE}.bert_padding": ("flashsmith.integrations.bert_padding", _PADDING),
    "flash_attn_interface": (
        "flashsmith.integrations.flash_attn_3",
        (
            *("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
            *("flash_attn_qkvpacked_func", "flash_attn_combine", "get_scheduler_metadata"),
        ),
    ),
}


def install() -> None:
    """Makes `import flash_attn` find flashsmith, where flash_attn is not installed.

    What asks whether it is there gets its answer too: `importlib.util.find_spec`, the metadata of
    packages, transformers. An installed flash_attn is never hidden: it is an error, and one that
    is installed later is found first.
    """
    if _FINDER in sys.meta_path:
        return
    _refuse_installed()
    sys.meta_path.append(_FINDER)
    importlib.invalidate_caches()
    _tell_transformers(is_there=True)
    say_once(
        "flash_attn",
        f"flashsmith stands in for flash_attn, which is not installed: `import {PACKAGE}` finds "
        f"flashsmith's functions, as version {VERSION}.",
    )


def uninstall() -> None:
    """Undoes `install`; modules that were imported meanwhile keep what they have."""
    if _FINDER not in sys.meta_path:
        return
    sys.meta_path.remove(_FINDER)
    for name in _MODULES:
        if isinstance(getattr(sys.modules.get(name), "__loader__", None), _Finder):
            del sys.modules[name]
    _tell_transformers(is_there=False)


def _refuse_installed() -> None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None:
        where = spec.origin or ", ".join(spec.submodule_search_locations or ()) or "memory"
        raise Unsupported(
            f"flash_attn is installed ({where}); flashsmith does not take the place of an "
            f"installed package; uninstall it, or import flashsmith's functions by their names."
        )


class _Finder(MetaPathFinder, Loader):
    """Finds and loads the modules, and tells of the distribution that they would come with."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's, if it is one of ours."""
        if fullname not in _MODULES:
            return None
        return ModuleSpec(fullname, self, origin=__file__, is_package=fullname == PACKAGE)

    def exec_module(self, module: ModuleType) -> None:
        """Fills a module with its names."""
        source, names = _MODULES[module.__name__]
        found = importlib.import_module(source)
        for name in names:
            setattr(module, name, getattr(found, name))
        module.__doc__ = f"flashsmith {flashsmith.__version__} under the names of flash_attn."
        module.__dict__["__file__"] = __file__
        module.__dict__["__all__"] = [*names]
        if module.__name__ == PACKAGE:
            module.__dict__["__version__"] = VERSION

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """Those of flash_attn, if they are asked for or all are."""
        asked = getattr(context, "name", None)
        return [
            _Metadata(name)
            for name in _DISTRIBUTIONS
            if asked is None or asked.replace("-", "_") == name
        ]


class _Metadata(Distribution):
    """What `importlib.metadata` says of one of them."""

    def __init__(self, of: str) -> None:
        self._of = of

    def read_text(self, filename: str) -> str | None:
        """The files that say which version it is, and what it brings."""
        version, package = _DISTRIBUTIONS[self._of]
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {self._of}\nVersion: {version}\n",
            "top_level.txt": f"{package}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Beside this module: there are none."""
        return Path(__file__).parent / path


_FINDER = _Finder()


def _tell_transformers(*, is_there: bool) -> None:
    """Changes what it found out when it was imported, if it was."""
    asked = sys.modules.get("transformers.utils.import_utils")
    known: Foreign = getattr(asked, "PACKAGE_DISTRIBUTION_MAPPING", {})
    for name, (_, package) in _DISTRIBUTIONS.items():
        known.pop(package, None)
        if is_there:
            known[package] = [name]
    for name in (
        *("is_flash_attn_2_available", "is_flash_attn_3_available"),
        "is_flash_attn_greater_or_equal",
    ):
        forget = getattr(getattr(asked, name, None), "cache_clear", None)
        if forget is not None:
            forget()
