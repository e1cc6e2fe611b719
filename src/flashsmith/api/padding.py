"""Widths of q, k and v that no kernel takes as they are: padded with zeros, and cut off again."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from flashsmith.api.arrays import JAX, is_traced, origin
from flashsmith.api.arrays.library import Array
from flashsmith.api.options import CallOptions
from flashsmith.api.tables import ArrayTables
from flashsmith.base.errors import Unsupported
from flashsmith.kernels.width import D_HEAD_STEP, MAX_D_HEAD
from flashsmith.tuner.choose.choice import Choice


def needs_columns(q: Array, v: Array) -> bool:
    """Whether a last dimension is no multiple of what kernels read at once, or v has another."""
    shape: tuple[int, ...] = getattr(q, "shape", ())
    if len(shape) != 4:
        return False
    of_v: tuple[int, ...] = getattr(v, "shape", shape)
    # Every call passes here: a slice of torch's shapes takes longer than all the rest.
    return shape[3] % D_HEAD_STEP != 0 or len(of_v) == 0 or of_v[-1] != shape[3]


def common_width(q: Array, k: Array, v: Array, tables: ArrayTables) -> int:
    """The multiple of 8 that columns of zeros bring q, k and v to; 0 where there is none to add.

    Kernels take rows of v that are narrower, but have no gradients of them and no pages. Shapes
    that cannot be used anyway are left to the checks that name what is wrong with them.
    """
    if any(getattr(array, "is_nested", False) for array in (q, k, v)):
        return 0  # nothing pads these
    shapes: list[tuple[int, ...]] = [getattr(array, "shape", ()) for array in (q, k, v)]
    if any(len(shape) != 4 or shape[-1] == 0 for shape in shapes) or shapes[0][-1] != shapes[1][-1]:
        return 0
    of_q, of_v = shapes[0][-1], shapes[2][-1]
    is_even = of_q % D_HEAD_STEP == 0 and of_v % D_HEAD_STEP == 0
    is_read = is_even and of_v < of_q and "block_table" not in tables
    if is_read and not _wants_gradient(q, k, v, *tables.values()):
        return 0
    width = -(-max(of_q, of_v) // D_HEAD_STEP) * D_HEAD_STEP
    return width if width <= MAX_D_HEAD else 0


def _wants_gradient(q: Array, *others: Array) -> bool:
    """Whether autograd may ask for a gradient; what is transformed does not show it."""
    if is_traced(q, *others):
        return True  # what is traced may be differentiated later
    if origin(q) != "torch":
        return False
    torchs = import_module("flashsmith.torch_op.autograd")
    tensors = [array for array in (q, *others) if hasattr(array, "requires_grad")]
    return bool(torchs.is_transformed() or torchs.wants_gradient(*tensors))


def scaled_by(width: int, options: CallOptions) -> CallOptions:
    """The options with the scale of a d_head of `width`, said: columns are to be added."""
    if options.fact("scale") is not None:
        return options
    return options.with_fact("scale", float(width) ** -0.5)


def require_no_out(out: Array, q: Array, v: Array) -> None:
    """Raises where the output shall be written in place: it is cut from a wider one."""
    if out is None:
        return
    width, of_v = q.shape[-1], v.shape[-1]
    what = f"d_head is {width}, which flashsmith pads to a multiple of {D_HEAD_STEP}"
    if width != of_v:
        what = f"q has d_head {width} and v {of_v}, of which flashsmith pads the narrower"
    raise Unsupported(
        f"out is given and {what} in a copy; do not pass out, or pad q, k, v and out yourself."
    )


def said(choice: Choice, q: Array, v: Array, width: int) -> Choice:
    """The choice with what was padded for it."""
    own = {"q and k": q.shape[-1], "v": v.shape[-1]}
    copied = " and ".join(f"{name} from {n}" for name, n in own.items() if n != width)
    return replace(choice, reason=f"{choice.reason}; a copy pads {copied} to {width} columns")


def widened(array: Array, width: int) -> Array:
    """A copy with columns of zeros up to so many; what has as many is returned."""
    columns = width - array.shape[-1]
    if columns == 0:
        return array
    library = origin(array)
    if library == "torch":
        return import_module("torch.nn.functional").pad(array, (0, columns))
    name = "jax.numpy" if library in JAX else library
    return import_module(name).pad(array, [(0, 0), (0, 0), (0, 0), (0, columns)])


def narrowed(array: Array, width: int) -> Array:
    """The first columns, contiguous."""
    if array.shape[-1] == width:
        return array
    cut = array[..., :width]
    if origin(array) == "torch":
        return cut.contiguous()
    return cut.copy()
