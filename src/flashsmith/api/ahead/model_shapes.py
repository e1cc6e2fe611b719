"""The attention problems of a model, read from its transformers configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.base.json_text import parse_json
from flashsmith.base.loose_types import Foreign, Json
from flashsmith.base.whole_file import named_in_errors
from flashsmith.problem.attention import AttentionProblem

ModelConfig = Foreign  # a transformers configuration, or what its config.json holds
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
# Older configurations have other names for the same.
_ALSO = {
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
}
_WITH_SINKS = ("gpt_oss",)  # its configuration does not say it
_DTYPES = {"float16": DType.FP16, "bfloat16": DType.BF16, "fp16": DType.FP16, "bf16": DType.BF16}


def model_problems(
    model: ModelConfig | str | Path,
    lengths: Sequence[int] = LENGTHS,
    *,
    batch: int = 1,
    dtype: str | None = None,
    training: bool = False,
) -> list[AttentionProblem]:
    """Prefill and decoding of a model at these lengths and at lengths between them.

    A length one short of another stands for all that fill no whole tiles. Layers with a window
    have problems of their own at lengths beyond it; caps and sinks are the model's.
    """
    text = _read(Path(model)) if isinstance(model, str | Path) else model
    # A model of several modalities keeps that of its language model inside.
    text = _field(text, "text_config") or text
    heads = _number(text, "num_attention_heads")
    kv_heads = _number(text, "num_key_value_heads", heads)
    d_head = _width(text, heads)
    limit = _number(text, "max_position_embeddings", max(lengths, default=1))
    kept = [length for length in lengths if 1 < length <= limit]
    if not kept:
        raise ArgumentError(
            f"lengths is {tuple(lengths)}; the model has {limit:,} positions; give lengths from 2 "
            f"to {limit:,}."
        )
    shape = AttentionProblem(
        *(batch, heads, kv_heads, 1, 1, d_head, _dtype(text, dtype)),
        softcap=_field(text, "attn_logit_softcapping"),
        sinks=_field(text, "model_type") in _WITH_SINKS,
    )
    window = _window(text)
    found = []
    for length in (n for whole in kept for n in (whole, whole - 1)):
        prefills = [replace(shape, q_len=length, k_len=length, causal=True)]
        if window is not None and length > window:  # a token's own key is one of the window
            prefills.append(replace(prefills[0], window_left=window - 1))
        found += [*prefills, replace(shape, k_len=length)]
        if training:
            found += [replace(prefill, lse=True) for prefill in prefills]
            found += [replace(prefill, operation="backward") for prefill in prefills]
    return found


def _width(model: ModelConfig, heads: int) -> int:
    """Elements of a head of q; latent attention has two parts, and its head_dim is one of them."""
    parts = [_field(model, f"qk_{part}_head_dim") for part in ("nope", "rope")]
    if None not in parts:
        return sum(_number(model, f"qk_{part}_head_dim") for part in ("nope", "rope"))
    return _number(model, "head_dim", _number(model, "hidden_size", 0) // heads)


def _window(model: ModelConfig) -> int | None:
    """Keys that a token of some layer sees, with its own; None where all layers see all."""
    layers = _field(model, "layer_types")
    is_used = layers is None or any("sliding" in str(layer) for layer in layers)
    if _field(model, "use_sliding_window") is False or not is_used:
        return None
    return _number(model, "sliding_window", 0) or None


def _read(path: Path) -> Json:
    path = path / "config.json" if path.is_dir() else path
    with named_in_errors(path):
        text = path.read_bytes()
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ArgumentError(f"{path} is not JSON ({error}); give a model's config.json.") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"{path} does not hold a JSON object; give a model's config.json.")
    return found


def _field(model: ModelConfig, name: str) -> Json:
    if not isinstance(model, Mapping):
        return getattr(model, name, None)
    return model.get(name, model.get(_ALSO.get(name, "")))


def _number(model: ModelConfig, name: str, default: int | None = None) -> int:
    found = _field(model, name)
    if found is None and default is not None:
        return default
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ArgumentError(
            f"{name} of the model is {str(found)[:40]}; it must be a number above 0; give a "
            f"configuration of transformers, or AttentionProblem objects as problems."
        )
    return found


def _dtype(model: ModelConfig, given: str | None) -> DType:
    """The element type that is given, else the model's, else BF16."""
    named = given or _field(model, "dtype")
    if named is None and not hasattr(model, "dtype"):  # where both are, the old name warns
        named = _field(model, "torch_dtype")
    named = named or "bfloat16"
    text = str(named).removeprefix("torch.").lower()
    if text not in _DTYPES:
        raise ArgumentError(
            f"the model's element type is {text[:40]}; kernels take float16 and bfloat16; say "
            f"which one it is loaded in with dtype."
        )
    return _DTYPES[text]
