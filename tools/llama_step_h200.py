"""Times a training step of a Llama of a billion parameters with different attention, on a GPU.

    PYTHONPATH=src python tools/llama_step_h200.py -o FILE [--fa3 FILE.py] [--steps 12]

Random weights in the shape of Llama 3.2 1B (16 layers, 32 heads on 8, d_head 64), bf16, one
sequence of 8,192 tokens, activation checkpointing, AdamW: forward, backward and the optimizer's
step, timed by events. Contenders take turns step by step in one process, the first of them twice;
the first steps are not counted. Peers are torch's attention by cuDNN and by FlashAttention-2 and,
with `--fa3` (a file with `load`, `forward` and `backward`), FlashAttention-3. A line for each is
appended to FILE: milliseconds, the most memory that was allocated, and the loss of the first step.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.integrations.transformers import register
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.runtime.devices import default_device

WHERE = "cuda" if torch.cuda.is_available() else "cpu"  # there the code itself can be tried
WARM = 2  # steps of each contender that are not counted
BILLION = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}


def sdpa_with(backend: SDPBackend):
    """An attention of transformers that calls torch's, with one backend."""

    def attend(module, query, key, value, attention_mask, **more):
        del module, attention_mask
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                *(query, key, value),
                is_causal=True,
                scale=more.get("scaling"),
                enable_gqa=True,
            )
        return out.transpose(1, 2).contiguous(), None

    return attend


def fa3_of(path: str):
    """FlashAttention-3 as an attention of transformers."""
    spec = importlib.util.spec_from_file_location("step_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operators = module.load("plain")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, q, k, v):
            out, lse = module.forward(operators, q, k, v, causal=True)
            context.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(context, d_out):
            return module.backward(
                operators, d_out.contiguous(), *context.saved_tensors, causal=True
            )

    def attend(module, query, key, value, attention_mask, **more):
        del module, attention_mask, more
        rows = (x.transpose(1, 2) for x in (query, key, value))
        return Function.apply(*rows), None

    return attend


def step_of(model, optimizer, tokens):
    """One training step; returns the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


def timed(call) -> tuple[float, float, float]:
    """Milliseconds, bytes that were allocated at most, and the loss."""
    if WHERE == "cpu":
        return 0.0, 0.0, float(call())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    loss = call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), torch.cuda.max_memory_allocated(), float(loss)


def main() -> None:
    """Steps in turn; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--fa3")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--small", action="store_true", help="a tiny model: whether the code runs")
    arguments = parser.parse_args()
    register()
    named = {
        "flashsmith": "flashsmith",
        "cuDNN": sdpa_with(SDPBackend.CUDNN_ATTENTION),
        "FlashAttention-2 (torch)": sdpa_with(SDPBackend.FLASH_ATTENTION),
    }
    if WHERE == "cpu":
        named = {"flashsmith": "flashsmith", "math": sdpa_with(SDPBackend.MATH)}
    if arguments.fa3:
        named["FlashAttention-3"] = fa3_of(arguments.fa3)
    for name, function in named.items():
        if callable(function):
            AttentionInterface.register(f"step_{len(name)}", function)
            named[name] = f"step_{len(name)}"
    shape = dict(BILLION)
    if arguments.small:
        shape |= {"vocab_size": 99, "hidden_size": 256, "num_hidden_layers": 2}
        shape |= {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(WHERE, torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=WHERE == "cuda")
    tokens = torch.randint(0, shape["vocab_size"], (1, arguments.tokens), device=WHERE)
    order = [*named, next(iter(named))]  # the first one twice: a control
    times: list[list[float]] = [[] for _ in order]
    memory, losses = {}, {}
    for turn in range(WARM + arguments.steps):
        for place in range(len(order)):
            index = (place + turn) % len(order)
            model.set_attn_implementation(named[order[index]])
            ms, most, loss = timed(lambda: step_of(model, optimizer, tokens))
            losses.setdefault(order[index], loss)
            if turn >= WARM:
                times[index].append(ms)
                memory[order[index]] = most
    control = statistics.median(times[0]) / statistics.median(times[-1]) if times[0][0] else 1.0
    environment = asdict(environment_of(default_device(), compiler=find_nvrtc().compiler))
    parameters = sum(p.numel() for p in model.parameters())
    for index, name in enumerate(named):
        result = {
            "median_ms": statistics.median(times[index]),
            "steps": len(times[index]),
            "memory_bytes": memory[name],
            "first_loss": losses[name],
            "control": control,
        }
        what = {"suite": "llama_step", "name": name, "parameters": parameters, **shape}
        what["tokens"] = arguments.tokens
        append_records(arguments.output, [Record(what, result, environment)])
        print(
            f"{name:26} {result['median_ms']:8.2f} ms {memory[name] / 2**30:6.2f} GiB, "
            f"loss {losses[name]:.4f}"
        )
    print(f"control {control:.4f}, {parameters / 1e9:.2f} billion parameters")


if __name__ == "__main__":
    main()
