"""The timed parts of the Hopper record on the grid: cells, ladder, counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hopper_prototype import NAME as PROTOTYPE
from hopper_prototype import Prototype
from hopper_shapes import (
    CELLS,
    TOKENS,
    WIDTH,
    captured,
    cudnn,
    device,
    make_tensors,
    ours,
    pick,
    problem_of,
)

from flashsmith.base.dtypes import DType
from flashsmith.bench.ladder import LADDER
from flashsmith.bench.profile import Job, Task, profile
from flashsmith.bench.versus import OURS
from flashsmith.config import get_kernel_configs
from flashsmith.measure.environment import Environment
from flashsmith.measure.interleaved import Comparison, Contender, Regime, compare
from flashsmith.measure.record import Record, records_of
from flashsmith.measure.timed_configs import time_configs
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import forward_cost
from flashsmith.tuner.measurement import problem_fields

SUITE = "hopper"
ROUNDS, SHORT_ROUNDS = 21, 41
SHORT_US = 300.0  # a kernel below this is cheap to time, and its time varies more
USUAL_TFLOPS = 600.0  # to tell beforehand which kernels are short
SUSTAINED_ROUNDS, SUSTAINED_A_LOAD, SUSTAINED_ATTEMPTS = 16, 8, 2  # two loads a contender
CUDNN_SUSTAINED = (16384,)
LADDER_LENGTHS = (4096, 16384)

Cell = tuple[int, bool, int]
Numbers = dict[str, Any]  # Any: values of a JSON line


@dataclass(frozen=True, slots=True)
class Setting:
    """What every part is given."""

    environment: Environment
    prototype: Prototype | None
    done: frozenset[tuple[str, Cell]]  # regime and cell of what the record holds already


def flat(setting: Setting, what: Numbers, result: Mapping[str, object]) -> Record:
    """A line of the record that is no comparison of one problem."""
    return Record(what, result, asdict(setting.environment))


def cells(setting: Setting, regime: Regime) -> Iterator[Record]:
    """Our pick, the prototype's variants and cuDNN on every cell that the record lacks."""
    # Lengths far from each other first: a run that is cut short has seen all widths and masks.
    order = (16384, 2048, 512, 8192, 1024, 4096)
    for cell in sorted(CELLS, key=lambda cell: order.index(cell[2])):
        if (regime, cell) not in setting.done:
            yield from _cell(setting, regime, cell)


def _cell(setting: Setting, regime: Regime, cell: Cell) -> list[Record]:
    d, causal, length = cell
    tensors = make_tensors(d, length)
    problem = problem_of(tensors, causal=causal)
    mine, picked = ours(tensors, causal=causal, name=OURS)
    contenders = [mine]
    if setting.prototype is not None:
        contenders += setting.prototype.contenders(tensors, causal=causal)
    if regime == "burst" or length in CUDNN_SUSTAINED:
        contenders.append(captured("cuDNN", cudnn(tensors, causal=causal)))
    flops = forward_cost(problem).flops
    comparison = _timed(contenders, flops, regime)
    made = records_of(comparison, problem, setting.environment, suite=SUITE, flops=flops)
    return kept_records(made, picked.short_form())


def _timed(contenders: Sequence[Contender], flops: float, regime: Regime) -> Comparison:
    if regime == "burst":
        short = flops / USUAL_TFLOPS / 1e6 < SHORT_US
        return compare(device(), contenders, rounds=SHORT_ROUNDS if short else ROUNDS)
    return compare(
        device(),
        contenders,
        rounds=SUSTAINED_ROUNDS,
        regime=regime,
        timed_a_load=SUSTAINED_A_LOAD,
        attempts=SUSTAINED_ATTEMPTS,
    )


def kept_records(made: Sequence[Record], config: str) -> list[Record]:
    """Ours with its configuration, peers, and of the prototype the variant that is fastest here."""
    variants = {
        str(r.what["name"]).removeprefix(f"{PROTOTYPE} "): r
        for r in made
        if str(r.what["name"]).startswith(PROTOTYPE)
    }
    kept = [
        replace(r, what={**r.what, "config": config}) if r.what["name"] == OURS else r
        for r in made
        if r not in variants.values()
    ]
    if variants:
        best = min(variants, key=lambda name: float(variants[name].result["median_us"]))
        rates = {name: r.result["tflops"] for name, r in variants.items()}
        chosen = variants[best]
        what = {**chosen.what, "name": PROTOTYPE, "variant": best}
        kept.insert(1, replace(chosen, what=what, result={**chosen.result, "variants": rates}))
    return kept


def ladder(setting: Setting) -> Iterator[Record]:
    """Every step of the ladder on the same problem, interleaved."""
    for length in LADDER_LENGTHS:
        problem = grid_problem(128, False, length)
        steps = get_kernel_configs("hopper-prog")
        comparison = time_configs(device(), steps, problem, rounds=SHORT_ROUNDS)
        flops = forward_cost(problem).flops
        yield from records_of(comparison, problem, setting.environment, suite=LADDER, flops=flops)


def counters(setting: Setting) -> Iterator[Record]:
    """Cycles, tensor use and more of the ladder's steps and of the picks at the longest cells."""
    steps = tuple(get_kernel_configs("hopper-prog"))
    tasks = [Task(grid_problem(128, False, length), steps) for length in LADDER_LENGTHS]
    for d, causal, length in CELLS:
        if length == TOKENS:
            problem = grid_problem(d, causal, length)
            tasks.append(Task(problem, (pick(problem),)))
    found, left_out = profile(Job(tuple(tasks), runs=1, reference=False))
    for reason in left_out:
        print("left out:", reason, flush=True)
    for one in found:
        what = {"suite": "profile", "name": one.who, **problem_fields(one.problem)}
        yield flat(setting, what, {**one.metrics, "tflops": one.tflops})


def grid_problem(d: int, causal: bool, length: int, dtype: DType = DType.BF16) -> AttentionProblem:
    """A cell of the grid."""
    heads = WIDTH // d
    return AttentionProblem(TOKENS // length, heads, heads, length, length, d, dtype, causal)
