"""A model of transformers generates with attn_implementation="flashsmith", its prompts padded.

Without a name it is a small Llama of random weights, whose prompts are random tokens:

    python examples/generate.py
    python examples/generate.py --model meta-llama/Llama-3.2-1B --prompt "A kernel" --prompt "Once"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import transformers
from torch import Tensor

import flashsmith.integrations.transformers

LENGTHS = (12, 5, 31)  # of random prompts


def small_llama() -> transformers.PreTrainedModel:
    """A Llama of random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=500,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flashsmith")


def random_prompts() -> dict[str, Tensor]:
    """Tokens and mask of prompts of several lengths, padded on the left."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 500, (len(LENGTHS), max(LENGTHS)), generator=random)
    lengths = torch.tensor(LENGTHS)[:, None]
    mask = torch.arange(max(LENGTHS))[None] >= max(LENGTHS) - lengths
    return {"input_ids": tokens * mask, "attention_mask": mask.long()}


def main(arguments: Sequence[str] | None = None) -> Tensor:
    """Generates, and prints the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a pretrained model's name or folder")
    parser.add_argument("--prompt", action="append", default=[])
    parser.add_argument("--tokens", type=int, default=20)
    asked = parser.parse_args(arguments)
    flashsmith.integrations.transformers.register()
    device, tokenizer = "cuda" if torch.cuda.is_available() else "cpu", None
    if asked.model:
        tokenizer = transformers.AutoTokenizer.from_pretrained(asked.model, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model = transformers.AutoModelForCausalLM.from_pretrained(
            asked.model, attn_implementation="flashsmith"
        )
        inputs = dict(tokenizer(asked.prompt, return_tensors="pt", padding=True))
    else:
        model, inputs = small_llama(), random_prompts()
    model = model.to(device, torch.bfloat16).eval()
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    out = model.generate(**inputs, max_new_tokens=asked.tokens, do_sample=False, pad_token_id=0)
    for answer in out[:, inputs["input_ids"].shape[1] :]:
        print(tokenizer.decode(answer) if tokenizer else answer.tolist())
    return out


if __name__ == "__main__":
    main()
