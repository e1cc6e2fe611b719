"""transformers: `register()` makes attn_implementation="flashsmith" work."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from flashsmith.api.attention import flash_attention
from flashsmith.base.errors import ArgumentTypeError, Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.integrations.model_checks import NO_WEIGHTS, check_model, instead, remember
from flashsmith.integrations.model_masks import PATTERN, mask_maker
from flashsmith.integrations.padded_rows import (
    boundaries,
    boundaries_of_sequences,
    lengths,
    padding_of,
)

NAME = "flashsmith"
# What a model's configuration holds in its place: transformers takes every name with "flash" in it
# for one of the flash-attn package, and loads or swaps implementations by it (seen in 5.22).
INSIDE = "smith_attention"
_OLDEST = "4.53"  # the first version whose attention masks are made by a registered function
# Arguments of other attention functions that change the result; None and 0 are neutral.
_REFUSED = {"cache": "a paged cache"}
_GATE = "_check_and_adjust_attn_implementation"


def register(name: str = NAME) -> None:
    """Lets `from_pretrained(..., attn_implementation="flashsmith")` use flashsmith's kernels.

    Padded batches and packed sequences, windows, caps and sinks, caches and encoders are computed.
    What flashsmith lacks is refused when the model is made, where its configuration tells.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import causal_mask_function, sdpa_mask
    except ImportError as error:
        raise Unsupported(
            f"transformers cannot be used ({error}); install version {_OLDEST} or later."
        ) from error
    for known in (name, INSIDE):
        AttentionInterface.register(known, attention_forward)
        AttentionMaskInterface.register(known, mask_maker(sdpa_mask, causal_mask_function))
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
        if is_ours:
            remember(self)
            check_model(self)
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
    _refuse(module, dropout, others)
    _require_half(query)
    facts: dict[str, Foreign] = _facts_of(others)
    facts["scale"] = query.shape[-1] ** -0.5 if scaling is None else scaling
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    window = others.get("sliding_window")
    pattern = getattr(attention_mask, PATTERN, None)
    if pattern is not None:
        is_causal, window = pattern.causal, pattern.window
    width = value.shape[-1]
    query, key, value = _of_one_width(query, key, value)
    call = _Call(module, query, key, value, is_causal, window, facts, others.get("position_bias"))
    if others.get("cu_seq_lens_q") is not None and others.get("cu_seq_lens_k") is not None:
        out = call.packed(others["cu_seq_lens_q"], others["cu_seq_lens_k"])
    elif attention_mask is None:
        out = call.plain()
    elif attention_mask.dim() == 2 and attention_mask.dtype is not torch.bool:
        ends = boundaries_of_sequences(attention_mask)
        out = call.packed(ends, ends)
    elif attention_mask.dim() == 2:
        out = call.padded(attention_mask)
    else:
        out = call.masked(attention_mask)
    return out[..., :width].contiguous(), None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of attention; each way to compute it gives (batch, rows, heads, d_head)."""

    module: Module
    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    window: int | None
    facts: dict[str, Foreign]
    bias: Tensor | None  # of positions: added to scores

    def plain(self) -> Tensor:
        """A single query stands behind all keys; several begin at the first key, as in torch."""
        several = self.query.shape[2] > 1
        facts = {"diagonal": 0} if several and self.causal else {}
        facts |= self._windowed(self.key.shape[2], self.causal or not several)
        causal = (several and self.causal) or "window_left" in facts
        return self._dense(self.key, self.value, causal, self.bias, facts)

    def padded(self, mask: Tensor) -> Tensor:
        """The mask says which keys are tokens; the last query stands at its last column."""
        padding, (rows, columns) = padding_of(mask), (self.query.shape[2], mask.shape[1])
        key, value = self.key[:, :, :columns], self.value[:, :, :columns]
        facts, bias = self._windowed(columns, self.causal), self.bias
        if bias is not None:
            bias = bias[..., -rows:, :columns]
        if padding.is_full:
            return self._dense(key, value, self.causal, bias, facts)
        if bias is not None:
            return self._dense(key, value, self.causal, _both(mask[:, None, None], bias), facts)
        if self._is_differentiated():  # gradients are those of packed sequences
            found = boundaries(padding, rows, columns, causal=self.causal)
            return self._packed(key, value, found, facts)
        own = lengths(padding, rows, columns, causal=self.causal)
        return self._dense(key, value, self.causal, None, facts | own)

    def masked(self, mask: Tensor) -> Tensor:
        """The mask says for every row and key whether it is seen, or what is added to its score."""
        mask = mask[..., : self.key.shape[2]]
        return self._dense(self.key, self.value, False, _both(mask, self.bias), {})

    def packed(self, of_q: Tensor, of_k: Tensor) -> Tensor:
        """Sequences that lie one behind the other, across the rows of the batch."""
        facts = self._windowed(self.key.shape[2], self.causal)
        if self.bias is not None:
            raise Unsupported(
                f"position_bias is given with packed sequences; flashsmith does not do both; "
                f"{instead(self.module)}."
            )
        return self._packed(self.key, self.value, (of_q, of_k), facts)

    def _dense(
        self,
        key: Tensor,
        value: Tensor,
        causal: bool,
        bias: Tensor | None,
        facts: dict[str, Foreign],
    ) -> Tensor:
        facts = self.facts | facts | ({} if bias is None else {"bias": bias})
        out: Tensor = flash_attention(self.query, key, value, causal=causal, layout="bhsd", **facts)
        return out.transpose(1, 2)

    def _packed(
        self, key: Tensor, value: Tensor, found: tuple[Tensor, Tensor], facts: dict[str, Foreign]
    ) -> Tensor:
        batch, heads, rows, width = self.query.shape
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (self.query, key, value))
        of_q, of_k = (x.to(torch.int32) for x in found)
        facts = self.facts | facts | {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k}
        out: Tensor = flash_attention(q, k, v, causal=self.causal, **facts)
        return out.view(batch, rows, heads, width)

    def _windowed(self, columns: int, is_causal: bool) -> dict[str, Foreign]:
        """The fact of a window that hides any of so many keys."""
        if self.window is None or columns <= self.window:
            return {}
        if not is_causal:
            raise Unsupported(
                f"the model has a sliding window and looks at later tokens too; flashsmith takes "
                f"the windows of causal models; {instead(self.module)}."
            )
        return {"window_left": int(self.window) - 1}  # a token's own key is one of the window

    def _is_differentiated(self) -> bool:
        inputs = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _both(mask: Tensor, bias: Tensor | None) -> Tensor:
    """A mask and a bias of positions as one."""
    if bias is None:
        return mask
    if mask.dtype is torch.bool:
        return torch.where(mask, bias, float("-inf"))
    return bias + mask


def _refuse(module: Module, dropout: float, others: dict[str, Foreign]) -> None:
    if dropout:
        raise Unsupported(
            f"attention dropout is {dropout}; flashsmith has none yet; call model.eval(), set it "
            f"to 0 in the configuration, or {instead(module)}."
        )
    for argument, what in _REFUSED.items():
        if others.get(argument) is not None:
            raise Unsupported(
                f"{argument} is given; flashsmith does not do {what}; {instead(module)}."
            )
    if others.get("output_attentions"):
        raise Unsupported(f"output_attentions=True is given; {NO_WEIGHTS}.")


def _facts_of(others: dict[str, Foreign]) -> dict[str, Foreign]:
    """A model's cap and sinks."""
    facts: dict[str, Foreign] = {}
    if others.get("softcap"):
        facts["softcap"] = float(others["softcap"])
    if others.get("s_aux") is not None:
        facts["sinks"] = others["s_aux"]
    return facts


def _of_one_width(*tensors: Tensor) -> list[Tensor]:
    """Zeros behind what is narrower: they add nothing to scores, and are cut off the output."""
    width = max(x.shape[-1] for x in tensors)
    return [
        x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))
        for x in tensors
    ]


def _require_half(query: Tensor) -> None:
    if query.dtype is torch.float32 and not torch.is_autocast_enabled(query.device.type):
        raise ArgumentTypeError(
            "the model is float32; the kernels take float16 and bfloat16; load it with "
            "dtype=torch.bfloat16, or call it under torch.autocast."
        )
