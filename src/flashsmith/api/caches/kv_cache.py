"""flash-attn's call of servers: query rows on a cache, to which new keys may be appended first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flashsmith.api.arrays import origin
from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.attention import attend
from flashsmith.api.caches.rotary import require_appended, rotated, rotation
from flashsmith.api.contents import require_contents
from flashsmith.api.options import (
    CallOptions,
    checked_fact,
    checked_flag,
    checked_options,
    common_options,
)
from flashsmith.api.tables import window_sides
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported
from flashsmith.kernels.width import require_one_width
from flashsmith.problem.attention import FACTS

_MOST_KEYS = 2**31 - 1  # that kernels count
_WHOLE_WINDOW = (-1, -1)
# What a call asks for beside tensors, and by which name; the last: whether an LSE is wanted.
Asked = tuple[object, ...]
_Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # of q, and of either cache
FEW_ROWS = 64  # of all heads of a group: what kernels for few rows divide into slices


def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array = None,
    v: Array = None,
    rotary_cos: Array = None,
    rotary_sin: Array = None,
    cache_seqlens: Array = None,
    cache_batch_idx: Array = None,
    cache_leftpad: Array = None,
    block_table: Array = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = _WHOLE_WINDOW,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Array = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    out: Array = None,
    workspace: Array = None,
) -> ArrayOrTuple:
    """flash-attn's `flash_attn_with_kvcache`, of torch tensors or NumPy arrays.

    The caches are (batch, rows, kv heads, d_head), or with `block_table` (batch, pages of a
    sequence; int32) pools of pages, (pages, rows of a page, kv heads, d_head). `cache_seqlens`, an
    integer or (batch,) int32, says how many keys each sequence has; without it all rows count.
    With `k` and `v`, (batch, new rows, kv heads, d_head), the rows behind those are written in
    place first, and count. `cache_leftpad`: rows at a sequence's beginning that are padding (not in
    pages). `rotary_cos` and `rotary_sin`, (positions, half of the rotated columns), rotate the new
    keys by where they are written and query rows alike, without a causal mask or window all at the
    first of these. `cache_batch_idx` says which sequence of the cache each of q is. Masks are
    aligned bottom-right with a sequence's own length. Nothing waits for the GPU. `num_splits`
    changes nothing: bits follow from the request alone. Lengths and entries are clamped.
    """
    scores = causal, softmax_scale, window_size, softcap, return_softmax_lse
    asked = None
    if (
        (k is None and v is None and rotary_cos is None and rotary_sin is None)
        and (cache_batch_idx is None and cache_leftpad is None and alibi_slopes is None)
        and (out is None and workspace is None and rotary_interleaved is True)
    ):
        asked = _asked_of(*scores)
        if asked is not None and _run_again is not None:
            found = _run_again(q, k_cache, v_cache, cache_seqlens, block_table, asked)
            if found is not None:
                return found
    turns = rotary_cos, rotary_sin, checked_flag("rotary_interleaved", rotary_interleaved)
    tables = cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes
    caches, own = (k_cache, v_cache), (out, workspace)
    found, options = _attend(q, caches, (k, v), turns, tables, scores, own)
    if asked is not None and origin(q) == "torch":
        _keep_launch(q, k_cache, v_cache, cache_seqlens, block_table, asked, options)
    return found


def _attend(
    q: Array,
    caches: tuple[Array, Array],
    new: tuple[Array, Array],
    turns: tuple[Array, Array, bool],
    tables: tuple[Array, Array, Array, Array, Array],
    scores: tuple[object, object, object, object, object],
    own: tuple[Array, Array],
) -> tuple[ArrayOrTuple, CallOptions]:
    """The result and the options under flashsmith's names; arguments as the caller gave them."""
    cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes = tables
    k_cache, v_cache = caches
    shapes = _shapes_of(q, k_cache, v_cache)
    is_known = (
        cache_batch_idx is None
        and block_table is None
        and cache_leftpad is None
        and _is_known(cache_seqlens, shapes)
    )
    if cache_leftpad is not None and (cache_batch_idx is not None or block_table is not None):
        _refuse_leftpad("block_table" if cache_batch_idx is None else "cache_batch_idx")
    options = _options_of(*scores, is_known)
    ops = _Operations(q, shapes[0][0])
    table = _table(ops, cache_batch_idx, block_table)
    lengths = ops.lengths("cache_seqlens", cache_seqlens)
    if new[0] is not None or new[1] is not None:
        _require_new_rows(ops, caches, new, lengths, table)
        q, k = _rotate(ops, q, new[0], turns, lengths, _capacity(k_cache, table), options)
        lengths = _append(ops, q, caches, (k, new[1]), lengths, table, options)
    else:
        require_appended(*turns[:2])
    if is_known:
        k_cache, v_cache, lengths = *_rows(k_cache, v_cache, cache_seqlens, new[0]), None
    named = {
        "block_table": table,
        "k_lengths": lengths,
        "k_starts": ops.lengths("cache_leftpad", cache_leftpad),
        "alibi_slopes": alibi_slopes,
    }
    given = {name: array for name, array in named.items() if array is not None}
    out, workspace = own
    found = attend(q, k_cache, v_cache, options, out=out, tables=given, workspace=workspace)
    return found, options


def _asked_of(
    causal: object, scale: object, window: object, softcap: object, lse: object
) -> Asked | None:
    """What a call asks for, if each has the type that tells it from all others: True == 1 == 1.0.

    None too where every call is to be checked.
    """
    if (
        (type(causal) is bool and type(lse) is bool and type(softcap) is float)
        and (scale is None or type(scale) is float)
        and (window is _WHOLE_WINDOW or _are_sides(window))
        and not settings.checks_calls()
    ):
        return "cache", causal, scale, window, softcap, lse
    return None


def _are_sides(window: object) -> bool:
    return type(window) is tuple and len(window) == 2 and {type(side) for side in window} == {int}


_run_again: Callable[[Array, Array, Array, Array, Array, Asked], ArrayOrTuple | None] | None = None


def _keep_launch(
    q: Array, k: Array, v: Array, lengths: Array, table: Array, asked: Asked, options: CallOptions
) -> None:
    """Lets the next such call run without an operator, where this one has run on a GPU."""
    global _run_again
    from flashsmith.torch_op.attention import is_compiling

    # Inside torch.compile a name that changes would make the next call compile again.
    if not is_compiling():
        from flashsmith.torch_op.cache_call import keep, run_again

        keep(q, k, v, lengths, table, asked, options)
        _run_again = run_again


def _options_of(
    causal: object,
    softmax_scale: object,
    window_size: object,
    softcap: object,
    return_softmax_lse: object,
    is_known: bool,
) -> CallOptions:
    """The options, under flashsmith's names."""
    is_plain = softmax_scale is None and softcap == 0 and window_size == _WHOLE_WINDOW
    if is_plain and not is_known:
        options = common_options(causal, None, "bshd", return_softmax_lse)
        if options is not None:
            return options
    causal = checked_flag("causal", causal)
    left, right = window_sides("window_size", window_size)
    return checked_options(
        causal=causal,
        scale=checked_fact("softmax_scale", FACTS["scale"], softmax_scale),
        return_lse=checked_flag("return_softmax_lse", return_softmax_lse),
        window_left=left,
        window_right=None if causal else right,
        softcap=None if softcap == 0 else softcap,
        batch_invariant=is_known,
    )


def _is_known(cache_seqlens: Array, shapes: _Shapes) -> bool:
    """Whether no length has to be read from memory; of few rows they are, in any case."""
    of_q, of_cache = shapes
    is_chunk = of_q[1] * of_q[2] > FEW_ROWS * of_cache[2]
    return cache_seqlens is None or (is_chunk and type(cache_seqlens) is int)


def _rows(k_cache: Array, v_cache: Array, length: int | None, new: Array) -> tuple[Array, Array]:
    """The caches as far as a known length reaches, behind which new rows were written."""
    if length is None:
        return k_cache, v_cache
    rows = max(length + (0 if new is None else int(new.shape[1])), 0)
    return k_cache[:, :rows], v_cache[:, :rows]


def _shapes_of(q: Array, k_cache: Array, v_cache: Array) -> _Shapes:
    """The shapes of q and of both caches; raises unless they have four dimensions each."""
    of_q: tuple[int, ...] = getattr(q, "shape", ())
    of_k: tuple[int, ...] = getattr(k_cache, "shape", ())
    of_v: tuple[int, ...] = getattr(v_cache, "shape", ())
    if len(of_q) == len(of_k) == 4 and of_k == of_v:
        return of_q, of_k
    for name, shape in (("q", of_q), ("k_cache", of_k), ("v_cache", of_v)):
        if len(shape) != 4:
            raise ArgumentError(
                f"{name} has shape {tuple(shape)}; it must have four dimensions: (batch or pages, "
                f"rows, heads, d_head)."
            )
    if of_k[:3] == of_v[:3]:
        require_one_width(int(of_k[3]), int(of_v[3]))
    raise ArgumentError(
        f"k_cache has shape {tuple(of_k)} and v_cache {tuple(of_v)}; they must be equal."
    )


class _Operations:
    """What is done with indices, in the library of q and where q lies."""

    def __init__(self, q: Array, batch: int) -> None:
        self.library, self.batch, self._q = origin(q), batch, q
        if self.library not in ("torch", "numpy"):
            raise Unsupported(
                f"q is an array of {self.library}; flash_attn_with_kvcache takes torch tensors and "
                f"NumPy arrays; call flash_attention(..., k_lengths=, block_table=)."
            )

    @property
    def module(self) -> Any:  # Any: two libraries with the same names for these
        """The library itself."""
        if self.library == "torch":
            import torch

            return torch
        return np

    @property
    def _where(self) -> dict[str, object]:
        return {"device": self._q.device} if self.library == "torch" else {}

    def lengths(self, name: str, given: Array) -> Array:
        """A number for each sequence, from one for all of them; None stays None."""
        if given is None:
            return None
        if isinstance(given, int) and not isinstance(given, bool):
            length = min(max(given, 0), _MOST_KEYS)
            return self.module.full((self.batch,), length, dtype=self.int32, **self._where)
        return self.indices(name, given, 1)

    def indices(self, name: str, given: Array, dimensions: int) -> Array:
        """An index for each sequence of q, or in two dimensions a row of them."""
        if origin(given) != self.library:
            raise ArgumentTypeError(
                f"q is of {self.library} and {name} of type {type(given).__name__}; pass both of "
                f"one library."
            )
        if len(given.shape) != dimensions or given.shape[0] != self.batch:
            wanted = f"({self.batch},)" if dimensions == 1 else f"({self.batch}, pages)"
            raise ArgumentError(f"{name} has shape {tuple(given.shape)}; it must be {wanted}.")
        kind = str(given.dtype).removeprefix("torch.")
        if not kind.removeprefix("u").startswith("int"):
            raise ArgumentTypeError(f"{name} is {kind}; it must be int32.")
        return given

    def longer(self, lengths: Array, rows: int) -> Array:
        """The lengths once so many rows are behind each; what kernels would clamp is clamped."""
        wide = lengths if lengths.dtype == self.int32 else self._long(lengths)
        return wide.clip(0, _MOST_KEYS - rows) + rows

    def address(self, array: Array) -> int:
        """Where an array begins."""
        return int(array.data_ptr() if self.library == "torch" else array.ctypes.data)

    def require_writable(self, name: str, new: Array, cache: Array) -> None:
        """Raises unless rows of `new` can be written into the cache as they are."""
        where = [getattr(array, "device", "cpu") for array in (new, cache)]
        for what, own, other in (
            ("type", new.dtype, cache.dtype),
            ("device", *where),
            ("library", origin(new), origin(cache)),
        ):
            if own != other:
                raise ArgumentTypeError(
                    f"{name} has {what} {own} and {name}_cache {other}; convert the new rows."
                )
        strides = cache.stride() if self.library == "torch" else cache.strides
        is_shared = 0 not in cache.shape and any(
            n > 1 and s == 0 for n, s in zip(cache.shape, strides, strict=True)
        )
        if is_shared or (self.library == "numpy" and not cache.flags.writeable):
            raise ArgumentError(
                f"{name}_cache is expanded or read-only and new rows are to be written into it; "
                f"pass memory of its own."
            )

    @property
    def int32(self) -> object:
        """The library's type of 32-bit integers."""
        return self.module.int32

    def positions(self, lengths: Array, new: int, rows: int) -> Array:
        """Where new rows go: behind those of each sequence, inside its `rows`."""
        behind = self.module.arange(new, dtype=self.int32, **self._where)
        return (self._long(lengths)[:, None] + behind[None]).clip(0, max(rows - 1, 0))

    def sequences(self) -> Array:
        """The sequences in order, a row each."""
        return self.module.arange(self.batch, **self._where)[:, None]

    def entries(self, table: Array, pages: Array, pool: int) -> Array:
        """Entries of a table at these pages of each sequence, inside the pool."""
        take = getattr(self.module, "take_along_dim", None) or np.take_along_axis
        return take(self._long(table), pages, 1).clip(0, max(pool - 1, 0))

    def _long(self, indices: Array) -> Array:
        return indices.long() if self.library == "torch" else indices.astype(np.int64)


def _refuse_leftpad(beside: str) -> None:
    raise Unsupported(
        f"cache_leftpad and {beside} are both given; no kernel that reads a cache by a table skips "
        f"the first rows of its sequences; store sequences without padding, or pass "
        f"{'k_cache[cache_batch_idx]' if beside == 'cache_batch_idx' else 'a contiguous cache'}."
    )


def _table(ops: _Operations, batch_idx: Array, block_table: Array) -> Array:
    """The table of pages; a sequence of the cache is one page where indices name it."""
    if batch_idx is None:
        return None if block_table is None else ops.indices("block_table", block_table, 2)
    if block_table is not None:
        raise ArgumentError(
            "cache_batch_idx and block_table are both given; a table says where each sequence "
            "lies; drop cache_batch_idx."
        )
    return ops.indices("cache_batch_idx", batch_idx, 1).reshape(-1, 1)


def _require_new_rows(
    ops: _Operations,
    caches: tuple[Array, Array],
    new: tuple[Array, Array],
    lengths: Array,
    table: Array,
) -> None:
    """Raises, before anything is written, unless new rows can be written behind the others."""
    k_cache = caches[0]
    rows = new[0].shape[1] if len(getattr(new[0], "shape", ())) == 4 else 0
    wanted = (ops.batch, rows, *k_cache.shape[2:])
    for name, array, cache in zip(("k", "v"), new, caches, strict=True):
        if tuple(getattr(array, "shape", ())) != wanted:
            shape = tuple(array.shape) if hasattr(array, "shape") else array
            raise ArgumentError(
                f"{name} has shape {shape}; new rows of k and v must both be "
                f"(batch, new rows, kv heads, d_head), as the cache has them: {wanted}."
            )
        ops.require_writable(name, array, cache)
    if lengths is None:
        raise ArgumentError(
            "k and v are given and cache_seqlens is not; pass how many keys each sequence has "
            "before them."
        )
    if ops.address(caches[0]) == ops.address(caches[1]) and 0 not in k_cache.shape:
        raise ArgumentError(
            "k_cache and v_cache are the same memory and k and v are given, of which one would be "
            "written over the other; pass two caches."
        )
    if table is None and k_cache.shape[0] != ops.batch:
        raise ArgumentError(
            f"q has batch {ops.batch} and the caches have {k_cache.shape[0]} sequences; they must "
            f"be equal, or cache_batch_idx says which sequences are meant."
        )
    if rows and not (k_cache.shape[0] and k_cache.shape[1] and (table is None or table.shape[1])):
        raise ArgumentError(
            f"k has {rows} new rows and the caches, of shape {tuple(k_cache.shape)}, have no room; "
            f"pass larger ones."
        )


def _look_into(
    q: Array, k_cache: Array, options: CallOptions, table: Array, lengths: tuple[Array, Array]
) -> None:
    """Holds the call, if FLASHSMITH_CHECK asks for it, before new rows are written."""
    for numbers in lengths if settings.checks_calls() else ():
        read = {"k_lengths": numbers} | ({} if table is None else {"block_table": table})
        require_contents(q, k_cache, options, read)


def _capacity(k_cache: Array, table: Array) -> int:
    """Keys that a sequence of the cache has room for."""
    return int(k_cache.shape[1] if table is None else k_cache.shape[1] * table.shape[1])


def _rotate(
    ops: _Operations,
    q: Array,
    k: Array,
    turns: tuple[Array, Array, bool],
    lengths: Array,
    capacity: int,
    options: CallOptions,
) -> tuple[Array, Array]:
    """Query rows and new keys, rotated by where they stand; the same where no table is given."""
    cos, sin, interleaved = turns
    if cos is None and sin is None:
        return q, k
    checked = rotation(q, cos, sin, capacity)
    sides = (options.fact("window_left"), options.fact("window_right"))
    # flash-attn's rule: rows that all see the same keys stand at one position, the first.
    is_one_place = not options.fact("causal") and sides == (None, None)
    known = int(cos.shape[0])
    at_q = ops.positions(lengths, 1 if is_one_place else q.shape[1], known)
    at_k = ops.positions(lengths, k.shape[1], known)
    turn = partial(rotated, ops.module, tables=checked, interleaved=interleaved)
    return turn(q, at=at_q), turn(k, at=at_k)


def _append(
    ops: _Operations,
    q: Array,
    caches: tuple[Array, Array],
    new: tuple[Array, Array],
    before: Array,
    table: Array,
    options: CallOptions,
) -> Array:
    """Writes new rows behind those that each sequence has; the lengths after it."""
    k_cache, rows = caches[0], int(new[0].shape[1])
    lengths = ops.longer(before, rows)
    _look_into(q, k_cache, options, table, (before, lengths))
    if not rows:
        return lengths
    page = k_cache.shape[1]
    at = ops.positions(before, rows, _capacity(k_cache, table))
    first = ops.sequences() if table is None else ops.entries(table, at // page, k_cache.shape[0])
    for cache, array in zip(caches, new, strict=True):
        cache[first, at % page] = array
    return lengths
