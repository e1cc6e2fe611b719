"""transformers: `register()` makes attn_implementation="flashsmith" work for decoder models."""

from __future__ import annotations

import functools

from torch import Tensor
from torch.nn import Module

from flashsmith.api.attention import flash_attention
from flashsmith.api.dropins import scaled_dot_product_attention
from flashsmith.base.errors import ArgumentTypeError, Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.integrations.mask_causes import CAUSE, cause_of, is_plain_prefill

NAME = "flashsmith"
# What a model's configuration holds in its place: transformers takes every name with "flash" in it
# for one of the flash-attn package, and loads or swaps implementations by it (seen in 5.22).
INSIDE = "smith_attention"
_OLDEST = "4.53"  # the first version whose attention masks are made by a registered function
# Arguments of other attention functions that change the result; None and 0 are neutral.
_REFUSED = {
    "position_bias": "a bias of scores",
    "cache": "a paged cache",
    "cu_seq_lens_q": "packed sequences",
}
_without_sdpa: set[type] = set()  # classes of configurations whose models refuse it
_GATE = "_check_and_adjust_attn_implementation"


def register(name: str = NAME) -> None:
    """Lets `from_pretrained(..., attn_implementation="flashsmith")` use flashsmith's kernels.

    Prefill runs causal, also with the model's sliding window, cap and sinks; a single query sees
    every key. Masks that say more (padding, packed sequences) are refused when the model runs.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import causal_mask_function, sdpa_mask
    except ImportError as error:
        raise Unsupported(
            f"transformers cannot be used ({error}); install version {_OLDEST} or later."
        ) from error

    def mask(**asked: Foreign) -> Tensor | None:
        # torch's rule for its own attention is ours: no mask is made where is_causal says it all.
        # While torch.compile traces, that rule always makes one; a plain prefill needs none there.
        if is_plain_prefill(asked, causal_mask_function):
            return None  # a window is said by the model's `sliding_window`
        made: Tensor | None = sdpa_mask(**asked)
        if made is not None:
            setattr(made, CAUSE, cause_of(asked, causal_mask_function))
        return made

    for known in (name, INSIDE):
        AttentionInterface.register(known, attention_forward)
        AttentionMaskInterface.register(known, mask)
    _take_meaning_from(name)
    _spare_flash_attn(name)


def _take_meaning_from(name: str) -> None:
    """Lets every model check, and keep, a name that nothing is read into."""
    from transformers import modeling_utils

    model_class = getattr(modeling_utils, "PreTrainedModel", None)
    check = getattr(model_class, _GATE, None)
    if model_class is None or check is None or hasattr(check, "__wrapped__"):
        return  # a version without this check, or it is done

    @functools.wraps(check)
    def checked(
        self: Foreign, attn_implementation: str | None, *args: Foreign, **kwargs: Foreign
    ) -> Foreign:
        is_ours = attn_implementation in (name, INSIDE)
        if is_ours and not getattr(self, "_supports_sdpa", True):
            _without_sdpa.add(type(self.config))
        return check(self, INSIDE if is_ours else attn_implementation, *args, **kwargs)

    setattr(model_class, _GATE, checked)


def _spare_flash_attn(name: str) -> None:
    """Keeps versions without that check from loading the flash-attn package for us."""
    from transformers import modeling_utils

    load = getattr(modeling_utils, "lazy_import_flash_attention", None)
    if load is None:
        return

    def load_unless_ours(implementation: str | None, *args: object, **kwargs: object) -> object:
        return None if implementation == name else load(implementation, *args, **kwargs)

    modeling_utils.lazy_import_flash_attention = load_unless_ours


# `others` is what models pass to every attention function; each version of transformers adds some.
def attention_forward(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Foreign,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: (batch, heads, sequence, d_head) in, heads inside out."""
    if attention_mask is not None:
        raise Unsupported(
            f"the model made a mask of shape {tuple(attention_mask.shape)}, "
            f"{cause_of_mask(attention_mask)}; flashsmith does causal and full attention; "
            f"{_instead(module)}."
        )
    if dropout:
        raise Unsupported(
            f"attention dropout is {dropout}; flashsmith has none yet; call model.eval(), or "
            f"{_instead(module)}."
        )
    for argument, what in _REFUSED.items():
        if others.get(argument) is not None:
            raise Unsupported(
                f"{argument} is given; flashsmith does not do {what}; {_instead(module)}."
            )
    _require_half(query)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    # A single query stands behind all keys; several begin at the first key, as in torch.
    is_causal = query.shape[2] > 1 and is_causal
    facts = _facts_of(module, query, key, others)
    if "window_left" in facts and not is_causal:
        raise Unsupported(
            f"the model has a sliding window and looks at later tokens too; flashsmith takes the "
            f"windows of causal models; {_instead(module)}."
        )
    if not facts:
        out = scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scaling, enable_gqa=True
        )
    else:
        if is_causal:
            facts["diagonal"] = 0
        out = flash_attention(
            query, key, value, causal=is_causal, scale=scaling, layout="bhsd", **facts
        )
    return out.transpose(1, 2).contiguous(), None


def _facts_of(
    module: Module, query: Tensor, key: Tensor, others: dict[str, Foreign]
) -> dict[str, Foreign]:
    """A model's cap, sinks and window, where they change something."""
    facts: dict[str, Foreign] = {}
    if others.get("softcap"):
        facts["softcap"] = float(others["softcap"])
    if others.get("s_aux") is not None:
        facts["sinks"] = others["s_aux"]
    window = others.get("sliding_window")
    if window is not None and key.shape[2] > window:
        if query.shape[2] != key.shape[2]:
            raise Unsupported(
                f"the model has a sliding window of {window}, and {query.shape[2]} new tokens "
                f"stand on {key.shape[2]} keys without a mask; flashsmith takes windows where all "
                f"tokens are new; {_instead(module)}."
            )
        facts["window_left"] = int(window) - 1  # a token's own key is one of the window
    return facts


def cause_of_mask(attention_mask: Tensor) -> str:
    """Why a mask was made, and what to do against it; one that we did not make is the caller's."""
    own = "which the caller passed whole: pass none, or a 2-D one without zeros"
    return str(getattr(attention_mask, CAUSE, own))


def _require_half(query: Tensor) -> None:
    import torch

    if query.dtype is torch.float32 and not torch.is_autocast_enabled(query.device.type):
        raise ArgumentTypeError(
            "the model is float32; the kernels take float16 and bfloat16; load it with "
            "dtype=torch.bfloat16, or call it under torch.autocast."
        )


def _instead(module: Module) -> str:
    """An implementation that the model takes."""
    name = "eager" if type(getattr(module, "config", None)) in _without_sdpa else "sdpa"
    return f'use attn_implementation="{name}"'
