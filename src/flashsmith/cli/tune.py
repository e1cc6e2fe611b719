"""`flashsmith tune`: the best configuration of each problem; without a GPU, all but times."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, ConfigError, Unsupported
from flashsmith.cli import options
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.cli.results import shape_text
from flashsmith.compile.compiler import available_cores
from flashsmith.config import KernelConfig, parse_config
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import forward_cost
from flashsmith.runtime.devices import default_device_name
from flashsmith.tuner.candidates import Candidate, artefact_facts, compiled_candidates
from flashsmith.tuner.outcome import Timed, Verified, reason_of
from flashsmith.tuner.store import ResultStore
from flashsmith.tuner.target import Target, target_here
from flashsmith.tuner.tune import Result, Tuner, bits_of, tune_problem
from flashsmith.tuner.worker_pool import WorkerPool

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
    with ResultStore(path) as opened, WorkerPool(_workers(target)) as pool:
        results, measured = _run(opened, pool, target, candidates, deadline, model)
    rows = [_row(result, target) for group in results.values() for result in group]
    show(rows, json=json, csv=csv, title=_title(target))
    _say_end(results, path, measured, len(candidates) - len(rows), time.time() - began)
    _write_page(results, output)


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


def _with_model(configs: list[KernelConfig], model: KernelConfig | None) -> list[KernelConfig]:
    return configs if model is None or model in configs else [model, *configs]


def _workers(target: Target) -> int:
    # Two processes that time on one GPU would time each other.
    return 1 if target.can_time else available_cores()


def _run(
    store: ResultStore,
    pool: WorkerPool,
    target: Target,
    candidates: Sequence[Candidate],
    deadline: float | None,
    model: KernelConfig | None,
) -> tuple[dict[AttentionProblem, list[Result]], int]:
    with progress_bar("screening" if target.can_time else "verifying") as bar:
        tuner = Tuner(target, store, pool, lambda done, total, _: bar(done, total), deadline)
        screened = tuner.screen(candidates)
    results: dict[AttentionProblem, list[Result]] = {}
    problems = dict.fromkeys(candidate.problem for candidate in candidates)
    with progress_bar("racing") as bar:
        for number, problem in enumerate(problems, start=1):
            group = [c for c in candidates if c.problem == problem]
            results[problem] = tune_problem(tuner, group, screened, model)
            bar(number, len(problems))
    return results, tuner.measured_now


def _row(result: Result, target: Target) -> Row:
    outcome, candidate = result.measurement.outcome, result.candidate
    facts = artefact_facts(candidate)
    row: dict[str, object] = {
        "config": candidate.config.short_form(),
        "problem": shape_text(candidate.problem),
        "outcome": type(outcome).__name__,
    }
    if target.can_time:
        median_us = outcome.median_us if isinstance(outcome, Timed) else None
        cost = forward_cost(candidate.problem)
        row["winner"] = result.is_winner
        row["median_us"] = round(median_us, 2) if median_us else None
        row["tflops"] = round(cost.tflops(median_us / 1e6), 1) if median_us else None
        row["protocol"] = result.measurement.key.protocol
    row |= {name: facts.get(name) for name in ("registers", "spill_bytes", "blocks_per_sm")}
    row["bits"] = bits_of(result.measurement)[:8]
    row["same_as"] = candidate.same_as.short_form() if candidate.same_as else None
    row["note"] = result.passed_over or reason_of(outcome)
    return row


def _title(target: Target) -> str:
    what = "measured on" if target.can_time else f"verified for {target.arch} in"
    return f"{what} {target.gpu}"


def _write_page(results: dict[AttentionProblem, list[Result]], path: Path) -> None:
    from flashsmith.report.page import write_page
    from flashsmith.report.sources import ReportData

    found = tuple(result.measurement for group in results.values() for result in group)
    again = f"flashsmith {shlex.join(sys.argv[1:])}"
    try:
        charts = write_page(ReportData((), found, "this run"), path, reproduce=again)
    except Unsupported as error:
        note(str(error))
    else:
        note(f"Open {path}: {charts} charts.")


def _say_end(
    results: dict[AttentionProblem, list[Result]],
    path: Path,
    measured: int,
    unreached: int,
    seconds: float,
) -> None:
    everything = [result for group in results.values() for result in group]
    sound = sum(isinstance(r.measurement.outcome, Timed | Verified) for r in everything)
    note(
        f"{len(everything)} candidates, {sound} right; {measured} measured now, the rest known "
        f"from before; {seconds:.0f} s."
    )
    if unreached:
        note(f"{unreached} were not reached within the budget; the same line again goes on.")
    for problem, group in results.items():
        winner = next((r for r in group if r.is_winner), None)
        if winner is not None:
            note(f"{shape_text(problem)}: {winner.candidate.config.short_form()}")
    note(f"Kept in {path}. Again: flashsmith {shlex.join(sys.argv[1:])}")
