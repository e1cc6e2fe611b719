"""Races gradients of grouped heads beside those of plain ones, by useful FLOP.

    PYTHONPATH=src python tools/bwd_groups.py -o FILE [--budget SECONDS] [--peer FILE.py:NAME] \\
        [--cells 128:causal:4096:8:16384]

A cell is a width, a mask, a length, the heads of Q that share one of K and V, and all tokens. What
the rule chooses for the plain problem and for the grouped one run interleaved, beside what it would
choose for groups without parts, the same with parts of other sizes, and sums in any order; a ratio
is the plain problem's time over a grouped one's, round by round. All kernels are compiled on all
cores first. Each configuration is checked on a small problem and repeated bit by bit at full size,
and its gradients are compared with the first one's. Records are appended to FILE; the table comes
last. A peer, called as tools/bwd_h200.py says, runs the grouped problem.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bwd_candidates import name_of, peer_contender
from bwd_h200 import GRADIENTS, TOKENS, WIDTH, call_of, peer_of, tensors_of

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import Case
from flashsmith.check.survey import compile_jobs
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.plans import plan
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
PARTS = (10, 20, 80)  # MB
WIDTHS, MASKS = (128, 64, 256), ("causal", "full")
CELLS = ",".join(
    f"{d}:{mask}:{length}:{group}:{tokens}"
    for length, group, tokens in (
        *((length, 8, TOKENS) for length in (4096, 8192, 2048, 1024, 512, 16384)),
        (4096, 4, TOKENS),
        (4096, 32, 4096),
    )
    for d in WIDTHS
    for mask in MASKS
)


@dataclass(frozen=True)
class Cell:
    """Problems of one size, plain and grouped."""

    d_head: int
    mask: str
    length: int
    group: int
    tokens: int

    def problem(self, group: int) -> AttentionProblem:
        """A cell of the papers' grid with at most so many heads of Q for each of K and V."""
        heads = WIDTH // self.d_head
        return AttentionProblem(
            *(self.tokens // self.length, heads, max(heads // group, 1)),
            *(self.length, self.length, self.d_head),
            causal=self.mask == "causal",
            operation="backward",
        )

    def small(self, group: int) -> AttentionProblem:
        """Three kv blocks, a tail, an odd number of groups."""
        heads = 3 if group == 1 else 12
        return AttentionProblem(
            *(1, heads, 3, 330, 330, self.d_head),
            causal=self.mask == "causal",
            operation="backward",
        )

    def contenders(self) -> list[tuple[str, Sm90BackwardConfig, int]]:
        """Labels, configurations and groups: the rule's choices first."""
        arch, group = get_arch("sm_90a"), self.group
        plain, chosen = (rule.candidates(self.problem(n), arch)[0] for n in (1, group))
        free = rule.candidates(replace(self.problem(group), deterministic=False), arch)
        others = [plain, *(replace(chosen, part_mb=megabytes) for megabytes in PARTS)]
        found = [
            ("plain", plain, 1),
            (f"chosen {chosen.short_form()}", chosen, group),
            *((c.short_form(), c, group) for c in (*others, *free) if c in others or c.unordered),
        ]
        by_work = {self.work(config, n): (label, config, n) for label, config, n in found[::-1]}
        return list(by_work.values())[::-1]

    def work(self, config: Sm90BackwardConfig, group: int) -> tuple[object, ...]:
        """What a configuration is on the cell's problem: equal where two do the same."""
        launches = plan(config, self.problem(group), sm_count=132)
        return group, *((launch.config, launch.order) for launch in launches)


def check(device, work) -> set[tuple[Sm90BackwardConfig, AttentionProblem]]:
    """Those that are right on a small problem."""
    right = set()
    for config, small in work:
        verdict = check_case(device, config, Case("small", small))
        if verdict.ok:
            right.add((config, small))
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


def race(device, cell, right, peers) -> tuple[Comparison, list[AttentionProblem]] | None:
    """An interleaved run of what is right."""
    raced, problems = [], []
    theirs: dict[int, list[torch.Tensor]] = {}
    for label, config, group in cell.contenders():
        if (config, cell.small(group)) not in right:
            continue
        problem = cell.problem(group)
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
    for name, make in peers:
        contender, gradients = peer_contender(name, make, problem, tensors)
        pairs = zip(gradients, theirs[group], strict=False)
        far = max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)
        print(f"{far:.1e} from {contender.name}", flush=True)
        raced.append(contender)
        problems.append(problem)
    return compare(device, raced, rounds=ROUNDS, attempts=2), problems


def show(cell, run: Comparison, flops: float) -> None:
    """A line for each contender: TFLOP/s, and of the plain rate."""
    print(f"\n{cell}{' VOID' if run.is_void else ''}", flush=True)
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
    parser.add_argument("--peer", action="append", default=[])
    return parser.parse_args()


def main() -> None:
    """Compiles, checks, races."""
    arguments = parsed()
    until = time.monotonic() + arguments.budget
    cells = [
        Cell(int(d_head), mask, *map(int, numbers))
        for d_head, mask, *numbers in (text.split(":") for text in arguments.cells.split(","))
    ]
    device = timed_device(default_device("cuda"))
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    jobs = [
        (c, Case("cell", problem))
        for cell in cells
        for _, c, group in cell.contenders()
        for problem in (cell.problem(group), cell.small(group))
    ]
    work = {(c, cell.small(group)): None for cell in cells for _, c, group in cell.contenders()}
    peers = [(name_of(text), peer_of(text)) for text in arguments.peer]
    compile_many(compile_jobs(device, jobs))
    print(f"compiled, {until - time.monotonic():.0f} s left", flush=True)
    right = check(device, work)
    print(f"{len(right)} of {len(work)} right, {until - time.monotonic():.0f} s left", flush=True)
    for cell in cells:
        if until - time.monotonic() < 5:
            print(f"not raced in time: {cell}", flush=True)
            continue
        try:
            found = race(device, cell, right, peers)
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
