"""The calls people already make, with their ecosystems' signatures, layouts and meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.attention import attend
from flashsmith.api.options import (
    CallOptions,
    checked_fact,
    checked_flag,
    checked_options,
    common_options,
)
from flashsmith.api.refusals import refused
from flashsmith.api.tables import NO_TABLES, window_sides
from flashsmith.base.errors import ArgumentError, FlashsmithError, Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.problem.attention import FACTS
from flashsmith.problem.signature import BIAS

_WHOLE_WINDOW = -1


# Arguments of type object are only accepted when neutral.
def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (_WHOLE_WINDOW, _WHOLE_WINDOW),
    softcap: float = 0.0,
    alibi_slopes: Array = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> ArrayOrTuple:
    """flash-attn's `flash_attn_func`: (batch, sequence, heads, d_head), causal bottom-right.

    With `return_attn_probs`, (out, lse, None): the probabilities exist only for dropout.
    Both passes give the same bits every time, so `deterministic` changes nothing. Slopes of ALiBi
    are float32, (heads,) or (batch, heads); a score loses slope · |distance|, causal or not.
    """
    try:
        tables = NO_TABLES if alibi_slopes is None else {"alibi_slopes": alibi_slopes}
        options = _flash_attn_options(
            dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
        )
        result = attend(q, k, v, options, tables=tables)
        return (*result, None) if return_attn_probs else result
    except FlashsmithError as error:
        return refused(error, q, 3 if return_attn_probs else 1)


def flash_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (_WHOLE_WINDOW, _WHOLE_WINDOW),
    softcap: float = 0.0,
    alibi_slopes: Array = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Array = None,
    seqused_k: Array = None,
    out: Array = None,
    workspace: Array = None,
    seqused_q: Array = None,
    leftpad_k: Array = None,
) -> ArrayOrTuple:
    """flash-attn's `flash_attn_varlen_func`: sequences packed as (rows, heads, d_head).

    `cu_seqlens_q` and `cu_seqlens_k` are (sequences + 1,) int32 beside the arrays, and never read
    by the host. The longest lengths say nothing that they do not: any number is taken. With
    `return_attn_probs`, (out, lse, None), lse being (heads, rows). `seqused_q`,
    `seqused_k` and `leftpad_k`, (sequences,) int32, leave rows and keys of each sequence out: those
    behind the first two, and before the last.

    With `block_table`, (sequences, pages of a sequence) int32, k and v are pools of pages, (pages,
    rows of a page, heads, d_head); `seqused_k`, (sequences,) int32, or else the differences of
    `cu_seqlens_k` say how many keys each sequence has. A request's bits then depend on its own
    sequence, whatever is packed beside it.
    """
    try:
        del max_seqlen_q, max_seqlen_k
        used = {"q_lengths": seqused_q, "k_lengths": seqused_k, "k_starts": leftpad_k}
        tables = _packed_tables(cu_seqlens_q, cu_seqlens_k, block_table, used)
        if alibi_slopes is not None:
            tables["alibi_slopes"] = alibi_slopes
        options = _flash_attn_options(
            dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
        )
        result = attend(q, k, v, options, out=out, tables=tables, workspace=workspace)
        return (*result, None) if return_attn_probs else result
    except FlashsmithError as error:
        return refused(error, q, 3 if return_attn_probs else 1)


def _packed_tables(
    cu_seqlens_q: Array, cu_seqlens_k: Array, block_table: Array, used: Mapping[str, Array]
) -> dict[str, Array]:
    """Where sequences begin and what each uses of its rows and keys, under flashsmith's names."""
    lengths = used["k_lengths"]
    if block_table is not None and lengths is None and cu_seqlens_k is not None:
        lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    named = {**used, "cu_seqlens_q": cu_seqlens_q, "k_lengths": lengths, "block_table": block_table}
    if block_table is None:
        named["cu_seqlens_k"] = cu_seqlens_k
    return {name: table for name, table in named.items() if table is not None}


def _flash_attn_options(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
) -> CallOptions:
    """The options of flash-attn's functions, under their names."""
    causal = checked_flag("causal", causal)
    checked_flag("deterministic", deterministic)
    if dropout_p != 0:
        raise _unsupported(f"dropout_p is {dropout_p}", "dropout", "pass 0.0")
    left, right = window_sides("window_size", window_size)
    is_plain = left is None and (right is None or (causal and right == 0)) and softcap == 0
    options = None
    if softmax_scale is None and is_plain:
        options = common_options(causal, None, "bshd", return_attn_probs)
    if options is None:
        options = checked_options(
            causal=causal,
            scale=checked_fact("softmax_scale", FACTS["scale"], softmax_scale),
            return_lse=checked_flag("return_attn_probs", return_attn_probs),
            window_left=left,
            window_right=None if causal else right,
            softcap=None if softcap == 0 else softcap,
        )
    return options


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """torch's `scaled_dot_product_attention`: (batch, heads, sequence, d_head), causal top-left.

    `attn_mask` is broadcastable to (batch, heads, queries, keys), as a bool (True: the row sees the
    key) or added to the scores; it is read where it lies. A row that sees no key gives 0. Three
    dimensions, (heads, sequence, d_head), are a batch of one, as in torch.
    """
    try:
        is_causal = checked_flag("is_causal", is_causal)
        diagonal, tables = 0 if is_causal else None, NO_TABLES
        if attn_mask is not None and is_causal:
            raise ArgumentError("attn_mask and is_causal are both given; drop one of them.")
        if _is_causal_bias(attn_mask):
            is_causal, diagonal = True, _diagonal_of(attn_mask, query, key)
        elif attn_mask is not None:
            tables = {BIAS: attn_mask}
        if dropout_p != 0:
            raise _unsupported(f"dropout_p is {dropout_p}", "dropout", "pass 0.0")
        options = common_options(is_causal, diagonal, "bhsd", False) if scale is None else None
        if options is None:
            options = checked_options(
                causal=is_causal, diagonal=diagonal, scale=scale, layout="bhsd"
            )
        q_shape: tuple[int, ...] = getattr(query, "shape", ())
        k_shape: tuple[int, ...] = getattr(key, "shape", ())
        v_shape: tuple[int, ...] = getattr(value, "shape", ())
        if not checked_flag("enable_gqa", enable_gqa):
            _require_equal_heads(q_shape, k_shape, v_shape)
        if len(q_shape) == len(k_shape) == len(v_shape) == 3:
            return attend(query[None], key[None], value[None], options, tables=tables)[0]
        return attend(query, key, value, options, tables=tables)
    except FlashsmithError as error:
        return refused(error, query)


def _is_causal_bias(attn_mask: object) -> bool:
    """Whether torch's causal_lower_right or causal_upper_left made it; torch may be absent."""
    kind = type(attn_mask)
    return kind.__name__ == "CausalBias" and kind.__module__.startswith("torch.")


def _diagonal_of(bias: Foreign, query: Array, key: Array) -> int | None:
    """The diagonal that a mask object of torch means: None is bottom-right, 0 top-left."""
    made, met = (bias.seq_len_q, bias.seq_len_kv), (query.shape[-2], key.shape[-2])
    if made != met:
        raise ArgumentError(
            f"attn_mask was made for {made[0]} queries and {made[1]} keys, and there are {met[0]} "
            f"and {met[1]}; make it for these."
        )
    return None if bias.variant.name == "LOWER_RIGHT" else 0


def _require_equal_heads(*shapes: tuple[int, ...]) -> None:
    heads = [shape[-3] for shape in shapes if len(shape) > 2]
    if heads and heads.count(heads[0]) != len(heads):
        raise ArgumentError(
            f"query, key and value have {heads[0]}, {heads[1]} and {heads[-1]} heads; pass "
            f"enable_gqa=True to share those of key and value."
        )


def _unsupported(given: str, what: str, advice: str) -> Unsupported:
    return Unsupported(f"{given}; flashsmith does not support {what} yet; {advice}.")
