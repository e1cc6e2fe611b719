"""Holds gradients of packed sequences against those of each alone, on a GPU, and races them.

    PYTHONPATH=src:tools python tools/packed_bwd_h200.py -o FILE [--peer FILE.py]

The sequences are those of tools/packed_h200.py: 21 of log-normal length, 16,384 tokens, the longest
8,754, 16 heads, d 128, full and causal. Every configuration on wgmma that keeps its bits must give
those of every sequence alone, in 20 runs; then they are raced with the one on mma.sync and with the
peer, which is FlashAttention-3 without its deterministic mode: its file has `load(which)` and
`backward(operators, do, q, k, v, out, lse, causal=…, cu_seqlens_q=…, …)`. Records are appended to
FILE; the table comes last.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
from pathlib import Path

import numpy as np
import torch
from packed_h200 import HEADS, LONGEST, SEQUENCES, TOKENS, WIDTH, call_of, drawn_lengths

from flashsmith import arch, flash_attention, flash_attention_backward
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.sm80_backward import rule as mma_rule
from flashsmith.kernels.sm90_backward import rule as wgmma_rule
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare

INPUTS, GRADIENTS = ("do", "q", "k", "v", "o"), ("dq", "dk", "dv")
REPEATS = 20


def tensors_of(lengths: np.ndarray, causal: bool) -> dict[str, torch.Tensor]:
    """Normal numbers with what the forward pass makes of them, and the boundaries."""
    torch.manual_seed(0)
    shape = (1, TOKENS, HEADS, WIDTH)
    made = {
        name: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for name in ("do", "q", "k", "v", *GRADIENTS)
    }
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    made |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends.clone()}
    tables = {name: made[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    made["o"], made["lse"] = flash_attention(
        *(made[name][0] for name in "qkv"), causal=causal, return_lse=True, **tables
    )
    made["o"] = made["o"].reshape(shape)
    return made


def differing(device, config, problem, tensors, lengths, causal: bool) -> int:
    """Of `REPEATS` runs, those in which a sequence has other bits than alone."""
    lse, ends = tensors["lse"].reshape(HEADS, TOKENS), [0, *np.cumsum(lengths)]
    alone = []
    for a, b in itertools.pairwise(ends):
        given = [tensors[name][:, a:b] for name in INPUTS]
        own = lse[None, :, a:b].contiguous()
        alone.append(flash_attention_backward(*given, own, causal=causal, config=config))
    expected = [torch.cat(parts, dim=1) for parts in zip(*alone, strict=True)]
    call, prepared, others = call_of(tensors), prepare(device, config, problem), 0
    for _ in range(REPEATS):
        for name in GRADIENTS:
            tensors[name].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared(call)
        device.synchronize()
        found = [tensors[name] for name in GRADIENTS]
        others += not all(map(torch.equal, found, expected))
    return others


def peer_contender(path: str, tensors, causal: bool) -> Contender:
    """The peer on the same tensors, in any order of sums."""
    spec = importlib.util.spec_from_file_location("packed_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operators = module.load("d128")
    given = [tensors[name][0] for name in INPUTS]
    more = {name: tensors[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    more |= {"max_seqlen_q": LONGEST, "max_seqlen_k": LONGEST}
    lse = tensors["lse"].reshape(HEADS, TOKENS)

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            module.backward(operators, *given, lse, causal=causal, **more)

    launch(torch.cuda.current_stream().cuda_stream)
    return Contender("peer", launch)


def main() -> None:
    """Full, then causal: bits, then times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    lengths, target = drawn_lengths(), arch.get(device.arch)
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    for causal in (False, True):
        problem = AttentionProblem(
            1,
            *(HEADS, HEADS, TOKENS, TOKENS, WIDTH),
            causal=causal,
            sequences=SEQUENCES,
            operation="backward",
        )
        tensors = tensors_of(lengths, causal)
        configs = [*wgmma_rule.candidates(problem, target)]
        print("causal" if causal else "full")
        for config in configs:
            others = differing(device, config, problem, tensors, lengths, causal)
            print(f"  {config}: other bits than alone in {others} of {REPEATS} runs", flush=True)
        configs.append(mma_rule.candidates(problem, target)[0])
        contenders, call = [], call_of(tensors)
        for config in configs:
            prepared = prepare(device, config, problem)
            contenders.append(
                Contender(config.short_form(), lambda s, p=prepared, at=call: p(at, s))
            )
        if arguments.peer:
            contenders.append(peer_contender(arguments.peer, tensors, causal))
        run = compare(device, contenders, rounds=arguments.rounds, attempts=2)
        area = sum(problem.mask_of(int(n), int(n)).area for n in lengths)
        flops = 10.0 * HEADS * WIDTH * area
        found = records_of(run, problem, environment, suite="packed", flops=flops)
        append_records(arguments.output, found)
        print(f"  A/A control {run.control.median:.4f}{' VOID' if run.is_void else ''}")
        for timed in run.timed:
            rate = flops / timed.time_us.median / 1e6
            print(f"  {timed.time_us.median:8.1f} µs {rate:6.0f} TFLOP/s  {timed.name}")


if __name__ == "__main__":
    main()
