"""Checks the backward kernels on a GPU, repeats them bit by bit, and races them.

    PYTHONPATH=src python tools/bwd_h200.py --out FOLDER [--peer FILE.py:NAME] [--only check,race]

Sets `hopper-bwd` and `bwd` run the full cases (as many as the budget allows, and it is said how
many), full-size problems run 100 times on every deterministic configuration and their bits are
compared, then the bf16 configurations of `hopper-bwd` are raced at three lengths, full and causal,
with the protocol of measure/. Records are appended to FOLDER/backward.jsonl; the table comes last.

The peer is a function (problem, d_out, q, k, v, out, lse) that returns the call to time, which
gives (dq, dk, dv). Where its file has a function `load`, it is called as FlashAttention-3's is:
NAME(load(), d_out, q, k, v, out, lse, causal=…).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import torch

from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import full_cases
from flashsmith.check.survey import check_one, compile_jobs
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import get_kernel_configs
from flashsmith.kernels.arguments import TensorArg
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import geometric_mean
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_text
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare

TOKENS, WIDTH = 16384, 2048  # of every problem: batch * length, heads * d_head
LENGTHS = "512,2048,8192"
GRADIENTS = ("dq", "dk", "dv")
REPEATS = 100
WIDTHS = (64, 128, 256)
APART = ("dq_red", "unordered", "sections")  # what sets configurations of one width apart


def check(device, key: str, deadline: float) -> tuple[int, int, int]:
    """How many of a set's cases are right, wrong, and not run in time."""
    work = [(c, case) for c in get_kernel_configs(key) for case in full_cases(c)]
    compile_many(compile_jobs(device, work))
    right = wrong = 0
    for done, (config, case) in enumerate(work):
        if time.monotonic() > deadline:
            return right, wrong, len(work) - done
        found = check_one(device, config, case)
        if found.refusal or found.wrong:
            wrong += 1
            print(f"WRONG {config} | {case.name} | {found.refusal or found.verdict}", flush=True)
        right += not (found.refusal or found.wrong)
    return right, wrong, 0


def tensors_of(problem: AttentionProblem) -> dict[str, torch.Tensor]:
    """Normal numbers; a log-sum-exp of about the size that theirs has."""
    p = problem
    torch.manual_seed(0)
    made = {}
    for name in ("do", "q", "k", "v", "o", *GRADIENTS):
        rows, heads = (p.k_len, p.kv_heads) if name.strip("d") in "kv" else (p.q_len, p.heads)
        shape = (p.batch, rows, heads, p.d_head)
        made[name] = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    made["o"] *= 0.05
    seen = torch.arange(1, p.q_len + 1, device="cuda") if p.causal else torch.tensor(float(p.k_len))
    lse = torch.log(seen.to("cuda", torch.float32)) + 0.5
    made["lse"] = lse.expand(p.batch, p.heads, p.q_len).contiguous()
    return made


def call_of(tensors: dict[str, torch.Tensor]) -> dict[str, TensorArg]:
    """Where they lie."""
    return {
        name: TensorArg(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))
        for name, t in tensors.items()
    }


def repeat(device, config, problem: AttentionProblem) -> str:
    """Whether the gradients of `REPEATS` runs have the same bits."""
    tensors = tensors_of(problem)
    call, prepared = call_of(tensors), prepare(device, config, problem)
    first, other = {}, dict.fromkeys(GRADIENTS, 0)
    for _ in range(REPEATS):
        for name in GRADIENTS:
            tensors[name].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared(call)
        device.synchronize()
        for name in GRADIENTS:
            bits = tensors[name].view(torch.int16)
            other[name] += not torch.equal(first.setdefault(name, bits.clone()), bits)
    finite = all(bool(torch.isfinite(tensors[name]).all()) for name in GRADIENTS)
    counts = ", ".join(f"{name} {n}" for name, n in other.items())
    return f"of {REPEATS} runs others than the first: {counts}{'' if finite else '; NOT FINITE'}"


def peer_of(text: str):
    """The function that makes the peer's call."""
    path, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("backward_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not hasattr(module, "load"):
        return function
    operators = module.load()
    return lambda problem, *given: lambda: function(operators, *given, causal=problem.causal)


def peer_contender(
    make, problem: AttentionProblem, tensors, runs
) -> tuple[Contender, dict[str, float]]:
    """The peer on the same tensors, and how far the gradients of `runs` are from its at most."""
    run = make(problem, *(tensors[name] for name in ("do", "q", "k", "v", "o", "lse")))
    theirs = dict(zip(GRADIENTS, run(), strict=False))
    far = dict.fromkeys(theirs, 0.0)
    for fill in runs:
        for name in GRADIENTS:
            tensors[name].fill_(float("nan"))
        torch.cuda.synchronize()
        fill()
        for name, peers in theirs.items():
            distance = (tensors[name].float() - peers.float()).norm() / peers.float().norm()
            far[name] = max(far[name], distance.nan_to_num(float("inf")).item())

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            run()

    return Contender("peer", launch), far


def race(device, configs, problem: AttentionProblem, make_peer, rounds: int):
    """An interleaved run of configurations and the peer on one problem."""
    tensors = tensors_of(problem)
    call = call_of(tensors)
    contenders, runs = [], []
    for config in configs:
        prepared = prepare(device, config, problem)
        contenders.append(Contender(config.short_form(), lambda s, p=prepared: p(call, s)))
        runs.append(lambda p=prepared: (p(call), device.synchronize()))
    far = {}
    if make_peer is not None:
        try:
            contender, far = peer_contender(make_peer, problem, tensors, runs)
            contenders.append(contender)
        # What a foreign library raises is not known beforehand.
        except Exception as error:  # noqa: BLE001
            print(f"the peer does not run {problem_text(problem)}: {error}", flush=True)
    return compare(device, contenders, rounds=rounds, attempts=2), far


def raced_configs(d_head: int, *, baseline: bool = False) -> list:
    """Every bf16 configuration on wgmma, after the one on mma.sync where it is asked for."""
    chosen = [c for c in get_kernel_configs("bwd") if c.d_head == d_head][: int(baseline)]
    named = get_kernel_configs("hopper-bwd")
    return [*chosen, *(c for c in named if (c.dtype.name, c.d_head) == ("BF16", d_head))]


def problem_of(d_head: int, length: int, causal: bool) -> AttentionProblem:
    """One cell of the grid."""
    heads, batch = WIDTH // d_head, TOKENS // length
    return AttentionProblem(
        batch, heads, heads, length, length, d_head, causal=causal, operation="backward"
    )


def main() -> None:
    """Checks, repeats, races; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--peer")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of checking a set")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="check,repeat,race")
    parser.add_argument("--lengths", default=LENGTHS, help="of the races")
    parser.add_argument("--baseline", action="store_true", help="race mma.sync too")
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    begin, said = time.monotonic(), []

    def say(text: str) -> None:
        said.append(text)
        print(f"[{time.monotonic() - begin:5.0f} s] {text}", flush=True)

    if "check" in arguments.only:
        for key in ("hopper-bwd", "bwd"):
            right, wrong, left = check(device, key, time.monotonic() + arguments.budget)
            say(f"{key}: {right} right, {wrong} WRONG or refused, {left} not run in time")
    if "repeat" in arguments.only:
        for config in (c for d in WIDTHS for c in raced_configs(d) if not c.unordered):
            for causal, length in ((False, 512), (True, 512), (False, 4096), (True, 4096)):
                problem = problem_of(config.d_head, length, causal)
                try:
                    found = repeat(device, config, problem)
                except FlashsmithError as error:
                    found = f"FAILED {error}"
                mask = "causal" if causal else "full"
                say(f"d {config.d_head} {label_of(config.short_form())} {mask} {length}: {found}")
    table = []
    if "race" in arguments.only:
        environment = environment_of(device, compiler=find_nvrtc().compiler)
        make_peer = peer_of(arguments.peer) if arguments.peer else None
        for d_head in WIDTHS:
            raced = raced_configs(d_head, baseline=arguments.baseline)
            for causal in (False, True):
                for length in map(int, arguments.lengths.split(",")):
                    problem = problem_of(d_head, length, causal)
                    run, far = race(device, raced, problem, make_peer, arguments.rounds)
                    flops = cost_of(problem).flops
                    found = records_of(run, problem, environment, suite="backward", flops=flops)
                    append_records(arguments.out / "backward.jsonl", found)
                    table.append((d_head, causal, length, run, far, flops))
                    print(f"[{time.monotonic() - begin:5.0f} s] {d_head} {causal} {length}")
    show(table, said)


def label_of(name: str) -> str:
    """A contender's name in the table: what sets it apart."""
    if not name.startswith("hopper_bwd"):
        return name.partition("(")[0]
    words = name.rpartition(" ")[2].split("+")
    return "+".join(word for word in words if word in APART) or "plain"


def show(table, said: list[str]) -> None:
    """What was found, in few lines: TFLOP/s, and ratios to the last contender."""
    print("\n" + "\n".join(said))
    ratios: dict[tuple[str, int, str], list[float]] = {}
    for d_head, causal, length, run, far, flops in table:
        last = run.timed[-1]
        mask = "causal" if causal else "full"
        cells = []
        for timed in run.timed:
            label = label_of(timed.name)
            over = last.time_us.median / timed.time_us.median
            ratios.setdefault((label, d_head, mask), []).append(over)
            cells.append(f"{label} {flops / timed.time_us.median / 1e6:.0f} ({over:.2f})")
        far_text = " ".join(f"{name} {x:.1e}" for name, x in far.items())
        void = " VOID" if run.is_void else ""
        print(f"d {d_head} {mask} {length}{void}: {', '.join(cells)} {far_text}")
    kinds = list(dict.fromkeys((d_head, mask) for _, d_head, mask in ratios))
    print("times as fast as the last, geometric means:", *(f"d {d} {mask}" for d, mask in kinds))
    for label in dict.fromkeys(label for label, _, _ in ratios):
        means = [geometric_mean(ratios[label, *kind]) for kind in kinds if (label, *kind) in ratios]
        print(f"{label:32} {' '.join(f'{mean:.3f}' for mean in means)}")


if __name__ == "__main__":
    main()
