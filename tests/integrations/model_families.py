"""Small models of transformers' families, with random weights, from their own configurations."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

WORDS = 300
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": WORDS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}


@dataclass(frozen=True)
class Family:
    """One family: its configuration, and the class of its models where it is no causal one."""

    config: str
    options: dict = field(default_factory=dict)
    model: str = "AutoModelForCausalLM"
    more: Callable = dict  # what the model takes beside tokens
    generates: bool = True


def _spectra(device):
    random = torch.Generator().manual_seed(3)
    return {"input_features": torch.randn(3, 8, 60, generator=random).to(device)}


def _texts(device):
    tokens, mask = tokens_and_mask("right", device, length=33)
    return {"input_ids": tokens, "attention_mask": mask}


def _pictures(device):
    random = torch.Generator().manual_seed(3)
    return {"pixel_values": torch.randn(3, 3, 24, 24, generator=random).to(device)}


FAMILIES = {
    "Llama": Family("LlamaConfig"),
    "Mistral": Family("MistralConfig", {"sliding_window": 12}),
    "Qwen3": Family("Qwen3Config", {"head_dim": 24}),
    "Gemma2": Family("Gemma2Config", {**MIXED, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "Gemma3": Family("Gemma3TextConfig", {**MIXED, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "gpt-oss": Family("GptOssConfig", {**MIXED, "head_dim": 16, "num_local_experts": 4}),
    "Phi-3": Family("Phi3Config", {"sliding_window": 12}),
    "Cohere": Family("CohereConfig"),
    "BERT": Family(
        "BertConfig", {**ENCODER, "vocab_size": WORDS}, "BertForMaskedLM", generates=False
    ),
    "ViT": Family(
        "ViTConfig",
        {**ENCODER, "image_size": 24, "patch_size": 4, "num_labels": 50},
        "ViTForImageClassification",
        _pictures,
        generates=False,
    ),
    "T5": Family(
        "T5Config",
        {
            "vocab_size": WORDS,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
        "T5ForConditionalGeneration",
        _texts,
    ),
    "Whisper": Family(
        "WhisperConfig",
        {
            "vocab_size": WORDS,
            "num_mel_bins": 8,
            "d_model": 64,
            "max_source_positions": 30,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "max_target_positions": 100,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        "WhisperForConditionalGeneration",
        _spectra,
    ),
}


def model_of(name, implementation, dtype, device="cpu"):
    """The same weights for every implementation."""
    transformers = pytest.importorskip("transformers", minversion="5")
    family = FAMILIES[name]
    shared = DECODER if family.model == "AutoModelForCausalLM" else {}
    config = getattr(transformers, family.config)(**(shared | family.options))
    torch.manual_seed(0)
    if shared:
        made = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=implementation
        )
    else:
        config._attn_implementation = implementation
        made = getattr(transformers, family.model)(config)
    for parameter in made.parameters():  # of models that begin with small numbers: attention counts
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return made.to(device, dtype).eval()


def tokens_and_mask(side, device="cpu", length=37):
    """Three sequences, two of them padded at one side; "none" for none."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, WORDS, (3, length), generator=random)
    mask = torch.ones_like(tokens)
    if side != "none":
        mask[0, :5] = mask[2, : length - 17] = 0
        mask = mask if side == "left" else mask.flip(1)
    return (tokens * mask).to(device), mask.to(device)


def inputs_of(name, side, device="cpu"):
    """What a call of the model takes, and which rows of its logits count."""
    tokens, mask = tokens_and_mask(side, device)
    family = FAMILIES[name]
    more = family.more(device) if family.more is not dict else {}
    if "pixel_values" in more:
        return more, ...
    if more:
        return more | {"decoder_input_ids": tokens, "decoder_attention_mask": mask}, mask.bool()
    if family.generates:
        positions = (mask.cumsum(1) - 1).clamp(0)
        return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}, mask.bool()
    return {"input_ids": tokens, "attention_mask": mask}, mask.bool()


def name_in(inputs, what):
    """The decoder's own `input_ids`, `attention_mask` or `position_ids`, behind an encoder too."""
    return f"decoder_{what}" if "decoder_input_ids" in inputs else what


def logits_of_pieces(model, inputs, pieces, cache=None):
    """What a decoder says of all its tokens, which it gets piece by piece on a cache."""
    tokens, mask, positions = (
        name_in(inputs, what) for what in ("input_ids", "attention_mask", "position_ids")
    )
    logits = []
    for first, last in pieces:
        own = {tokens: inputs[tokens][:, first:last], mask: inputs[mask][:, :last]}
        if positions in inputs:
            own[positions] = inputs[positions][:, first:last]
        out = model(**inputs | own, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits)
    return torch.cat(logits, 1)


def static_cache(model, inputs, length=50):
    """As `generate` makes it; behind an encoder, a second one holds as many keys as that gives."""
    transformers = pytest.importorskip("transformers", minversion="5")
    config = model.config.get_text_config(decoder=True)
    made = transformers.StaticCache(config=config, max_cache_len=length)
    if not model.config.is_encoder_decoder:
        return made
    with torch.no_grad():
        given = {n: x for n, x in inputs.items() if n in ("input_ids", "input_features")}
        keys = model.get_encoder()(**given).last_hidden_state.shape[1]
    crossed = transformers.StaticCache(config=config, max_cache_len=keys)
    return transformers.EncoderDecoderCache(made, crossed)
