"""Checks packed sequences on a GPU and times them against equal ones and against a peer.

    PYTHONPATH=src python tools/packed_h200.py -o FILE [--peer FILE.py] [--budget SECONDS]

Packed cases of the sets `hopper` and `prog` run first (as many as the budget allows, and it is said
how many). Then 21 sequences of log-normal length, 16,384 tokens, the longest 8,754, 16 heads, d
128, full and causal, by what is chosen for them and by others: the output is held against that of
each sequence alone, and its time against that of equal sequences of length ΣL²/ΣL and of the peer,
interleaved, with the baseline run twice. The peer's file has `load(which)` and
`forward(operators, q, k, v, causal=…, cu_seqlens_q=…, …)`, as FlashAttention-3's does. Records are
appended to FILE; the table comes last.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import time
from pathlib import Path

import numpy as np
import torch

from flashsmith import flash_attention
from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import packed_cases
from flashsmith.check.survey import check_one, compile_jobs
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import get_kernel_configs
from flashsmith.kernels.arguments import TensorArg
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.tuner.choose.choice import choose

TOKENS, LONGEST, SEQUENCES, HEADS, WIDTH = 16384, 8754, 21, 16, 128
SEED, SPREAD = 19, 0.52  # of the logarithms of the others' lengths


def drawn_lengths() -> np.ndarray:
    """The longest among others of log-normal length; the same every time."""
    random = np.random.default_rng(SEED)
    others = np.exp(random.normal(0.0, SPREAD, SEQUENCES - 1))
    others = np.maximum((others * (TOKENS - LONGEST) / others.sum()).astype(np.int64), 1)
    others[0] += TOKENS - LONGEST - others.sum()
    lengths = np.insert(others, SEQUENCES // 2, LONGEST)
    assert lengths.sum() == TOKENS
    return lengths


def check(device, deadline: float) -> tuple[int, int, int]:
    """How many packed cases are right, wrong, and not run in time."""
    configs = [*get_kernel_configs("hopper"), *get_kernel_configs("prog")]
    work = [(config, case) for config in configs for case in packed_cases(config)]
    work.sort(key=lambda item: item[1].name)
    right = wrong = done = 0
    for begin in range(0, len(work), 48):
        if time.monotonic() > deadline:
            break
        part = work[begin : begin + 48]
        compile_many(compile_jobs(device, part))
        for config, case in part:
            found = check_one(device, config, case)
            done += 1
            right += not (found.refusal or found.wrong)
            if found.wrong:
                wrong += 1
                print(f"WRONG {config} | {case.name} | {found.verdict}", flush=True)
            elif found.refusal:
                print(f"refused {config} | {case.name} | {found.refusal}", flush=True)
    return right, wrong, len(work) - done


def packed_tensors(lengths: np.ndarray) -> dict[str, torch.Tensor]:
    """Normal numbers and the boundaries, with outputs that are not numbers."""
    torch.manual_seed(0)
    shape = (1, TOKENS, HEADS, WIDTH)
    made = {name: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name in "qkv"}
    made["o"] = torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    return made | {"cu_seqlens_q": ends, "cu_seqlens_k": ends.clone()}


def call_of(tensors: dict[str, torch.Tensor]) -> dict[str, TensorArg]:
    """Where they lie."""
    return {
        name: TensorArg(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))
        if t.dim() == 4
        else TensorArg(t.data_ptr())
        for name, t in tensors.items()
    }


def alone(tensors: dict[str, torch.Tensor], lengths: np.ndarray, causal: bool) -> torch.Tensor:
    """The output of every sequence by a call of its own."""
    ends = [0, *np.cumsum(lengths)]
    parts = [
        flash_attention(*(tensors[n][:, a:b] for n in "qkv"), causal=causal)
        for a, b in itertools.pairwise(ends)
    ]
    return torch.cat(parts, dim=1)


def peer_contender(path: str, tensors, causal: bool) -> tuple[Contender, torch.Tensor]:
    """The peer on the same tensors, and its output."""
    spec = importlib.util.spec_from_file_location("packed_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operators = module.load("d128")
    q, k, v = (tensors[name][0] for name in "qkv")
    more = {name: tensors[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    more |= {"max_seqlen_q": LONGEST, "max_seqlen_k": LONGEST}

    def run() -> torch.Tensor:
        return module.forward(operators, q, k, v, causal=causal, **more)[0]

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            run()

    return Contender("peer", launch), run()


def raced_configs(device, problem: AttentionProblem) -> list:
    """What is chosen for a problem, then d 128 in bf16: five of two warpgroups, one of three."""
    chosen = choose(problem, device.arch, gpu=device.name).config
    named = [
        c
        for c in get_kernel_configs("hopper")
        if (c.dtype.name, c.d_head, c.cluster) == ("BF16", WIDTH, 1)
    ]
    three = next(c for c in named if c.n_warpgroups == 3)
    return list(dict.fromkeys([chosen, *named[:5], three]))


def race(device, lengths: np.ndarray, causal: bool, peer: str | None, rounds: int, say):
    """Packed, equal and the peer in one interleaved run, with the problem and flops of each."""
    packed = AttentionProblem(
        1, HEADS, HEADS, TOKENS, TOKENS, WIDTH, causal=causal, sequences=SEQUENCES
    )
    area = sum(packed.mask_of(int(n), int(n)).area for n in lengths)
    flops = 4.0 * HEADS * WIDTH * area
    length = round(float((lengths**2).sum() / lengths.sum()))
    equal = AttentionProblem(TOKENS // length, HEADS, HEADS, length, length, WIDTH, causal=causal)
    tensors = packed_tensors(lengths)
    call = call_of(tensors)
    truth = alone(tensors, lengths, causal).float()
    dense = {
        name: torch.randn((equal.batch, length, HEADS, WIDTH), device="cuda", dtype=torch.bfloat16)
        for name in "qkvo"
    }
    contenders, work = [], {}
    for config in raced_configs(device, packed):
        try:
            prepared = prepare(device, config, packed)
        except FlashsmithError as error:
            say(f"not raced: {error}")
            continue
        tensors["o"].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared(call)
        device.synchronize()
        far = float((tensors["o"].float() - truth).abs().max())
        say(f"{'causal' if causal else 'full'} {config}: furthest from each alone {far:.4f}")
        name = f"packed {config.short_form()}"
        contenders.append(Contender(name, lambda s, p=prepared: p(call, s)))
        work[name] = packed, flops
    for config in raced_configs(device, equal)[:4]:
        prepared, at = prepare(device, config, equal), call_of(dense)
        name = f"equal {config.short_form()}"
        contenders.append(Contender(name, lambda s, p=prepared, at=at: p(at, s)))
        work[name] = equal, cost_of(equal).flops
    if peer:
        contender, theirs = peer_contender(peer, tensors, causal)
        far = float((theirs[None].float() - truth).abs().max())
        say(f"the peer: furthest from each alone {far:.4f}")
        contenders.append(contender)
        work["peer"] = packed, flops
    return compare(device, contenders, rounds=rounds, attempts=2), work


def main() -> None:
    """Checks, races; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--peer")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of checking")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    begin, said, table = time.monotonic(), [], []

    def say(text: str) -> None:
        said.append(text)
        print(f"[{time.monotonic() - begin:5.0f} s] {text}", flush=True)

    right, wrong, left = check(device, time.monotonic() + arguments.budget)
    say(f"packed cases: {right} right, {wrong} WRONG, {left} not run in time")
    lengths = drawn_lengths()
    say(f"lengths {lengths.tolist()}, ΣL²/ΣL {(lengths**2).sum() / lengths.sum():.0f}")
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    for causal in (False, True):
        run, work = race(device, lengths, causal, arguments.peer, arguments.rounds, say)
        for place, (problem, flops) in enumerate(work.values()):
            found = records_of(run, problem, environment, suite="packed", flops=flops)
            append_records(arguments.output, [found[place]])
        table.append((causal, run, work))
    print("\n" + "\n".join(said))
    for causal, run, work in table:
        show(causal, run, work)


def show(causal: bool, run, work: dict[str, tuple[AttentionProblem, float]]) -> None:
    """Times and rates of one mask; what is chosen against the best of equal length and the peer."""
    print(
        f"\n{'causal' if causal else 'full'}{' VOID' if run.is_void else ''}, A/A control "
        f"{run.control.median:.4f}"
    )
    rates = {t.name: work[t.name][1] / t.time_us.median / 1e6 for t in run.timed}
    for timed in run.timed:
        print(f"  {timed.time_us.median:8.1f} µs {rates[timed.name]:6.0f} TFLOP/s  {timed.name}")
    chosen = next(iter(rates.values()))
    equal = max(rate for name, rate in rates.items() if name.startswith("equal"))
    peer = rates.get("peer", float("nan"))
    print(f"  chosen / equal {chosen / equal:.3f}, chosen / peer {chosen / peer:.3f}")


if __name__ == "__main__":
    main()
