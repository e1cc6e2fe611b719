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
LENGTHS = (512, 1024, 2048, 4096)
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

    A length one short of another stands for all that fill no whole tiles.
    """
    text = _read(Path(model)) if isinstance(model, str | Path) else model
    # A model of several modalities keeps that of its language model inside.
    text = _field(text, "text_config") or text
    heads = _number(text, "num_attention_heads")
    kv_heads = _number(text, "num_key_value_heads", heads)
    d_head = _number(text, "head_dim", _number(text, "hidden_size", 0) // heads)
    limit = _number(text, "max_position_embeddings", max(lengths, default=1))
    kept = [length for length in lengths if 1 < length <= limit]
    if not kept:
        raise ArgumentError(
            f"lengths is {tuple(lengths)}; the model has {limit:,} positions; give lengths from 2 "
            f"to {limit:,}."
        )
    shape = AttentionProblem(batch, heads, kv_heads, 1, 1, d_head, _dtype(text, dtype))
    found = []
    for length in (n for whole in kept for n in (whole, whole - 1)):
        prefill = replace(shape, q_len=length, k_len=length, causal=True)
        found += [prefill, replace(shape, k_len=length)]
        if training:
            found += [replace(prefill, lse=True), replace(prefill, operation="backward")]
    return found


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
    return model.get(name) if isinstance(model, Mapping) else getattr(model, name, None)


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
    named = given or _field(model, "dtype") or _field(model, "torch_dtype") or "bfloat16"
    text = str(named).removeprefix("torch.").lower()
    if text not in _DTYPES:
        raise ArgumentError(
            f"the model's element type is {text[:40]}; kernels take float16 and bfloat16; say "
            f"which one it is loaded in with dtype."
        )
    return _DTYPES[text]
