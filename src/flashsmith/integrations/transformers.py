"""transformers: `register()` makes attn_implementation="flashsmith" work for decoder models."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from flashsmith.api.dropins import scaled_dot_product_attention
from flashsmith.base.errors import Unsupported

NAME = "flashsmith"
_OLDEST = "4.53"  # the first version whose attention masks are made by a registered function
_INSTEAD = 'use attn_implementation="sdpa"'
# Arguments of other attention functions that change the result; None and 0 are neutral.
_REFUSED = {
    "softcap": "capping of scores",
    "s_aux": "attention sinks",
    "position_bias": "a bias of scores",
    "cache": "a paged cache",
    "cu_seq_lens_q": "packed sequences",
}


def register(name: str = NAME) -> None:
    """Lets `from_pretrained(..., attn_implementation="flashsmith")` use flashsmith's kernels.

    Prefill runs causal, a single query sees every key. Masks that are not plain causal (padding,
    sliding windows shorter than the sequence, packed sequences) are refused when the model runs.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import causal_mask_function, sdpa_mask
    except ImportError as error:
        raise Unsupported(
            f"transformers cannot be used ({error}); install version {_OLDEST} or later."
        ) from error
    AttentionInterface.register(name, attention_forward)

    def mask(**asked: Any) -> Tensor | None:  # Any: what each version asks by
        # torch's rule for its own attention is ours: no mask is made where is_causal says it all.
        # While torch.compile traces, that rule always makes one; a plain prefill needs none there.
        return None if _is_plain_prefill(asked, causal_mask_function) else sdpa_mask(**asked)

    AttentionMaskInterface.register(name, mask)
    _spare_flash_attn(name)


def _is_plain_prefill(
    asked: dict[str, Any],  # Any: as above
    causal_mask_function: object,
) -> bool:
    """Whether a mask is wanted that `is_causal` states in full: every query at its own key."""
    # Versions 4 give the positions of the queries in place of their number.
    q_length = asked["q_length"] if "q_length" in asked else asked["cache_position"].shape[0]
    return (
        q_length == asked["kv_length"]
        and asked.get("attention_mask") is None
        and asked.get("local_size") is None
        and asked.get("mask_function") is causal_mask_function
        and bool(asked.get("allow_is_causal_skip", False))
    )


def _spare_flash_attn(name: str) -> None:
    """Keeps transformers from loading the flash-attn package for us.

    Some versions take every implementation with "flash" in its name for one of that package and
    load it when a model is made (seen in 5.22).
    """
    from transformers import modeling_utils

    load = getattr(modeling_utils, "lazy_import_flash_attention", None)
    if load is None:
        return

    def load_unless_ours(implementation: str | None, *args: object, **kwargs: object) -> object:
        return None if implementation == name else load(implementation, *args, **kwargs)

    modeling_utils.lazy_import_flash_attention = load_unless_ours


# Any: what models pass to every attention function, in each version of transformers something more.
def attention_forward(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: (batch, heads, sequence, d_head) in, heads inside out."""
    if attention_mask is not None:
        raise Unsupported(
            f"the model made a mask of shape {tuple(attention_mask.shape)} (for padding, "
            f"a sliding window, or several tokens behind cached ones); flashsmith does causal and "
            f"full attention; pass inputs without padding, or {_INSTEAD}."
        )
    if dropout:
        raise Unsupported(
            f"attention dropout is {dropout}; flashsmith has none yet; call model.eval(), or "
            f"{_INSTEAD}."
        )
    for argument, what in _REFUSED.items():
        if others.get(argument) is not None:
            raise Unsupported(f"{argument} is given; flashsmith does not do {what}; {_INSTEAD}.")
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    # A single query stands behind all keys; several begin at the first key, as in torch.
    out = scaled_dot_product_attention(
        query,
        key,
        value,
        is_causal=query.shape[2] > 1 and is_causal,
        scale=scaling,
        enable_gqa=True,
    )
    return out.transpose(1, 2).contiguous(), None
