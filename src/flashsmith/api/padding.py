"""Head dimensions that no kernel takes as they are: padded with zeros, and cut off again."""

from __future__ import annotations

from importlib import import_module

from flashsmith.api.arrays import origin
from flashsmith.api.arrays.library import Array
from flashsmith.api.options import CallOptions
from flashsmith.base.errors import Unsupported
from flashsmith.kernels.width import D_HEAD_STEP, MAX_D_HEAD


def has_odd_width(array: Array) -> bool:
    """Whether the last dimension is no multiple of what kernels read at once."""
    shape: tuple[int, ...] = getattr(array, "shape", ())
    return len(shape) == 4 and shape[3] % D_HEAD_STEP != 0


def columns_to_add(*arrays: Array) -> int:
    """How many columns of zeros bring d_head to a multiple of 8; 0 where there is none to add.

    Shapes that cannot be used anyway are left to the checks that name what is wrong with them.
    """
    if any(getattr(array, "is_nested", False) for array in arrays):
        return 0  # nothing pads these
    shapes: list[tuple[int, ...]] = [getattr(array, "shape", ()) for array in arrays]
    widths = {shape[-1] for shape in shapes if len(shape) == 4}
    if len(widths) != 1 or any(len(shape) != 4 for shape in shapes):
        return 0
    width = widths.pop()
    return -width % D_HEAD_STEP if 0 < width <= MAX_D_HEAD else 0


def scaled_by(width: int, options: CallOptions) -> CallOptions:
    """The options with the scale of a d_head of `width`, said: columns are to be added."""
    if options.fact("scale") is not None:
        return options
    return options.with_fact("scale", float(width) ** -0.5)


def require_no_out(out: Array, width: int) -> None:
    """Raises where the output shall be written in place: it is cut from a wider one."""
    if out is not None:
        raise Unsupported(
            f"out is given and d_head is {width}, which flashsmith pads to a multiple of "
            f"{D_HEAD_STEP} in a copy; do not pass out, or pad q, k, v and out yourself."
        )


def widened(array: Array, columns: int) -> Array:
    """A copy with so many columns of zeros behind the last dimension."""
    library = origin(array)
    if library == "torch":
        return import_module("torch.nn.functional").pad(array, (0, columns))
    name = "jax.numpy" if library == "jax" else library
    return import_module(name).pad(array, [(0, 0), (0, 0), (0, 0), (0, columns)])


def narrowed(array: Array, width: int) -> Array:
    """The first columns, contiguous."""
    cut = array[..., :width]
    if origin(array) == "torch":
        return cut.contiguous()
    return cut.copy()
