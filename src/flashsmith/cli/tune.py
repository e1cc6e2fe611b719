"""`flashsmith tune`: the best configuration of each problem; without a GPU, all but times."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, ConfigError
from flashsmith.cli import options
from flashsmith.cli.output import note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.cli.tune_report import rows_of, say_end, title_of, write_charts, write_table
from flashsmith.compile.compiler import available_cores
from flashsmith.config import KernelConfig, parse_config
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.runtime.devices import default_device_name
from flashsmith.tuner import predict
from flashsmith.tuner.candidates import Candidate, compiled_candidates
from flashsmith.tuner.counting import (
    Places,
    count_facts,
    in_predicted_order,
    predicted_places,
    sm_count_of,
)
from flashsmith.tuner.executor import Executor
from flashsmith.tuner.store import ResultStore
from flashsmith.tuner.target import Target, target_here
from flashsmith.tuner.tune import Result, Tuner, tune_problem
from flashsmith.tuner.worker_pool import WorkerPool, one_worker_a_gpu

BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="Time to spend, as in 90s, 2m or 1h.")
]
SameBitsOption = Annotated[
    str | None,
    typer.Option(
        "--same-bits-as",
        metavar="SHORT_FORM",
        help="Choose only among configurations whose output has the same bits as this one's.",
    ),
]
TuneArchOption = Annotated[
    str | None, typer.Option("--arch", help="Without a GPU: the architecture to compile for.")
]
PageOption = Annotated[Path, typer.Option("-o", help="The page of charts that the run ends with.")]
StoreOption = Annotated[
    Path | None, typer.Option("--store", help="The results file; without it FLASHSMITH_RESULTS.")
]
ExportOption = Annotated[
    Path | None,
    typer.Option("--export", help="Write this GPU's choosable measurements as JSON lines."),
]
BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="Write the kernels that --export's lines choose.")
]
_UNITS = {"s": 1, "m": 60, "h": 3600}


def command(
    key: options.KeyArgument = None,
    device: options.DeviceOption = None,
    arch: TuneArchOption = None,
    seq_lens: options.SeqLensOption = "4096",
    d_heads: options.DHeadsOption = "128",
    batch: options.GridBatchOption = None,
    heads: options.GridHeadsOption = None,
    kv_heads: options.KvHeadsOption = None,
    causal: options.CausalOption = False,
    both_masks: options.BothMasksOption = False,
    dtype: options.DTypeOption = "bf16",
    budget: BudgetOption = None,
    same_bits_as: SameBitsOption = None,
    store: StoreOption = None,
    export: ExportOption = None,
    bundle: BundleOption = None,
    output: PageOption = Path("flashsmith-tune.html"),
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Find the best configuration for each problem; interrupted runs go on where they stopped.

    Example: flashsmith tune tune --seq-lens 1024,4096 --both-masks --budget 2m
    """
    began = time.time()
    configs = options.configs_of(key, "tune")
    problems = options.problems_of(
        seq_lens=seq_lens,
        d_heads=d_heads,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        causal=causal,
        both_masks=both_masks,
        dtype=dtype,
    )
    target = _target(device, arch)
    _require_times(target, export, bundle)
    model = parse_config(same_bits_as) if same_bits_as else None
    configs = _with_model(configs, model)
    with progress_bar(f"compiling for {target.arch}") as progress:
        candidates = compiled_candidates(configs, problems, target, progress=progress)
    if not candidates:
        raise ConfigError(
            f"None of the {len(configs)} configurations is for {dtype} and d_head {d_heads}; "
            f"choose another KEY, --dtype or --d-heads."
        )
    deadline = began + seconds_of(budget) if budget else None
    path = store or settings.results_path()
    places = _places(candidates, target, deadline)
    candidates = in_predicted_order(candidates, places)
    with ResultStore(path) as opened, _local_pool(target) as pool:
        results, measured = _run(opened, pool, target, candidates, deadline, model)
        rows = rows_of(results, target, places)
        show(rows, json=json, csv=csv, title=title_of(target, places))
        unreached, seconds = len(candidates) - len(rows), time.time() - began
        say_end(results, path, measured=measured, unreached=unreached, seconds=seconds)
        if export or bundle:
            write_table(opened, target.gpu, export, bundle)
    write_charts(results, output, places)


def seconds_of(text: str) -> float:
    """The seconds of a time such as `90s`, `2m` or `1h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found:
        raise ArgumentError(f"--budget is {text!r}; it is a time such as 90s, 2m or 1h.")
    return float(found[1]) * _UNITS[found[2]]


def _target(device: str | None, arch: str | None) -> Target:
    name = device or default_device_name()
    if name == "cuda" and arch is not None:
        raise ArgumentError(
            f"--arch is {arch!r} on a machine with a GPU; it is for tuning without one; add "
            f"--device emulator, or drop it."
        )
    target = target_here(name, arch)
    if not target.can_time:
        note(
            f"No GPU is used: kernels are compiled for {target.arch} and verified in the emulator; "
            f"nothing is timed."
        )
    return target


def _require_times(target: Target, export: Path | None, bundle: Path | None) -> None:
    if not target.can_time and (export or bundle):
        option = "--export" if export else "--bundle"
        raise ArgumentError(
            f"{option} is {str(export or bundle)!r} without a GPU; only what was timed may be "
            f"chosen; run on a GPU, or exchange what was verified by `flashsmith results export`."
        )


def _with_model(configs: list[KernelConfig], model: KernelConfig | None) -> list[KernelConfig]:
    return configs if model is None or model in configs else [model, *configs]


def _local_pool(target: Target) -> WorkerPool:
    """One worker a GPU, for two that time on one would time each other; else one a core."""
    environments = one_worker_a_gpu(target.gpu) if target.can_time else [{}] * available_cores()
    return WorkerPool(len(environments), environments=environments)


def _places(candidates: Sequence[Candidate], target: Target, deadline: float | None) -> Places:
    """The predicted places, where they decide something: without times, or under a budget."""
    if not predict.IS_USED or (target.can_time and deadline is None):
        return {}
    sound = [c for c in candidates if c.kernel is not None]
    configs = list(dict.fromkeys(c.config for c in sound))
    causal = all(c.problem.causal for c in sound)
    with progress_bar("counting") as progress, WorkerPool(available_cores()) as pool:
        facts = count_facts(pool, configs, target.arch, causal=causal, progress=progress)
    pairs = [(c.config, c.problem) for c in sound]
    return predicted_places(pairs, facts, target.arch, sm_count_of(target.gpu, target.arch))


def _run(
    store: ResultStore,
    pool: Executor,
    target: Target,
    candidates: Sequence[Candidate],
    deadline: float | None,
    model: KernelConfig | None,
) -> tuple[dict[AttentionProblem, list[Result]], int]:
    with progress_bar("screening" if target.can_time else "verifying") as bar:
        tuner = Tuner(target, store, pool, bar, deadline)
        screened = tuner.screen(candidates)
    results: dict[AttentionProblem, list[Result]] = {}
    problems = dict.fromkeys(candidate.problem for candidate in candidates)
    with progress_bar("racing") as bar:
        for number, problem in enumerate(problems, start=1):
            group = [c for c in candidates if c.problem == problem]
            results[problem] = tune_problem(tuner, group, screened, model)
            bar(number, len(problems))
    return results, tuner.measured_now
