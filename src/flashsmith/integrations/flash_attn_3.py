"""flash_attn_interface: FlashAttention-3's functions, whose signatures differ from version 2's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from torch import Tensor

from flashsmith.api.arrays.library import ArrayOrTuple
from flashsmith.api.caches.kv_cache import flash_attn_with_kvcache as cached
from flashsmith.api.dropins import flash_attn_func as dense
from flashsmith.api.dropins import flash_attn_varlen_func as packed
from flashsmith.base.errors import ArgumentTypeError, Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.integrations.chunks import chunk_boundaries, equal_boundaries

# Arguments in their order with their defaults; `...` for those that have none.
_Declared = dict[str, Foreign]
_SCALES: _Declared = {"q_descale": None, "k_descale": None, "v_descale": None}
_MASKS: _Declared = {"window_size": (-1, -1), "attention_chunk": 0, "softcap": 0.0}
_SCORES: _Declared = {"softmax_scale": None, "causal": False}
_RUN: _Declared = {"pack_gqa": None, "deterministic": False, "sm_margin": 0}
_TENSORS: _Declared = dict.fromkeys(("q", "k", "v"), ...)
_BOUNDS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_REST: _Declared = (_SCORES | {"qv": None} | _SCALES | _MASKS | {"num_splits": 1} | _RUN) | {
    "return_attn_probs": False
}
_DENSE: _Declared = _TENSORS | _REST
_PACKED: _Declared = (
    _TENSORS | dict.fromkeys(_BOUNDS, ...) | {"seqused_q": None, "seqused_k": None} | _REST
)
_OF_CACHES = (
    *("k", "v", "qv", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx"),
    *("cache_leftpad", "page_table", "cu_seqlens_q", "cu_seqlens_k_new", "max_seqlen_q"),
    "rotary_seqlens",
)
_CACHED: _Declared = (
    dict.fromkeys(("q", "k_cache", "v_cache"), ...)
    | dict.fromkeys(_OF_CACHES)
    | (_SCALES | _SCORES | _MASKS)
    | {"rotary_interleaved": True, "scheduler_metadata": None, "num_splits": 0, "pack_gqa": None}
    | {"sm_margin": 0, "return_softmax_lse": False}
)
# What changes a result and is refused unless it is neutral.
_REFUSED = {
    "qv": "a second product of queries and values",
    **dict.fromkeys(_SCALES, "FP8"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k_new"), "packed rows on a cache"),
    "rotary_seqlens": "rotary embeddings at positions of their own",
}
# How its kernels are to be run, which says nothing of the result.
_HINTS = ("num_splits", "pack_gqa", "sm_margin", "scheduler_metadata")


def flash_attn_func(*args: Foreign, **kwargs: Foreign) -> ArrayOrTuple:
    """(batch, sequence, heads, d_head); with `return_attn_probs`, (out, lse)."""
    asked = _asked("flash_attn_func", _DENSE, args, kwargs, _REFUSED)
    chunk = _chunk_of(asked)
    if not chunk:
        return _with_lse(dense(**asked))
    q, k = asked["q"], asked["k"]
    (batch, rows), keys = q.shape[:2], k.shape[1]
    of_q, of_k = (equal_boundaries(batch, length, q.device) for length in (rows, keys))
    asked |= {name: asked[name].flatten(0, 1) for name in ("q", "k", "v")}
    found = _with_lse(packed(**asked, **_of_chunks(of_q, of_k, batch * keys, chunk)))
    if not isinstance(found, tuple):
        return found.unflatten(0, (batch, rows))
    out, lse = found
    return out.unflatten(0, (batch, rows)), lse.unflatten(1, (batch, rows)).transpose(0, 1)


def flash_attn_varlen_func(*args: Foreign, **kwargs: Foreign) -> ArrayOrTuple:
    """Packed sequences, (rows, heads, d_head); with `return_attn_probs`, (out, lse)."""
    own = {name: what for name, what in _REFUSED.items() if not name.startswith("cu_seqlens")}
    asked = _asked("flash_attn_varlen_func", _PACKED, args, kwargs, own)
    chunk = _chunk_of(asked)
    if chunk:
        used = [name for name in ("seqused_q", "seqused_k") if asked[name] is not None]
        if used:
            raise Unsupported(
                f"attention_chunk and {used[0]} are both given; flashsmith does not do both; pack "
                f"sequences without padding."
            )
        of_q, of_k = (asked.pop(name) for name in ("cu_seqlens_q", "cu_seqlens_k"))
        del asked["max_seqlen_q"], asked["max_seqlen_k"]
        asked |= _of_chunks(of_q, of_k, len(asked["k"]), chunk)
    return _with_lse(packed(**asked))


def _chunk_of(asked: dict[str, Foreign]) -> int:
    """Takes the length of chunks out of the arguments; 0 where there are none."""
    chunk = asked.pop("attention_chunk")
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 0:
        raise ArgumentTypeError(
            f"attention_chunk is {chunk!r}; it must be how many keys a chunk has, or 0 for none."
        )
    return chunk


def _of_chunks(of_q: Tensor, of_k: Tensor, total_keys: int, chunk: int) -> dict[str, Foreign]:
    """The arguments that make each chunk a sequence."""
    found = chunk_boundaries(of_q, of_k, total_keys, chunk)
    return dict(zip(("cu_seqlens_q", "cu_seqlens_k"), found, strict=True))


def flash_attn_with_kvcache(*args: Foreign, **kwargs: Foreign) -> ArrayOrTuple:
    """Query rows on a cache; the table of pages is called `page_table`."""
    refused = _REFUSED | {"attention_chunk": "attention in chunks on a cache"}
    asked = _asked("flash_attn_with_kvcache", _CACHED, args, kwargs, refused)
    del asked["max_seqlen_q"]
    return cached(block_table=asked.pop("page_table"), **asked)


# Functions of the module that flashsmith has no counterpart of, and what to call instead.
_LACKING = {
    "flash_attn_qkvpacked_func": "unbind qkv and call flash_attn_func",
    "flash_attn_combine": "let flash_attn_with_kvcache combine its splits itself",
    "get_scheduler_metadata": "leave scheduler_metadata out",
}


def _refusing(name: str, instead: str) -> Callable[..., ArrayOrTuple]:
    """A function that can be imported, so that code which never calls it runs."""

    def refuse(*args: Foreign, **kwargs: Foreign) -> ArrayOrTuple:
        raise Unsupported(f"{name} was called; flashsmith does not have it; {instead}.")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


flash_attn_qkvpacked_func, flash_attn_combine, get_scheduler_metadata = (
    _refusing(name, instead) for name, instead in _LACKING.items()
)


def _asked(
    function: str,
    declared: _Declared,
    args: tuple[Foreign, ...],
    kwargs: dict[str, Foreign],
    refused: Mapping[str, str],
) -> dict[str, Foreign]:
    """Every argument that flashsmith's function takes, by name."""
    found = {**declared, **dict(zip(declared, args, strict=False)), **kwargs}
    unknown = [name for name in kwargs if name not in declared]
    missing = [name for name, value in found.items() if value is ...]
    if unknown or missing or len(args) > len(declared):
        wrong = (
            f"without {missing[0]}" if missing else f"with {(*unknown, 'too many arguments')[0]}"
        )
        raise ArgumentTypeError(
            f"{function} was called {wrong}; it takes {', '.join(declared)}, as FlashAttention-3's."
        )
    for name, what in refused.items():
        value = found.pop(name, None)
        is_zero = isinstance(value, int | float) and value == 0
        if value is not None and not is_zero:
            raise Unsupported(
                f"{name} is given; flashsmith does not do {what}; leave it at its default."
            )
    return {name: value for name, value in found.items() if name not in _HINTS}


def _with_lse(found: ArrayOrTuple) -> ArrayOrTuple:
    """Version 2 gives probabilities behind the log-sum-exp, where there are any."""
    return found[:2] if isinstance(found, tuple) else found


def _declare(function: Callable[..., ArrayOrTuple], declared: _Declared) -> None:
    """Lets whoever inspects the function, as transformers does, see its arguments."""
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if default is ... else default,
            )
            for name, default in declared.items()
        ]
    )


for _function, _declared in (
    (flash_attn_func, _DENSE),
    (flash_attn_varlen_func, _PACKED),
    (flash_attn_with_kvcache, _CACHED),
):
    _declare(_function, _declared)
