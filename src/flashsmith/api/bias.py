"""The bias of a call: an element a score, broadcast to all of them without a copy."""

from __future__ import annotations

from dataclasses import replace

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.library import Array
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.kernels.arguments import ScoresArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import BIAS_CHUNK

Shape = tuple[int, ...]


def scores_shape(q: Shape, k: Shape, layout: str) -> Shape:
    """(batch, heads, queries, keys) of arrays of these shapes; raises as little as possible.

    Shapes that cannot be used are left to the checks that name what is wrong with them.
    """
    if len(q) != 4 or len(k) != 4:
        return (0, 0, 0, 0)
    rows, heads = (1, 2) if layout == "bshd" else (2, 1)
    return q[0], q[heads], q[rows], k[rows]


def require_broadcastable(shape: Shape, wanted: Shape) -> None:
    """Raises unless an array of `shape` can be broadcast to all scores, as torch and NumPy do."""
    missing = len(wanted) - len(shape)
    pairs = zip(shape, wanted[max(missing, 0) :], strict=False)
    if missing < 0 or any(n not in (1, whole) for n, whole in pairs):
        raise ArgumentError(
            f"bias (attn_mask) has shape {tuple(shape)}; it must be broadcastable to "
            f"{tuple(wanted)}: (batch, heads, queries, keys)."
        )


def broadcast_view(view: ArrayView, wanted: Shape) -> ArrayView:
    """The same memory with the shape of all scores; strides are 0 where it is broadcast."""
    require_broadcastable(view.shape, wanted)
    missing = len(wanted) - len(view.shape)
    own = [0 if n == 1 else stride for n, stride in zip(view.shape, view.strides, strict=True)]
    return replace(view, shape=wanted, strides=(*(0,) * missing, *own))


def kind_of(view: ArrayView, problem: AttentionProblem) -> str:
    """The value of the fact `bias`, by the element type; raises for one that no kernel reads."""
    if view.dtype in ("bool", "bool8"):
        return "bool"
    if view.dtype == "float32":
        return "float32"
    if DType.of(view.dtype) is problem.dtype:
        return "same"
    raise ArgumentTypeError(
        f"bias (attn_mask) is {view.dtype}; it must be bool (True: the row sees the key), "
        f"float32, or of the type of q; convert it."
    )


def require_whole(view: ArrayView, problem: AttentionProblem) -> None:
    """Raises unless the view is one of all scores."""
    wanted = (problem.batch, problem.heads, problem.q_len, problem.k_len)
    if view.shape != wanted:
        require_broadcastable(view.shape, wanted)
        raise ArgumentError(f"bias has shape {view.shape}; expand it to {wanted}.")


def keys_of(view: ArrayView, problem: AttentionProblem) -> str:
    """The value of the fact `bias_keys`: how many can be read at once."""
    if len(view.shape) != 4:  # refused by name
        return ""
    n_bytes = {"bool": 1, "bool8": 1, "float32": 4}.get(view.dtype, problem.dtype.bytes)
    places = bias_arg(view)
    if not places.lie_by(2, n_bytes, problem.k_len):
        return "apart"
    return "chunks" if places.lie_by(BIAS_CHUNK, n_bytes, problem.k_len) else ""


def shared_by(view: ArrayView) -> str:
    """The value of the fact `bias_shared`: dimensions along which nothing changes."""
    if len(view.shape) != 4:  # refused by name
        return ""
    of_batch, of_heads = (view.strides[axis] == 0 or view.shape[axis] == 1 for axis in (0, 1))
    if of_batch and of_heads:
        return "both"
    return "batch" if of_batch else "heads" if of_heads else ""


def shared_by_shape(shape: Shape) -> str:
    """The same where a gradient is wanted, which has the shape of what was given.

    What was expanded by its caller has a gradient for every place that it was expanded to.
    """
    whole = (*(1,) * (4 - len(shape)), *shape)
    is_shared = whole[0] == 1, whole[1] == 1
    return {(True, True): "both", (True, False): "batch", (False, True): "heads"}.get(is_shared, "")


def reduced(dbias: Array, shape: Shape) -> Array:
    """The gradient of a bias of `shape`, from one with an element for every row and key."""
    whole = (*(1,) * (4 - len(shape)), *shape)
    along = tuple(axis for axis in (2, 3) if whole[axis] == 1 and dbias.shape[axis] != 1)
    return (dbias.sum(along) if along else dbias).reshape(shape)


def bias_arg(view: ArrayView) -> ScoresArg:
    """What a kernel is told of a bias."""
    batch, head, row, key = (
        stride if extent > 1 else 0 for extent, stride in zip(view.shape, view.strides, strict=True)
    )
    # One key has no next: any stride will do.
    return ScoresArg(view.address, batch, row, head, key)
