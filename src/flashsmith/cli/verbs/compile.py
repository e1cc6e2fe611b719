"""`flashsmith compile`: registers, spills, shared memory and occupancy, with no GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from flashsmith import arch as arches
from flashsmith.cli import options
from flashsmith.cli.declared import NONE, takes_needs
from flashsmith.cli.output import note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.compile.survey import SurveyRow, survey
from flashsmith.compile.unit import UnitOptions
from flashsmith.problem.needs import Needs

DEFAULT_KEY = "tune"  # the set without KEY and KERNELS
COLUMNS = (
    "config",
    "arch",
    "registers",
    "spill_bytes",
    "smem_bytes",
    "blocks_per_sm",
    "compile_s",
    "code",
    "same_as",
    "note",
)
ArchesOption = Annotated[
    str,
    typer.Option("--arch", help="Architectures, with commas between them, or `all`."),
]
LineInfoOption = Annotated[
    bool, typer.Option("--line-info", help="Keep source lines, for profilers.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="No optimisation, for cuda-gdb.")]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Compilations at a time; without it one per core."),
]


@takes_needs
def command(
    key: options.KeyArgument = None,
    arch: ArchesOption = "sm_90a",
    needs: Needs = NONE,
    line_info: LineInfoOption = False,
    debug: DebugOption = False,
    workers: WorkersOption = None,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Compile a set: one row a configuration and architecture, no GPU needed.

    The kernel is the one for a full mask and whole tiles unless options ask for more.
    spill_bytes: what a thread stores to and loads from local memory for want of registers, added.
    Example: flashsmith compile prog --arch sm_80,sm_90a --causal
    """
    options.refuse_together({"--debug": debug, "--line-info": line_info})  # debug has lines
    configs = options.configs_of(key, DEFAULT_KEY)
    chosen = parse_arches(arch)
    with progress_bar("compiling") as progress:
        rows = survey(
            configs,
            needs,
            chosen,
            options=UnitOptions(line_info=line_info, debug=debug),
            workers=workers,
            progress=progress,
        )
    columns = COLUMNS if json or csv else _used_columns(rows)
    if not (json or csv):
        rows = sorted(rows, key=lambda row: not row.failed)  # failures are among those shown
    title = f"{len(rows)} kernels, compiled"
    flat = [row.as_flat() for row in rows]
    show(flat, json=json, csv=csv, columns=columns, every=every, title=title)
    failed = [row for row in rows if row.failed]
    if failed:
        note(f"{len(failed)} of {len(rows)} did not compile; their rows say why.")
        raise typer.Exit(1)


def parse_arches(text: str) -> list[arches.Arch]:
    """The architectures that `sm_80,sm_90a` or `all` names, each once."""
    if text == "all":
        return list(arches.ARCHES)
    return list(dict.fromkeys(arches.get(name.strip()) for name in text.split(",")))


def _used_columns(rows: list[SurveyRow]) -> list[str]:
    flat = [row.as_flat() for row in rows]
    always = set(COLUMNS) - {"code", "same_as", "note"}  # a hash is for --json and --csv
    some = [name for name in ("same_as", "note") if any(row[name] for row in flat)]
    return [name for name in COLUMNS if name in always or name in some]
