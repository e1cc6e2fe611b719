"""Times the mma.sync family beside torch's FlashAttention-2 and writes records.

    PYTHONPATH=src python3 benchmarks/mma_h200.py OUT.jsonl [--rounds N]

The grid of the FlashAttention papers: batch x sequence = 16,384 tokens, heads x d_head = 2,048.
Every contender is captured in a graph of the driver, so that the host counts for none of them.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashsmith.base.dtypes import DType
from flashsmith.bench.peers import torch_tensors
from flashsmith.check.cases import quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.parse import parse_config
from flashsmith.measure.environment import environment_of
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import geometric_mean
from flashsmith.measure.timed_configs import contender_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.needs import Needs
from flashsmith.runtime.devices import default_device

TOKENS, WIDTH = 16384, 2048
LENGTHS = (1024, 4096, 16384)
FA2 = "torch FA2"
FLAGS = "async+eager+swizzled"
CANDIDATES = {
    64: [
        f"(BF16, 64, 128, 128, 4): {FLAGS}+load_0_2_2_tiles+buffer+opt_softmax",
        f"(BF16, 64, 128, 128, 4): {FLAGS}+load_0_0_0_tiles+opt_softmax",
        f"(BF16, 64, 128, 128, 4): {FLAGS}+load_8_8_0_tiles+opt_softmax",
        f"(BF16, 64, 128, 64, 4): {FLAGS}+load_0_2_0_tiles+buffer+opt_softmax",
        f"(BF16, 64, 128, 64, 4): {FLAGS}+load_0_2_2_tiles+buffer+opt_softmax",
        f"(BF16, 64, 64, 64, 4): {FLAGS}+load_0_2_2_tiles+buffer+opt_softmax",
    ],
    128: [
        f"(BF16, 128, 128, 64, 4): {FLAGS}+load_4_4_4_tiles+opt_softmax",
        f"(BF16, 128, 128, 64, 4): {FLAGS}+load_4_4_2_tiles+opt_softmax",
        f"(BF16, 128, 128, 64, 4): {FLAGS}+load_4_4_2_tiles+buffer+opt_softmax",
        f"(BF16, 128, 128, 64, 4): {FLAGS}+load_2_2_2_tiles+buffer+opt_softmax",
        f"(BF16, 128, 128, 64, 4): {FLAGS}+load_2_2_2_tiles+opt_softmax",
        f"(BF16, 128, 128, 128, 4): {FLAGS}+load_2_2_2_tiles+buffer+opt_softmax",
        f"(BF16, 128, 64, 64, 4): {FLAGS}+load_0_2_2_tiles+opt_softmax",
    ],
    256: [
        f"(BF16, 256, 64, 64, 4): {FLAGS}+load_2_2_2_tiles+buffer+opt_softmax",
        f"(BF16, 256, 64, 32, 4): {FLAGS}+load_2_2_2_tiles+opt_softmax",
        f"(BF16, 256, 128, 64, 8): {FLAGS}+load_2_2_2_tiles+buffer+opt_softmax",
        f"(BF16, 256, 128, 64, 8): {FLAGS}+load_4_4_2_tiles+opt_softmax",
        f"(BF16, 256, 128, 32, 8): {FLAGS}+load_0_2_2_tiles+opt_softmax",
    ],
}


def arg(tensor):
    batch, seq, head, _ = tensor.stride()
    return TensorArg(tensor.data_ptr(), batch, seq, head)


def fa2(q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def launch(stream):
        on_stream = torch.cuda.stream(torch.cuda.ExternalStream(stream))
        with on_stream, sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return Contender(FA2, launch)


def right(device, texts):
    """The candidates that pass the quick check, and the compiler's name."""
    configs = [parse_config(text) for text in texts]
    masks = [Needs(), Needs(("causal",))]
    jobs = [CompileJob(c, needs, device.arch) for c in configs for needs in masks]
    compilers = {kernel.compiler for kernel in compile_many(jobs)}
    kept = []
    for config in configs:
        verdicts = [check_case(device, config, case) for case in quick_cases(config)]
        wrong = [verdict for verdict in verdicts if not verdict.ok]
        if wrong:
            print("WRONG", config.short_form(), wrong[0].case, wrong[0].reason, flush=True)
        else:
            kept.append(config)
    return kept, ", ".join(sorted(compilers))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    device = default_device("cuda")
    ratios = {d_head: [] for d_head in CANDIDATES}
    for d_head, texts in CANDIDATES.items():
        configs, compiler = right(device, texts)
        environment = environment_of(device, compiler=compiler)
        for causal, length in itertools.product((False, True), LENGTHS):
            heads = WIDTH // d_head
            problem = AttentionProblem(
                *(TOKENS // length, heads, heads, length, length, d_head, DType.BF16, causal)
            )
            with torch_tensors(problem) as (q, k, v, o):
                call = {"q": arg(q), "k": arg(k), "v": arg(v), "o": arg(o)}
                ours = [contender_of(device, config, problem, call) for config in configs]
                contenders = [fa2(q, k, v, causal), *ours]
                comparison = compare(device, contenders, rounds=options.rounds)
            flops = cost_of(problem).flops
            records = records_of(comparison, problem, environment, suite="mma_h200", flops=flops)
            append_records(options.out, records)
            best = max(comparison.timed[1:], key=lambda timed: timed.ratio.median)
            ratios[d_head].append(best.ratio.median)
            rates = [flops / timed.time_us.median / 1e6 for timed in (comparison.timed[0], best)]
            print(
                f"d{d_head} {'causal' if causal else 'full':6} {length:5}  "
                f"FA2 {rates[0]:4.0f}  ours {rates[1]:4.0f}  ratio {best.ratio.median:.3f} "
                f"({best.ratio.p20:.3f} to {best.ratio.p80:.3f})  "
                f"control {comparison.control.median:.4f}  {best.name}",
                flush=True,
            )
    for d_heads in ((64, 128), (64,), (128,), (256,)):
        values = [ratio for d_head in d_heads for ratio in ratios[d_head]]
        print(
            f"d_head {d_heads}: geometric mean {geometric_mean(values):.3f}, {len(values)} shapes"
        )


if __name__ == "__main__":
    main()
