"""`flashsmith tune predict`: the order in which `tune` measures, and how good it is on records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.arch import get as get_arch
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.cli import options
from flashsmith.cli.declared import FACT_OPTIONS, Facts, takes_facts
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.parse import looks_like_config
from flashsmith.measure.environment import commit_of_checkout
from flashsmith.measure.record import Record, append_records
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields, problem_text
from flashsmith.report.sources import LIMIT, OVER_FIRST, PLACE, ReportData, gather
from flashsmith.tuner.run import predict
from flashsmith.tuner.run.candidates import Pair, default_configs, pairs_of
from flashsmith.tuner.run.counting import Place, Places, counted_places, sm_count_of
from flashsmith.tuner.run.tune import none_fits
from flashsmith.tuner.store.outcome import Timed

DEFAULT_KEY = "all that can win on --arch"  # without KEY and KERNELS
AgainstOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--against",
        help="Records to hold the order against, each on its problem; may be given several times.",
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("-o", help="Append the places to this JSON lines file.")
]
LEAST = 3  # configurations of a problem, below which an order says nothing
# Times of one problem on one GPU: microseconds by configuration.
Times = dict[tuple[str, AttentionProblem], dict[KernelConfig, float]]


# What describes a problem; records hold their own.
PROBLEM = (
    "seq_lens",
    "d_heads",
    "batch",
    "heads",
    "kv_heads",
    "both_masks",
    "dtype",
    *FACT_OPTIONS,
)


@takes_facts
def command(
    context: typer.Context,
    key: options.KeyArgument = None,
    against: AgainstOption = None,
    arch: options.ArchOption = "sm_90a",
    seq_lens: options.SeqLensOption = "4096",
    d_heads: options.DHeadsOption = "128",
    batch: options.GridBatchOption = None,
    heads: options.GridHeadsOption = None,
    kv_heads: options.KvHeadsOption = None,
    facts: Facts = {},  # noqa: B006 - users see options in its place
    both_masks: options.BothMasksOption = False,
    dtype: options.DTypeOption = "bf16",
    output: OutputOption = None,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Order configurations without running them on a GPU, or judge that order by records.

    Examples: flashsmith tune predict 64,32 --seq-lens 4096; flashsmith tune predict --against
    benchmarks/results/h200/tune.jsonl
    """
    arch_name = get_arch(arch).name
    if against:
        options.refuse_given(context, PROBLEM, "with --against, whose records name their problems")
        rows = _qualities(_times_of(gather(_existing(against)), key), arch_name, output)
        title = "the predicted order against measured times"
        show(rows, json=json, csv=csv, every=every, title=title)
        _say_verdict(rows)
        return
    given = key or settings.kernels_key()
    configs = options.configs_of(given, "") if given else default_configs(arch_name)
    problems = options.problems_of(
        seq_lens=seq_lens,
        d_heads=d_heads,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        both_masks=both_masks,
        facts=facts,
        dtype=dtype,
    )
    pairs = pairs_of(configs, problems)
    if not pairs:
        raise none_fits(configs, problems[0])
    places = _counted(pairs, arch_name, sm_count_of("", arch_name))
    _append(output, places, "", arch_name)
    rows = [
        {
            "predicted_place": int(place),
            "config": config.short_form(),
            "problem": problem_text(problem),
            "cycles_over_first": _rounded(place),
            "limit": place.limit or None,
        }
        for (config, problem), place in places.items()
    ]
    title = f"predicted for {arch_name}; nothing is timed"
    show(rows, json=json, csv=csv, every=every, title=title)


def _existing(paths: list[Path]) -> list[Path]:
    for path in paths:
        if not path.exists():
            raise ArgumentError(
                f"--against is {str(path)!r}, which does not exist; it is a file of `flashsmith "
                f"tune --export`, `results export`, `bench -o` or `progression -o`; make one."
            )
    return paths


def _times_of(data: ReportData, key: str | None) -> Times:
    """Every time of a known configuration, the best-measured one where there are several."""
    wanted = set(options.configs_of(key, "")) if key is not None else None
    times: Times = {}
    for gpu, problem, name, median_us in _measured(data):
        config = parse_config(name)
        if wanted is None or config in wanted:
            times.setdefault((gpu, problem), {})[config] = median_us
    kept = {where: found for where, found in times.items() if len(found) >= LEAST}
    if not kept:
        raise ArgumentError(
            f"--against names no problem with {LEAST} or more timed configurations; an order "
            f"cannot be judged by fewer; give a record of `flashsmith tune`."
        )
    return kept


def _measured(data: ReportData) -> Iterator[tuple[str, AttentionProblem, str, float]]:
    """GPU, problem, configuration and time; longer protocols come after shorter ones."""
    protocols = ("screen", "race", "final")
    for protocol in protocols:
        for m in data.measurements:
            if isinstance(m.outcome, Timed) and m.key.protocol == protocol:
                yield m.key.gpu, m.key.problem, m.key.config, m.outcome.median_us
    for record in data.records:
        name = str(record.what.get("name"))
        if looks_like_config(name):
            device = str(record.environment["device"])
            yield device, record.problem, name, record.result["median_us"]


def _qualities(times: Times, arch: str, output: Path | None) -> list[Row]:
    rows: list[Row] = []
    sm_counts = {gpu: sm_count_of(gpu, arch) for gpu, _ in times}
    for gpu, sm_count in sm_counts.items():
        mine = {problem: found for (name, problem), found in times.items() if name == gpu}
        pairs = [(config, problem) for problem, found in mine.items() for config in found]
        places = _counted(pairs, arch, sm_count)
        _append(output, places, gpu, arch)
        for problem, found in mine.items():
            known = [config for config in found if (config, problem) in places]
            if len(known) < LEAST:
                continue
            order = [float(places[config, problem]) for config in known]
            good = predict.quality(order, [found[config] for config in known])
            rows.append(
                {
                    "gpu": gpu,
                    "problem": problem_text(problem),
                    "configurations": good.count,
                    "rank_correlation": round(good.rank_correlation, 3),
                    "top_5_regret": round(good.top_5_regret, 4),
                }
            )
    return rows


def _counted(pairs: list[Pair], arch: str, sm_count: int) -> Places:
    with progress_bar("counting events") as progress:
        return counted_places(pairs, arch, sm_count, progress=progress)


def _append(path: Path | None, places: Places, gpu: str, arch: str) -> None:
    """Adds the places to a file that `flashsmith report` sets beside the times."""
    if path is None:
        return
    commit, dirty = commit_of_checkout()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    environment = {"device": gpu, "arch": arch, "commit": commit, "dirty": dirty, "date": date}
    append_records(
        path,
        [
            Record(
                {"suite": "prediction", "name": config.short_form(), **problem_fields(problem)},
                {PLACE: int(place), OVER_FIRST: _rounded(place), LIMIT: place.limit},
                environment,
            )
            for (config, problem), place in places.items()
        ],
    )
    note(f"{len(places)} places appended to {path}")


def _rounded(place: Place) -> float | None:
    """The predicted cycles over those of the first; None for what could not be counted."""
    return round(place.cycles_over_first, 4) if math.isfinite(place.cycles_over_first) else None


def _say_verdict(rows: list[Row]) -> None:
    worst = max(float(str(row["top_5_regret"])) for row in rows)
    mean = sum(float(str(row["rank_correlation"])) for row in rows) / len(rows)
    note(
        f"{len(rows)} problems: worst top-5 regret {worst:.1%} (allowed "
        f"{predict.ALLOWED_REGRET:.0%}), mean rank correlation {mean:.2f}."
    )
