"""Races kernels with windows, caps, slopes, sinks and biases against the plain kernel of the run.

    PYTHONPATH=src python tools/masks_h200.py -o FILE [--peer FILE.py:NAME] [--only window,scores,…]

Every run is interleaved: first the plain problem with the kernel that is chosen for it, then the
problem with the fact on every configuration of `CONFIGS`, then the peer, a function
(q, k, v, causal, window) that returns the output, where it has windows. A ratio of 1 is the rate of
the plain kernel on the area that the mask leaves. Records are appended to FILE; the table is last.
"""

from __future__ import annotations

import argparse
import importlib.util
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch

from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import Case
from flashsmith.check.survey import compile_jobs
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.parse import parse_config
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import Record, append_records
from flashsmith.measure.timed_configs import contender_of, random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.tensors import contiguous_tensors, uploaded
from flashsmith.tuner.choose.choice import choose

_LOOP = "overlap+early_rescale+tiles_DYNAMIC+late_draw+sections"
_SUM = f"{_LOOP}+stats_SUM+lazy_8"
_WIDE = f"(BF16, 128, 2, 128): kv_2+q_4+{_SUM}+halves+pingpong+early_tests"
_VOTE = f"{_LOOP}+stats_VOTE+lazy_8+halves+pingpong+early_tests+o_smem"
_BITS = _VOTE.replace("VOTE", "BITS")
_THREE = f"(BF16, 64, 3, 128): kv_3+q_6+{_SUM}+halves+pingpong"
CONFIGS = {
    128: (
        f"{_WIDE}+split+o_smem+late_store+regs_232_40",
        f"(BF16, 128, 2, 128): kv_2+q_4+{_BITS}+late_store+regs_232_40",
        f"(BF16, 128, 3, 80): kv_2+q_6+{_LOOP}+stats_BITS+lazy_8+early_tests+o_smem+regs_160_32",
        f"(BF16, 128, 3, 80): kv_2+q_6+{_SUM}+pingpong+early_tests+split+o_smem+hints+regs_160_32",
    ),
    64: (
        f"{_THREE}+o_smem+regs_160_32",
        f"(BF16, 64, 2, 128): kv_3+q_4+{_SUM}+halves+pingpong+o_smem+regs_232_40",
        f"(BF16, 64, 2, 128): kv_3+q_4+{_VOTE}+regs_232_40",
    ),
}
WINDOWS = [
    (d, length, {"window_left": 1024, "causal": True})
    for d in (128, 64)
    for length in (8192, 32768)
]
SCORES = [
    (d, 4096, facts)
    for d in (128, 64)
    for facts in (
        {"softcap": 50.0},
        {"softcap": 50.0, "causal": True},
        {"alibi": True},
        {"alibi": True, "causal": True},
        {"sinks": True},
        {"sinks": True, "causal": True},
    )
]
_OF_ALL = {"bias_shared": "both"}  # one matrix for all heads and sequences
BIASES = [
    (128, 4096, facts)
    for facts in (
        {"bias": "same", "bias_keys": "chunks", **_OF_ALL},
        {"bias": "bool", **_OF_ALL},
        {"bias": "float32", **_OF_ALL},
    )
]


def problems_of(d_head: int, length: int, facts: dict) -> tuple[AttentionProblem, AttentionProblem]:
    """The plain problem that the rate is taken from, and the one with the facts."""
    batch = 1 if "window_left" in facts else 16384 // length
    plain = AttentionProblem(batch, 16, 16, length, length, d_head)
    causal = bool(facts.get("causal")) and "window_left" not in facts
    return replace(plain, causal=causal), replace(plain, **facts)


def peer_of(text: str):
    """The peer's function on tensors, called as FlashAttention-3's is where its file has `load`."""
    path, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("masks_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not hasattr(module, "load"):
        return function
    operators = module.load("d128")

    def call(q, k, v, causal, window):
        return function(operators, q, k, v, causal=causal, window=window)

    return call


def peer_contender(peer, problem: AttentionProblem) -> Contender:
    """The peer on tensors of its own."""
    torch.manual_seed(0)
    shape = (problem.batch, problem.q_len, problem.heads, problem.d_head)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    window = (
        -1 if problem.window_left is None else problem.window_left,
        0 if problem.causal else -1,
    )
    peer(q, k, v, problem.causal, window)

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            peer(q, k, v, problem.causal, window)

    return Contender("peer", launch)


def race(device, plain, asked, configs, peer, rounds: int):
    """One interleaved run, and the problem of each contender."""
    chosen = choose(plain, device.arch, gpu=device.name).config
    with ExitStack() as stack:
        calls = {}
        for problem in (plain, asked):
            locations, buffers = contiguous_tensors(problem, random_inputs(problem))
            calls[problem] = stack.enter_context(uploaded(device, buffers)).call(locations)
        contenders = [replace(contender_of(device, chosen, plain, calls[plain]), name="plain")]
        problems = [plain]
        for config in configs:
            try:
                contenders.append(contender_of(device, config, asked, calls[asked]))
                problems.append(asked)
            except FlashsmithError as error:
                print(f"left out: {error}", flush=True)
        if peer is not None and "window_left" in problem_fields(asked) and asked.d_head == 128:
            contenders.append(peer_contender(peer, asked))
            problems.append(asked)
        return compare(device, contenders, rounds=rounds, attempts=2), problems


def small_of(asked: AttentionProblem) -> AttentionProblem:
    """What a configuration is checked on: odd lengths, three heads on one, a bias for each."""
    small = replace(asked, heads=3, kv_heads=1, batch=1, q_len=1711, k_len=1712, lse=True)
    return replace(small, bias_shared="")


def compile_all(device, work) -> None:
    """Side by side, before anything is timed."""
    jobs = []
    for d_head, length, facts in work:
        plain, asked = problems_of(d_head, length, facts)
        jobs.append((choose(plain, device.arch, gpu=device.name).config, Case("race", plain)))
        for text in CONFIGS[d_head]:
            config = parse_config(f"hopper{text}")
            jobs += [(config, Case("race", problem)) for problem in (asked, small_of(asked))]
    compile_many(compile_jobs(device, jobs))


def main() -> None:
    """Checks each configuration on a small problem, races, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--peer")
    parser.add_argument("--only", default="window,scores,bias")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, help="only this d_head")
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    environment = asdict(environment_of(device, compiler=find_nvrtc().compiler))
    peer = peer_of(arguments.peer) if arguments.peer else None
    table = []
    parts = {"window": WINDOWS, "scores": SCORES, "bias": BIASES}
    work = [one for part, of_part in parts.items() if part in arguments.only for one in of_part]
    work = [one for one in work if not arguments.width or one[0] == arguments.width]
    compile_all(device, work)
    for d_head, length, facts in work:
        plain, asked = problems_of(d_head, length, facts)
        configs = [parse_config(f"hopper{text}") for text in CONFIGS[d_head]]
        small = small_of(asked)
        right = []
        for config in configs:
            try:
                check_case(device, config, Case("race", small)).require_ok(config.short_form())
                right.append(config)
            except FlashsmithError as error:
                print(f"NOT RIGHT: {error}", flush=True)
        run, problems = race(device, plain, asked, right, peer, arguments.rounds)
        base = run.timed[0]
        for timed, problem in zip(run.timed, problems, strict=True):
            share = problem.mask.area / plain.mask.area
            ideal = base.time_us.median * share / timed.time_us.median
            result = {
                "median_us": timed.time_us.median,
                "p20_us": timed.time_us.p20,
                "p80_us": timed.time_us.p80,
                "share_of_the_plain_rate": ideal,
                "control": run.control.median,
                "rounds": timed.time_us.rounds,
            }
            what = {"suite": "masks", "name": timed.name, **problem_fields(problem)}
            append_records(arguments.output, [Record(what, result, environment)])
            void = " VOID" if run.is_void else ""
            table.append(
                f"d {d_head} {length} {facts}{void}: {timed.time_us.median:8.1f} µs, "
                f"{ideal:.3f} of plain, {timed.name[:150]}"
            )
        print(table[-1], flush=True)
    print("\n".join(table))


if __name__ == "__main__":
    main()
