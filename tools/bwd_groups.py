"""Races gradients of grouped heads beside those of plain ones, by useful FLOP.

    PYTHONPATH=src python tools/bwd_groups.py -o FILE [--budget SECONDS] [--cells 128:causal:4096:8]

A cell is a width, a mask, a length and the heads of Q that share one of K and V. What the rule
chooses for the plain problem, what it chooses for the grouped one, and the candidates of `WORDS`
run interleaved; a ratio is the plain problem's time over a grouped one's, round by round. All
kernels are compiled on all cores first. Each candidate is checked on a small problem and repeated
bit by bit at full size, and its gradients are compared with the first one's. Records are appended
to FILE; the table comes last.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from bwd_h200 import GRADIENTS, TOKENS, WIDTH, call_of, tensors_of

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import Case
from flashsmith.check.survey import compile_jobs
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import parse_config
from flashsmith.kernels.sm90_backward import rule
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Comparison, Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import ratio_by_round
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare

ROUNDS, REPEATS = 15, 4
FAR = 0.02  # of another configuration's gradient: 16-bit roundings give a tenth of it
_ALL = "turns+fold+early_dv+late_fences"
_64 = f"hopper_bwd(BF16, 64): ds_2+{_ALL}"
_128 = f"hopper_bwd(BF16, 128): ds_3+{_ALL}"
_256 = "hopper_bwd(BF16, 256): ds_2"
_FULL_64 = f"{_64}+adders_3+early_polls+section_"
_HIDING = "adders_3+early_polls+rising+section_"
_QUICK = "+heads_inner+rounds_dq+early_start"
_PASSES = "two_passes+early_release+v_halves"
_EARLY = "+heads_inner+early_start"
PARTS = ("", "+part_4", "+part_2", "+part_1")
# By width and mask, beside the rule's choice.
WORDS = {
    (64, "full"): [f"{_FULL_64}10{_QUICK}", f"{_FULL_64}20{_QUICK}+part_4"],
    (64, "causal"): [
        *(f"{_64}+masks_first+{_HIDING}20{_QUICK}{part}" for part in PARTS),
        f"{_64}+masks_first+{_HIDING}10{_QUICK}+part_4",
        f"{_64}+{_HIDING}20{_QUICK}+part_4",
    ],
    (128, "full"): [
        *(f"{_128}+adders_3+section_{mb}+heads_inner" for mb in (10, 20, 40)),
        f"{_128}+adders_3+section_40+heads_inner+part_4",
    ],
    (128, "causal"): [
        *(f"{_128}+masks_first+{_HIDING}10{part}" for part in PARTS),
        f"{_128}+masks_first+{_HIDING}20+part_2",
        f"{_128}+{_HIDING}10+part_2",
    ],
    (256, "full"): [f"{_256}+{_PASSES}+heads_inner+early_start+part_4"],
    (256, "causal"): [
        *(f"{_256}+masks_first+{_PASSES}+short_last+section_40{_EARLY}{part}" for part in PARTS),
        *(f"{_256}+masks_first+{_PASSES}+section_{mb}{_EARLY}+part_2" for mb in (40, 80)),
        f"{_256}+{_PASSES}+short_last+section_40{_EARLY}+part_2",
    ],
}
CELLS = ",".join(
    f"{d}:{mask}:{length}:{group}"
    for length, group in ((4096, 8), (8192, 8), (4096, 4))
    for d in (128, 64, 256)
    for mask in ("causal", "full")
)


def problem_of(d_head: int, mask: str, length: int, group: int) -> AttentionProblem:
    """A cell of the papers' grid with fewer heads of K and V."""
    heads = WIDTH // d_head
    return AttentionProblem(
        *(TOKENS // length, heads, max(heads // group, 1), length, length, d_head),
        causal=mask == "causal",
        operation="backward",
    )


def contenders_of(cell: tuple[int, str, int, int]) -> list[tuple[str, Sm90BackwardConfig, int]]:
    """Labels, configurations and groups: the rule's choices first, then what they are without."""
    d_head, mask, length, group = cell
    arch = get_arch("sm_90a")
    plain, grouped = (
        rule.candidates(problem_of(d_head, mask, length, g), arch)[0] for g in (1, group)
    )
    found = [("plain", plain, 1), ("chosen", grouped, group)]
    if plain.masks_first:
        without = parse_config(plain.short_form().replace("+masks_first", ""))
        found.append(("plain, masks in every step", without, 1))
    tried = [parse_config(text) for text in WORDS[d_head, mask]]
    return [*found, *((c.short_form(), c, group) for c in tried if c != grouped)]


def check(device, work) -> set[tuple[Sm90BackwardConfig, int]]:
    """Those that are right on a small problem: three kv blocks, a tail, an odd number of groups."""
    right = set()
    for config, mask, group in work:
        small = AttentionProblem(
            *(1, 3 * group, 3, 330, 330, config.d_head),
            causal=mask == "causal",
            operation="backward",
        )
        verdict = check_case(device, config, Case("small", small))
        if verdict.ok:
            right.add((config, group))
        else:
            print(f"WRONG {config} | {verdict}", flush=True)
    return right


def gradients_of(device, prepared, tensors) -> tuple[list[torch.Tensor], bool]:
    """What a configuration gives, and whether every repeat had the same bits."""
    first: list[torch.Tensor] = []
    same = True
    for _ in range(REPEATS):
        for name in GRADIENTS:
            tensors[name].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared(call_of(tensors))
        device.synchronize()
        first = first or [tensors[name].clone() for name in GRADIENTS]
        pairs = zip(GRADIENTS, first, strict=True)
        same &= all(
            torch.equal(tensors[n].view(torch.int16), f.view(torch.int16)) for n, f in pairs
        )
    return first, same


def race(device, cell, right) -> tuple[Comparison, list[AttentionProblem]] | None:
    """An interleaved run of what is right."""
    raced, problems = [], []
    theirs: dict[int, list[torch.Tensor]] = {}
    for label, config, group in contenders_of(cell):
        if (config, group) not in right:
            continue
        problem = problem_of(*cell[:3], group)
        tensors, prepared = tensors_of(problem), prepare(device, config, problem)
        found, same = gradients_of(device, prepared, tensors)
        beside = theirs.setdefault(group, found)
        far = max(
            ((a.float() - b.float()).norm() / b.float().norm()).nan_to_num(float("inf")).item()
            for a, b in zip(found, beside, strict=True)
        )
        if far > FAR or (not same and config.repeats_bits):
            print(f"WRONG {cell} {label}: {far:.1e} off, same bits: {same}", flush=True)
            continue
        call = call_of(tensors)
        raced.append(Contender(label, lambda s, p=prepared, c=call, _t=tensors: p(c, s)))
        problems.append(problem)
    if not raced or raced[0].name != "plain":
        return None
    return compare(device, raced, rounds=ROUNDS, attempts=2), problems


def show(cell, run: Comparison, flops: float) -> None:
    """A line for each contender: TFLOP/s, and of the plain rate."""
    print(f"\n{':'.join(map(str, cell))}{' VOID' if run.is_void else ''}", flush=True)
    for timed in run.timed:
        ratio = ratio_by_round(run.timed[0].times_us, timed.times_us).median
        rate = flops / timed.time_us.median / 1e6
        print(f"  {rate:6.1f} {ratio:6.3f}  {timed.name.rpartition('late_fences+')[2]}", flush=True)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of the records")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds of everything")
    parser.add_argument("--cells", default=CELLS)
    return parser.parse_args()


def main() -> None:
    """Compiles, checks, races."""
    arguments = parsed()
    until = time.monotonic() + arguments.budget
    cells = []
    for text in arguments.cells.split(","):
        d_head, mask, length, group = text.split(":")
        cells.append((int(d_head), mask, int(length), int(group)))
    device = timed_device(default_device("cuda"))
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    work = {(c, cell[1], g): None for cell in cells for _, c, g in contenders_of(cell)}
    jobs = [
        (c, Case("cell", problem))
        for cell in cells
        for _, c, g in contenders_of(cell)
        for problem in (
            problem_of(*cell[:3], g),
            AttentionProblem(
                *(1, 3 * g, 3, 330, 330, c.d_head), causal=cell[1] == "causal", operation="backward"
            ),
        )
    ]
    compile_many(compile_jobs(device, jobs))
    print(f"compiled, {until - time.monotonic():.0f} s left", flush=True)
    right = check(device, work)
    print(f"{len(right)} of {len(work)} right, {until - time.monotonic():.0f} s left", flush=True)
    for cell in cells:
        if until - time.monotonic() < 5:
            print(f"not raced in time: {cell}", flush=True)
            continue
        try:
            found = race(device, cell, right)
        except FlashsmithError as error:
            print(f"FAILED {cell}: {error}", flush=True)
            continue
        if found is None:
            continue
        run, problems = found
        flops = cost_of(problems[0]).flops
        for place, problem in enumerate(problems):
            records = records_of(run, problem, environment, suite="groups", flops=flops)
            append_records(arguments.output, [records[place]])
        show(cell, run, flops)
    print(f"{until - time.monotonic():.0f} s left", flush=True)


if __name__ == "__main__":
    main()
