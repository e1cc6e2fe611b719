"""`flashsmith tune`: the best configuration of each problem; without a GPU, all but times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.cli import options
from flashsmith.cli.declared import Facts, takes_facts
from flashsmith.cli.output import note, show
from flashsmith.cli.progress import progress_steps
from flashsmith.cli.started import seconds_running
from flashsmith.cli.verbs.tune_report import rows_of, say_end, title_of, write_charts, write_table
from flashsmith.tuner.run.machines import Machines
from flashsmith.tuner.run.tune import seconds_of, tune
from flashsmith.tuner.store.database import ResultStore

DEFAULT_KEY = "all that can win on this GPU"  # without KEY and KERNELS
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", help="Time that the command may take, as in 90s or 2m."),
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
ExportOption = Annotated[
    Path | None,
    typer.Option("--export", help="Write this GPU's choosable measurements as JSON lines."),
]
BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="Write the kernels that --export's lines choose.")
]
SearchOption = Annotated[
    str,
    typer.Option(
        "--search", help="exhaustive: every configuration of KEY; optuna: its families' spaces."
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option("--trials", min=1, help="With --search optuna: configurations of a problem."),
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor", help="local: a worker for each GPU here; ray: the machines of a cluster."
    ),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="With --executor ray: the cluster's address.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Workers; without it one per GPU, or one per core."),
]
GpuTypeOption = Annotated[
    str | None, typer.Option("--gpu-type", help="With --executor ray: only GPUs of this type.")
]


class Limits(TypedDict):
    """What bounds a run."""

    budget: float | None
    same_bits_as: str | None
    trials: int | None


SEARCHES = ("exhaustive", "optuna")
PAGE_SHARE = 0.05  # of a budget, for the table and the page that the run ends with
DEFAULT_TRIALS = 200


@takes_facts
def command(
    key: options.KeyArgument = None,
    op: options.OpOption = None,
    device: options.DeviceOption = None,
    arch: TuneArchOption = None,
    seq_lens: options.SeqLensOption = "4096",
    d_heads: options.DHeadsOption = "128",
    batch: options.GridBatchOption = None,
    heads: options.GridHeadsOption = None,
    kv_heads: options.KvHeadsOption = None,
    facts: Facts = {},  # noqa: B006 - users see options in its place
    both_masks: options.BothMasksOption = False,
    dtype: options.DTypeOption = "bf16",
    budget: BudgetOption = None,
    same_bits_as: SameBitsOption = None,
    search: SearchOption = "exhaustive",
    trials: TrialsOption = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    gpu_type: GpuTypeOption = None,
    store: options.StoreOption = None,
    export: ExportOption = None,
    bundle: BundleOption = None,
    output: PageOption = Path("flashsmith-tune.html"),
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Find the best configuration for each problem; interrupted runs go on where they stopped.

    Examples: flashsmith tune all+smoke --seq-lens 1024,4096 --both-masks --budget 2m;
    flashsmith tune --same-bits-as "(BF16, 128, 64, 64, 4): load_0_0_0_tiles";
    flashsmith tune --op backward --both-masks; flashsmith tune --search optuna --trials 200;
    flashsmith tune --executor ray --address auto
    """
    began = time.time() - seconds_running()
    wanted = key or settings.kernels_key() or None
    problems = options.problems_of(
        operations=options.operations_of(op, wanted),
        seq_lens=seq_lens,
        d_heads=d_heads,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        both_masks=both_masks,
        facts=facts,
        dtype=dtype,
    )
    searched = _trials(search, trials)
    machines = Machines(device, arch, executor, address, workers, gpu_type)
    _require_times(machines, {"--export": export, "--bundle": bundle, "--search": searched})
    path = store or settings.results_path()
    limits = Limits(budget=_seconds(budget), same_bits_as=same_bits_as, trials=searched)
    with progress_steps() as steps:
        found = tune(problems, wanted, machines=machines, store=path, on_progress=steps, **limits)
    show(rows_of(found), json=json, csv=csv, every=every, title=title_of(found))
    _write_table(path, found.target.gpu, export, bundle)
    say_end(found, path, began, page=write_charts(found, output))
    raise typer.Exit(1 if found.is_all_wrong else 0)


def _seconds(budget: str | None) -> float | None:
    """What a budget leaves to the run: it began with the process, and the page is to come."""
    if not budget:
        return None
    whole, spent = seconds_of(budget, "--budget"), seconds_running()
    # A machine on which the imports took long takes long for the page as well.
    return max(whole - spent - max(PAGE_SHARE * whole, spent), PAGE_SHARE * whole)


def _write_table(path: Path, gpu: str, export: Path | None, bundle: Path | None) -> None:
    if export or bundle:
        with ResultStore(path) as opened:
            write_table(opened, gpu, export, bundle)


def _trials(search: str, trials: int | None) -> int | None:
    """How many configurations a search may measure, or None to measure all that are given."""
    if search not in SEARCHES:
        raise ArgumentError(f"--search is {search!r}; it must be {' or '.join(SEARCHES)}.")
    if search == "exhaustive" and trials is not None:
        raise ArgumentError(
            f"--trials is {trials} with an exhaustive search, which measures all; add "
            f"--search optuna."
        )
    return None if search == "exhaustive" else trials or DEFAULT_TRIALS


def _require_times(machines: Machines, given: Mapping[str, object]) -> None:
    if machines.can_time:
        return
    note("No GPU is used: kernels are compiled and verified in the emulator; nothing is timed.")
    for option, value in given.items():
        if value:
            raise ArgumentError(
                f"{option} is given without a GPU; it is about times, and nothing is timed here; "
                f"run it on a GPU, or drop it."
            )
