"""`flashsmith tune`: the best configuration of each problem; without a GPU, all but times."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.cli import options
from flashsmith.cli.declared import Facts, takes_facts
from flashsmith.cli.output import show
from flashsmith.cli.verbs.tune_place import (
    AddressOption,
    ExecutorOption,
    GpuTypeOption,
    WorkersOption,
    place,
)
from flashsmith.cli.verbs.tune_report import rows_of, say_end, title_of, write_charts, write_table
from flashsmith.cli.verbs.tune_steps import Wish, carry_out
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.store.database import ResultStore

BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", help="Time to spend, as in 90s or 2m; compiling is never cut short."),
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
SEARCHES = ("exhaustive", "optuna")
DEFAULT_TRIALS = 200
_UNITS = {"s": 1, "m": 60, "h": 3600}


@takes_facts
def command(
    key: options.KeyArgument = None,
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
    flashsmith tune --same-bits-as "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles";
    flashsmith tune --search optuna --trials 200; flashsmith tune --executor ray --address auto
    """
    began = time.time()
    configs = options.configs_of(key, "tune")
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
    model = parse_config(same_bits_as) if same_bits_as else None
    deadline = began + seconds_of(budget) if budget else None
    wish = Wish(_with_model(configs, model), problems, deadline, model, _trials(search, trials))
    path = store or settings.results_path()
    where = place(device, arch, executor, address=address, workers=workers, gpu_type=gpu_type)
    with where as (target, pool), ResultStore(path) as opened:
        _require_times(target, {"--export": export, "--bundle": bundle, "--search": wish.trials})
        found = carry_out(wish, target, opened, pool)
        rows, title = rows_of(found.results, target, found.places), title_of(target, found.places)
        show(rows, json=json, csv=csv, every=every, title=title)
        if export or bundle:
            write_table(opened, target.gpu, export, bundle)
    say_end(found, path, began, page=write_charts(found.results, output, found.places))
    raise typer.Exit(1 if found.is_all_wrong else 0)


def seconds_of(text: str) -> float:
    """The seconds of a time such as `90s`, `2m` or `1h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found or float(found[1]) == 0:
        raise ArgumentError(f"--budget is {text!r}; it is a time above 0, such as 90s, 2m or 1h.")
    return float(found[1]) * _UNITS[found[2]]


def _trials(search: str, trials: int | None) -> int | None:
    """How many configurations a search may measure, or None to measure all that are given."""
    if search not in SEARCHES:
        raise ArgumentError(f"--search is {search!r}; it is {' or '.join(SEARCHES)}.")
    if search == "exhaustive" and trials is not None:
        raise ArgumentError(
            f"--trials is {trials} with an exhaustive search, which measures all; add "
            f"--search optuna."
        )
    return None if search == "exhaustive" else trials or DEFAULT_TRIALS


def _require_times(target: Target, given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value and not target.can_time:
            raise ArgumentError(
                f"{option} is given without a GPU; it is about times, and nothing is timed here; "
                f"run it on a GPU, or drop it."
            )


def _with_model(configs: list[KernelConfig], model: KernelConfig | None) -> list[KernelConfig]:
    return configs if model is None or model in configs else [model, *configs]
