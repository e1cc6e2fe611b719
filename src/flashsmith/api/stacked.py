"""flash-attn's functions for tensors that hold q, k and v, or k and v, in one: views are taken."""

from __future__ import annotations

from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.dropins import flash_attn_func, flash_attn_varlen_func
from flashsmith.base.errors import ArgumentError
from flashsmith.base.loose_types import Foreign


def flash_attn_qkvpacked_func(qkv: Array, *given: Foreign, **more: Foreign) -> ArrayOrTuple:
    """flash-attn's: `flash_attn_func` of qkv, (batch, sequence, 3, heads, d_head)."""
    _require_stack("qkv", qkv, ("batch", "sequence", "3", "heads", "d_head"), 3)
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *given, **more)


def flash_attn_kvpacked_func(q: Array, kv: Array, *given: Foreign, **more: Foreign) -> ArrayOrTuple:
    """flash-attn's: `flash_attn_func` of q and kv, (batch, sequence, 2, heads, d_head)."""
    _require_stack("kv", kv, ("batch", "sequence", "2", "heads", "d_head"), 2)
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *given, **more)


def flash_attn_varlen_qkvpacked_func(
    qkv: Array, cu_seqlens: Array, max_seqlen: int, *given: Foreign, **more: Foreign
) -> ArrayOrTuple:
    """flash-attn's: `flash_attn_varlen_func` of qkv, (rows, 3, heads, d_head)."""
    _require_stack("qkv", qkv, ("rows", "3", "heads", "d_head"), 3)
    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
    boundaries = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *boundaries, *given, **more)


def flash_attn_varlen_kvpacked_func(
    q: Array, kv: Array, *given: Foreign, **more: Foreign
) -> ArrayOrTuple:
    """flash-attn's: `flash_attn_varlen_func` of q and kv, (rows, 2, heads, d_head)."""
    _require_stack("kv", kv, ("rows", "2", "heads", "d_head"), 2)
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *given, **more)


def _require_stack(name: str, array: Array, wanted: tuple[str, ...], count: int) -> None:
    shape: tuple[int, ...] = tuple(getattr(array, "shape", ()))
    if len(shape) != len(wanted) or shape[-3] != count:
        raise ArgumentError(f"{name} has shape {shape}; it must be ({', '.join(wanted)}).")
