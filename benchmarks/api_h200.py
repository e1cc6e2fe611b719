"""What the API costs on a GPU, and whether it holds there: host time, first calls, a model.

    python benchmarks/api_h200.py all|host|first|model|sanitizer|small --out FOLDER

Each part appends JSON lines to FOLDER/api.jsonl and prints a table; `all` takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

ROUNDS, CALLS = 25, 200
MMA = "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"


def record(arguments, part: str, result: dict) -> None:
    """Appends one line with the environment it was measured in."""
    from flashsmith.compile.nvrtc.library import find_nvrtc
    from flashsmith.measure.environment import environment_of
    from flashsmith.measure.record import Record, append_records
    from flashsmith.runtime.devices import default_device

    environment = environment_of(default_device("cuda"), compiler=find_nvrtc().compiler)
    what = {"suite": "api", "part": part}
    append_records(arguments.out / "api.jsonl", [Record(what, result, asdict(environment))])


def rounds_of(contenders: dict) -> dict[str, list[float]]:
    """Host microseconds a call, one value a round; the order rotates every round."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for call in contenders.values():
        for _ in range(CALLS):
            call()
    for number in range(ROUNDS):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            call = contenders[name]
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - started) / CALLS * 1e6)
            torch.cuda.synchronize()
    return times


def host(arguments) -> None:
    """Host time of warm calls, against torch's own function in the same run."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import flashsmith

    torch.manual_seed(0)
    # Small enough that the GPU is never behind: what is timed is the host.
    q, k, v = (torch.randn(1, 64, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    bhsd = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    contenders = {
        "torch sdpa": lambda: F.scaled_dot_product_attention(*bhsd, is_causal=True),
        "torch sdpa again": lambda: F.scaled_dot_product_attention(*bhsd, is_causal=True),
        "sdpa drop-in": lambda: flashsmith.scaled_dot_product_attention(*bhsd, is_causal=True),
        "flash_attention": lambda: flashsmith.flash_attention(q, k, v, causal=True),
        "flash_attention lse": lambda: flashsmith.flash_attention(
            q, k, v, causal=True, return_lse=True
        ),
        "flash_attn_func": lambda: flashsmith.flash_attn_func(q, k, v, causal=True),
        "flash_attention mma": lambda: flashsmith.flash_attention(q, k, v, causal=True, config=MMA),
        "operator": lambda: torch.ops.flashsmith.forward.default(q, k, v, True),
    }
    with torch.inference_mode():
        times = rounds_of(contenders)
    base = times["torch sdpa"]
    for name, values in times.items():
        ratios = [ours / theirs for ours, theirs in zip(values, base, strict=True)]
        result = {
            "name": name,
            "median_us": statistics.median(values),
            "p20_us": sorted(values)[len(values) // 5],
            "p80_us": sorted(values)[len(values) * 4 // 5],
            "ratio": statistics.median(ratios),
            "rounds": ROUNDS,
            "calls": CALLS,
        }
        record(arguments, "host time of a warm call", result)
        print(f"{name:22} {result['median_us']:7.2f} µs  ratio {result['ratio']:.2f}")


FIRST_CALL = """
import sys, time
import numpy, torch
torch.randn(8, device="cuda").sum().item()
ready = time.perf_counter()
from flashsmith import flash_attention
imported = time.perf_counter()
choice = {call}
torch.cuda.synchronize()
first = time.perf_counter()
{call}
torch.cuda.synchronize()
second = time.perf_counter()
print(imported - ready, first - imported, second - first, choice.source, sep="|")
"""
Q = "q := torch.randn(2, 1000, 8, 128, dtype=torch.{dtype}, device='cuda')"
CALL = "flash_attention({q}, q, q, causal=True, explain=True{more})[-1]"
TORCH = CALL.format(q=Q.format(dtype="float16"), more="")
NUMPY = CALL.format(q="q := numpy.ones((2, 1000, 8, 128), numpy.float16)", more="")
MMA_SYNC = CALL.format(q=Q.format(dtype="bfloat16"), more=f", config={MMA!r}")
NO_COMPILER = {"FLASHSMITH_NVRTC": "/nowhere"}


def first(arguments) -> None:
    """The first call of a process: empty cache, warm cache, and a shipped choice with no compiler.

    To be run alone: beside other jobs a compile takes two and three times as long.
    """
    with tempfile.TemporaryDirectory() as cache:
        first_call(arguments, "torch tensors, empty cache", TORCH, cache, {})
        first_call(arguments, "torch tensors, warm cache", TORCH, cache, {})
        first_call(arguments, "NumPy arrays, warm cache", NUMPY, cache, {})  # of the same kernel
    with tempfile.TemporaryDirectory() as cache:
        for state in ("empty cache", "warm cache"):
            first_call(arguments, f"torch tensors, mma.sync, {state}", MMA_SYNC, cache, {})
    with shipped_kernels() as kernels, tempfile.TemporaryDirectory() as cache:
        for kind, call in (("torch tensors", TORCH), ("NumPy arrays", NUMPY)):
            name = f"{kind}, shipped choice, no compiler, empty cache"
            first_call(arguments, name, call, cache, NO_COMPILER, bundled_kernels=kernels)


def first_call(arguments, name: str, call: str, cache: str, changes: dict, **facts) -> None:
    """Times one process and writes it down."""
    run = subprocess.run(
        [sys.executable, "-c", FIRST_CALL.format(call=call)],
        env={**os.environ, "FLASHSMITH_CACHE_DIR": cache, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        print(name, "failed:", run.stderr[-800:])
        return
    *times, source = run.stdout.strip().split("|")
    import_s, first_s, second_s = map(float, times)
    result = {
        "name": name,
        "import_s": import_s,
        "first_call_s": first_s,
        "second_call_s": second_s,
        "choice": source,
        **facts,
    }
    made = [json.loads(p.read_text()) for p in Path(cache).glob("kernels/*/artefact.json")]
    if "empty" in name:
        result |= {"kernels_compiled": len(made)}
        result |= {"compile_s": sum(kernel["compile_seconds"] for kernel in made)}
    record(arguments, "first call", result)
    print(
        f"{name:55} import {import_s:.3f} s, first call {first_s:.3f} s, of it compiling "
        f"{result.get('compile_s', 0):.3f} s, second {second_s * 1e3:.2f} ms, {source}"
    )


@contextmanager
def shipped_kernels():
    """The package's bundle for this GPU; where it has none, one of what `first` calls."""
    from flashsmith.compile.ahead_of_time.bundle import read_bundle
    from flashsmith.runtime.devices import default_device
    from flashsmith.tuner.choose import measured
    from flashsmith.tuner.choose import shipped_kernels as shipped

    device = default_device("cuda")
    place = shipped.bundle_path(device.arch)
    is_there = place.exists()
    if not is_there:
        slug = device.name.lower().replace(" ", "_")
        items = measured.choosable(measured.SHIPPED_FOLDER / f"{slug}.jsonl")
        wide = [i for i in items if i.key.problem.d_head == 128 and i.key.problem.causal]
        shipped.write_kernels_of(wide, place)
    try:
        yield len(read_bundle(place))
    finally:
        if not is_there:
            place.unlink()


def model(arguments) -> None:
    """Logits of a Llama with random weights: flashsmith and SDPA against float32."""
    import copy

    import torch
    import transformers

    import flashsmith.integrations.transformers as integration

    integration.register()
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=4096,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    tokens = torch.randint(1, 32000, (2, 1537), device="cuda")

    def logits(implementation: str, dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation=implementation
        )
        made = made.to("cuda", torch.bfloat16).to(dtype).eval()
        with torch.inference_mode():
            return made(tokens, use_cache=False).logits.float()

    truth = logits("eager", torch.float32)
    result = {
        "name": "llama 8 layers, 16:4 heads, d 128, 2 x 1537",
        "version": transformers.__version__,
    }
    for name in ("sdpa", "flashsmith"):
        off = logits(name, torch.bfloat16) - truth
        result[f"{name}_max"] = off.abs().max().item()
        result[f"{name}_rms"] = off.square().mean().sqrt().item()
    result["ratio_rms"] = result["flashsmith_rms"] / result["sdpa_rms"]
    record(arguments, "logits against float32", result)
    print(json.dumps(result))


def small(arguments) -> None:
    """A few small calls of every kind: what compute-sanitizer watches."""
    import numpy as np
    import torch

    import flashsmith

    torch.manual_seed(0)
    for d_head in (40, 64, 128, 256):
        for causal in (False, True):
            q = torch.randn(2, 70, 6, d_head, dtype=torch.bfloat16, device="cuda")
            k = torch.randn(2, 203, 2, d_head, dtype=torch.bfloat16, device="cuda")
            flashsmith.flash_attention(q, k, k, causal=causal, return_lse=True)
            flashsmith.flash_attention(q[:, ::2], k[:, 3:], k[:, 3:], causal=causal)
    array = np.ones((1, 33, 3, 64), np.float16)
    flashsmith.flash_attention(array, array, array, backend="cuda")
    torch.cuda.synchronize()
    print("small calls done")


def sanitizer(arguments) -> None:
    """The small calls under compute-sanitizer's memcheck."""
    program = [sys.executable, __file__, "small"]
    run = subprocess.run(
        ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", *program],
        capture_output=True,
        text=True,
        check=False,
    )
    result = {
        "name": "17 small calls of every kind",
        "exit_code": run.returncode,
        "summary": next((line for line in run.stdout.splitlines() if "ERROR SUMMARY" in line), ""),
    }
    record(arguments, "sanitizer", result)
    print(json.dumps(result))


def everything(arguments) -> None:
    """All parts: what is timed one by one, then what is not side by side."""
    started = time.perf_counter()
    options = ["--out", str(arguments.out)]
    for together in (["host"], ["first"], ["model", "sanitizer"]):
        children = [
            subprocess.Popen([sys.executable, __file__, part, *options]) for part in together
        ]
        for child in children:
            child.wait()
    print(f"{time.perf_counter() - started:.0f} s")


def main() -> None:
    parts = {
        "all": everything,
        "host": host,
        "first": first,
        "model": model,
        "sanitizer": sanitizer,
        "small": small,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    parts[arguments.part](arguments)


if __name__ == "__main__":
    main()
