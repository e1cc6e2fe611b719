"""Whose array an argument is; a library is imported only when one of its arrays was passed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from flashsmith.api.arrays.library import Array, ArrayLibrary
from flashsmith.base.errors import ArgumentTypeError

_MODULES = {
    "numpy": "flashsmith.api.arrays.numpy_arrays",
    "cupy": "flashsmith.api.arrays.cupy_arrays",
    "jax": "flashsmith.api.arrays.jax_arrays",
    "jaxlib": "flashsmith.api.arrays.jax_arrays",
}
_SPOKEN = {"numpy": "NumPy", "cupy": "CuPy", "jax": "JAX", "jaxlib": "JAX", "torch": "torch"}

JAX = ("jax", "jaxlib")  # what `origin` calls its traced values, and its arrays


def is_traced(*arrays: object) -> bool:
    """Whether one of a call's arrays is a value that JAX traces: it has a shape and no memory."""
    if not any(origin(array) == "jax" for array in arrays):
        return False
    tracer = import_module("jax").core.Tracer
    return any(isinstance(array, tracer) for array in arrays)


def origin(array: object) -> str:
    """The library that an argument comes from: `numpy`, `torch`, `cupy`, `jax`, or empty."""
    if type(array).__module__ in _SPOKEN:  # nearly always, and a third of the time
        return type(array).__module__
    for kind in type(array).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in _SPOKEN:
            return root
    return ""


def library_of(q: Array, k: Array, v: Array, out: Array = None) -> ArrayLibrary:
    """The library that all arrays of a call come from."""
    return library_of_all({"q": q, "k": k, "v": v} | ({} if out is None else {"out": out}))


def library_of_all(arrays: Mapping[str, Array]) -> ArrayLibrary:
    """The same of arrays by the names of their arguments, of which one is q."""
    q = arrays["q"]
    for name, array in arrays.items():
        if not origin(array):
            raise ArgumentTypeError(
                f"{name} is of type {type(array).__name__}; pass an array of NumPy, torch, CuPy or "
                f"JAX (each has from_dlpack)."
            )
        if _SPOKEN[origin(array)] != _SPOKEN[origin(q)]:
            raise ArgumentTypeError(
                f"q comes from {_SPOKEN[origin(q)]} and {name} from {_SPOKEN[origin(array)]}; pass "
                f"arrays of one library."
            )
    library: ArrayLibrary = import_module(_MODULES[origin(q)]).LIBRARY
    for name, array in arrays.items():
        library.require_usable(name, array)
    return library
