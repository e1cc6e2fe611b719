"""Races what is chosen for tiles from a list where other kernels would spill, on a GPU.

    PYTHONPATH=src python tools/listed_h200.py -o FILE [--rounds 21]

The packed sequences of tools/packed_h200.py: causal at d_head 64 with a log-sum-exp, which three
warpgroups have no registers for, and causal windows of 1,024 at d_head 192 and 256. What is chosen
is timed twice, beside the kernels of its rule that can be built and mma.sync; outputs must agree.
Records are appended to FILE; the table comes last.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from packed_h200 import SEQUENCES, TOKENS, call_of, drawn_lengths

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Comparison, Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_text
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.tuner.choose.choice import choose

FAR = 0.02
PACKED = AttentionProblem(1, 32, 32, TOKENS, TOKENS, 64, causal=True, sequences=SEQUENCES)
PROBLEMS = (
    replace(PACKED, lse=True),
    replace(PACKED, heads=10, kv_heads=10, d_head=192, window_left=1024),
    replace(PACKED, heads=8, kv_heads=8, d_head=256, window_left=1024),
)


def tensors_of(problem: AttentionProblem) -> dict[str, torch.Tensor]:
    """Normal numbers and the boundaries."""
    torch.manual_seed(0)
    shape = (1, TOKENS, problem.heads, problem.d_head)
    made = {name: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name in "qkvo"}
    lengths = torch.from_numpy(drawn_lengths())
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int().cuda()
    made |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends.clone()}
    if problem.lse:
        made["lse"] = torch.empty(1, problem.heads, TOKENS, device="cuda")
    return made


def seen_flops(problem: AttentionProblem) -> float:
    """Of the scores that are seen."""
    area = sum(problem.mask_of(int(n), int(n)).area for n in drawn_lengths())
    return 4.0 * problem.heads * problem.d_head * area


def raced(device, problem: AttentionProblem) -> list[KernelConfig]:
    """What is chosen, then the others."""
    arch = get_arch(device.arch)
    chosen = choose(problem, device.arch, gpu=device.name).config
    others = [*Sm90ForwardConfig.candidates(problem, arch)]
    others += [*FlashForwardKernelConfig.candidates(problem, arch)][:1]
    return list(dict.fromkeys([chosen, *others]))


def race(device, problem: AttentionProblem, rounds: int) -> Comparison:
    """One interleaved run."""
    tensors = tensors_of(problem)
    call, truth, contenders = call_of(tensors), None, []
    for config in raced(device, problem):
        try:
            prepared = prepare(device, config, problem, judged=True)
        except FlashsmithError as error:
            print(f"not raced: {error}", flush=True)
            continue
        tensors["o"].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared(call)
        device.synchronize()
        found = tensors["o"].float()
        truth = found if truth is None else truth
        far = float((found - truth).norm() / truth.norm())
        if not far < FAR:
            print(f"WRONG {config}: {far:.1e} from what is chosen", flush=True)
            continue
        contenders.append(Contender(config.short_form(), lambda s, p=prepared: p(call, s)))
    return compare(device, contenders, rounds=rounds, attempts=2)


def main() -> None:
    """Races; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    for problem in PROBLEMS:
        run = race(device, problem, arguments.rounds)
        flops = seen_flops(problem)
        records = records_of(run, problem, environment, suite="listed", flops=flops)
        append_records(arguments.output, records)
        void = " VOID" if run.is_void else ""
        print(f"{problem_text(problem)}: beside itself {run.control.median:.4f}{void}")
        for timed in sorted(run.timed, key=lambda one: one.time_us.median):
            print(f"  {timed.time_us.median:8.1f} us  {timed.name}")


if __name__ == "__main__":
    main()
