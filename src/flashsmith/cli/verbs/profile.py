"""`flashsmith bench profile`: counters of a set of kernels, read by Nsight Compute in a child."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from flashsmith.base.errors import DeviceMissing, LaunchError
from flashsmith.bench.ncu import find_ncu
from flashsmith.bench.profile import REFERENCE, Job, Profile, tasks_of
from flashsmith.bench.profile_groups import (
    Clock,
    Group,
    Profiled,
    Watcher,
    compiled_ahead,
    groups_of,
    profile_groups,
)
from flashsmith.cli import options
from flashsmith.cli.declared import Facts, takes_facts
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.kernels import KernelConfig
from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields
from flashsmith.report.sources import gather
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.tuner.store.outcome import Timed

DEFAULT_KEY = "prog"  # the set without KEY and KERNELS
RunsOption = Annotated[int, typer.Option("--runs", min=1, help="Launches of each kernel.")]
DHeadsOption = Annotated[
    str | None,
    typer.Option("--d-heads", "--d-head", help="Head dimensions, as in 64,128; else the set's."),
]
ReferenceOption = Annotated[
    bool, typer.Option(help="Profile torch's FlashAttention-2 beside them, where there is torch.")
]
RecordsOption = Annotated[
    Path | None,
    typer.Option("--records", help="Join the times of these records or results as recorded_us."),
]
FAILED = 1  # the exit code where rows are missing
# A terminal has room for these; --json and --csv hold all columns.
TABLE = (
    *("config", "length", "d_head", "duration_us", "cycles", "registers", "l2_hit_pct", "tflops"),
    *("times_as_fast", "tensor_pct", "recorded_us"),
)
Times = Mapping[tuple[str, AttentionProblem], float]


@takes_facts
def command(
    key: options.KeyArgument = None,
    seq_lens: options.SeqLensOption = "4096",
    d_heads: DHeadsOption = None,
    batch: options.GridBatchOption = None,
    heads: options.GridHeadsOption = None,
    kv_heads: options.KvHeadsOption = None,
    facts: Facts = {},  # noqa: B006 - users see options in its place
    runs: RunsOption = 1,
    reference: ReferenceOption = True,
    records: RecordsOption = None,
    output: options.AppendOption = None,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Read duration, cycles, registers, L2 hit rate and more of each kernel with Nsight Compute.

    Example: KERNELS=tune flashsmith bench profile --seq-lens 1024,4096 --runs 1 --csv
    """
    configs = options.configs_of(key, DEFAULT_KEY)
    problems = _problems(configs, seq_lens, d_heads, batch, heads, kv_heads, facts)
    job = Job(tasks_of(configs, problems), runs, reference)
    times = _times(records) if records is not None else {}
    if not has_cuda():
        raise DeviceMissing(
            "profile reads a GPU's counters, and no GPU with its driver was found here; the "
            "emulator's counters are shown by `flashsmith bench ladder --device emulator`."
        )
    find_ncu()
    found = _profile(job, output)
    rows = [_row(one, times) for one in found.profiles]
    columns = None if json or csv or not rows else [name for name in TABLE if name in rows[0]]
    title = f"Counters on this GPU; times_as_fast is against {REFERENCE} in the same run"
    show(rows, json=json, csv=csv, columns=columns, every=every, title=title)
    if found.failures:
        note(f"only {len(rows)} rows could be measured; the others are missing")
        raise typer.Exit(FAILED)


def _profile(job: Job, output: Path | None) -> Profiled:
    """Compiles, then profiles in groups; the records of a group are written when it ends."""
    append = _appender(output) if output is not None else lambda rows: None
    with progress_bar("compiling") as progress:
        job, refused = compiled_ahead(job, default_device("cuda"), progress)
    groups = groups_of(job)
    note(f"{job.launches} launches in {len(groups)} groups, each replayed for its counters")
    clock = Clock(job.launches)
    with progress_bar("profiling") as progress, _stopped_by_signals():

        def finished(group: Group, rows: Sequence[Profile]) -> None:
            append(rows)
            done = sum(g.job.launches for g in groups[: group.number])
            note(f"{group}: {clock.state(done)}")

        watcher = Watcher(lambda done: progress(done, job.launches), finished)
        found = profile_groups(groups, watcher)
    for reason in dict.fromkeys([*refused, *found.left_out]):
        note(f"left out: {reason}")
    if not found.profiles and found.error is not None:
        raise found.error
    for failure in found.failures:
        note(failure)
    if not found.profiles and not found.failures:
        raise LaunchError("ncu", "no kernels", "none of the configurations ran on this GPU")
    if output is not None:
        note(f"records appended to {output}")
    return found


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt once: what follows them must not be cut short."""
    ours = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before: dict[signal.Signals, Any] = {each: signal.signal(each, stop) for each in ours}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _problems(
    configs: Sequence[KernelConfig],
    seq_lens: str,
    d_heads: str | None,
    batch: int | None,
    heads: int | None,
    kv_heads: int | None,
    facts: Facts,
) -> list[AttentionProblem]:
    """The grid, for every element type of the configurations."""
    widths = d_heads or ",".join(str(d) for d in dict.fromkeys(c.d_head for c in configs))
    return [
        problem
        for dtype in dict.fromkeys(config.dtype for config in configs)
        for problem in options.problems_of(
            seq_lens=seq_lens,
            d_heads=widths,
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            facts=facts,
            dtype=dtype.name,
        )
    ]


def _times(path: Path) -> Times:
    """The last time of every configuration on every problem, from records or results."""

    data = gather([path])
    times = {(str(r.what["name"]), r.problem): float(r.result["median_us"]) for r in data.records}
    for m in data.measurements:
        if isinstance(m.outcome, Timed):
            times[m.key.config, m.key.problem] = m.outcome.median_us
    return times


def _row(found: Profile, times: Times) -> Row:
    p = found.problem
    row: dict[str, object] = {
        "config": found.who,
        "length": p.q_len,
        "d_head": p.d_head,
        "batch": p.batch,
        "heads": p.heads,
        "mask": "causal" if p.causal else "full",
        **{name: _rounded(name, value) for name, value in found.metrics.items()},
        "tflops": round(found.tflops, 1) if found.tflops else None,
        "times_as_fast": round(found.times_as_fast, 3) if found.times_as_fast else None,
    }
    if times:
        row["recorded_us"] = times.get((found.who, p))
    return row


def _rounded(name: str, value: float | None) -> float | int | None:
    """Counts as whole numbers, durations and shares with two places."""
    if value is None:
        return None
    return round(value, 2) if name.endswith(("_us", "_pct")) else round(value)


def _appender(path: Path) -> Callable[[Sequence[Profile]], None]:
    """Writes rows as records; a path that cannot be written is found before anything runs."""
    from flashsmith.compile.nvrtc.library import find_nvrtc
    from flashsmith.measure.environment import environment_of
    from flashsmith.measure.record import append_records

    environment = asdict(environment_of(default_device("cuda"), compiler=find_nvrtc().compiler))
    append_records(path, [])

    def append(rows: Sequence[Profile]) -> None:
        append_records(
            path,
            [
                Record(
                    {"suite": "profile", "name": one.who, **problem_fields(one.problem)},
                    {**one.metrics, "tflops": one.tflops, "times_as_fast": one.times_as_fast},
                    environment,
                )
                for one in rows
            ],
        )

    return append
