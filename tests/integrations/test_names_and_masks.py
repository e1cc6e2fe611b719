"""transformers as a stand-in: the name it reads nothing into, and plain masks."""

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch

from flashsmith.api.notices import FlashsmithWarning, forget
from flashsmith.base.errors import Unsupported
from flashsmith.integrations import mask_patterns, model_checks
from flashsmith.integrations import transformers as integration


def causal_mask_function(batch, head, q, k):
    return q >= k


causal = causal_mask_function


def chunked_overlay(_):
    def inner_mask(batch, head, q, k):
        return True

    return inner_mask


def sliding_window_overlay(_):
    def inner_mask(batch, head, q, k):
        return True

    return inner_mask


def and_masks(*functions):
    def and_mask(batch, head, q, k):
        return all(function(batch, head, q, k) for function in functions)

    return and_mask


class Config:
    _attn_implementation = "flashsmith"


class Interface(dict):
    @classmethod
    def register(cls, name, function):
        cls.known[name] = function


class Attention(Interface):
    known: ClassVar[dict] = {}


class Masks(Interface):
    known: ClassVar[dict] = {}


@pytest.fixture
def transformers(monkeypatch):
    """What we call of transformers 5, which swaps every name with "flash" in it for its own."""

    class PreTrainedModel:
        _supports_sdpa = True
        _compatible_flash_implementations = ("kernels/flash-attn3",)

        def __init__(self):
            self.config = Config()
            asked = self.config._attn_implementation
            self.implementation = self._check_and_adjust_attn_implementation(asked, True)

        def _check_and_adjust_attn_implementation(self, attn_implementation, is_init_check=False):
            if "flash" in attn_implementation:
                return self._compatible_flash_implementations[0]
            return attn_implementation

    Attention.known, Masks.known = {}, {}
    package, masking, modeling = (
        ModuleType(name)
        for name in ("transformers", "transformers.masking_utils", "transformers.modeling_utils")
    )
    package.AttentionInterface, package.AttentionMaskInterface = Attention, Masks
    package.modeling_utils = modeling
    masking.causal_mask_function = causal
    masking.sdpa_mask = lambda **asked: torch.ones(1, 1, 3, 3)
    modeling.PreTrainedModel = PreTrainedModel
    for module in (package, masking, modeling):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(model=PreTrainedModel, attention=Attention.known, masks=Masks.known)


def test_a_model_keeps_our_attention_where_flash_in_a_name_means_another(transformers):
    assert "flash" in transformers.model().implementation
    integration.register()
    integration.register()  # twice does no harm
    kept = transformers.model().implementation
    assert "flash" not in kept
    assert transformers.attention[kept] is transformers.attention["flashsmith"]
    assert kept in transformers.masks
    assert "flash" in transformers.model()._check_and_adjust_attn_implementation(
        "flash_attention_2"
    )


def test_the_advice_names_no_implementation_that_the_model_refuses(transformers, monkeypatch):
    monkeypatch.setattr(model_checks, "_without_sdpa", set())
    integration.register()
    layer = torch.nn.Module()
    layer.config = Config()
    q = torch.zeros(1, 2, 3, 8, dtype=torch.bfloat16)
    for supports, name in ((True, "sdpa"), (False, "eager")):
        transformers.model._supports_sdpa = supports
        transformers.model()
        with pytest.raises(Unsupported, match=f'use attn_implementation="{name}"'):
            integration.attention_forward(layer, q, q, q, None, cache=q)


PLAIN = {"q_length": 9, "kv_length": 9, "mask_function": causal, "allow_is_causal_skip": True}


def test_a_plain_prefill_needs_no_mask(transformers):
    integration.register()
    assert transformers.masks["flashsmith"](**PLAIN) is None
    positions = torch.arange(9)
    older = {k: v for k, v in PLAIN.items() if k != "q_length"} | {"cache_position": positions}
    assert mask_patterns.is_plain_prefill(older, causal)


def test_a_window_over_a_plain_prefill_needs_no_mask(transformers):
    integration.register()
    windowed = PLAIN | {"local_size": 4}
    made_of = and_masks(sliding_window_overlay(4), causal)
    assert transformers.masks["flashsmith"](**(windowed | {"mask_function": made_of})) is None
    for other in (causal, and_masks(chunked_overlay(4), causal)):
        assert transformers.masks["flashsmith"](**(windowed | {"mask_function": other})) is not None


def test_a_model_whose_heads_are_too_wide_is_refused_when_it_is_made(transformers, monkeypatch):
    integration.register()
    monkeypatch.setattr(Config, "hidden_size", 6000, raising=False)
    monkeypatch.setattr(Config, "num_attention_heads", 10, raising=False)
    with pytest.raises(Unsupported, match=r"has heads of 600; the kernels take d_head up to 512"):
        transformers.model()


def test_heads_that_have_no_gradients_are_told_when_the_model_is_made(transformers, monkeypatch):
    integration.register()
    forget()
    monkeypatch.setattr(Config, "hidden_size", 3000, raising=False)
    monkeypatch.setattr(Config, "num_attention_heads", 10, raising=False)
    with pytest.warns(FlashsmithWarning, match=r"heads of 300; .* training steps will be refused"):
        transformers.model()


def test_a_model_with_attention_code_of_its_own_is_refused_when_it_is_made(transformers):
    integration.register()
    transformers.model._can_set_attn_implementation = lambda self: False
    with pytest.raises(Unsupported, match=r"computes attention in its own code.*\.torch\.sdpa"):
        transformers.model()


def test_dropout_of_a_configuration_is_told_when_the_model_is_made(transformers, monkeypatch):
    integration.register()
    forget()
    monkeypatch.setattr(Config, "attention_probs_dropout_prob", 0.1, raising=False)
    with pytest.warns(FlashsmithWarning, match=r"_prob=0.1 .* set it to 0.0 to train"):
        transformers.model()
