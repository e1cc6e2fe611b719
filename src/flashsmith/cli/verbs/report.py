"""`flashsmith report`: one HTML page from records, the user's results, or the shipped records."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.base.errors import ArgumentError
from flashsmith.cli.output import note, say
from flashsmith.report.page import write_page
from flashsmith.report.sources import gather

RecordsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RECORDS]",
        help="JSON lines of bench, progression or tune, or a results file. Without any: your own "
        "results, else the H200 records that come with flashsmith.",
    ),
]
OutputOption = Annotated[Path, typer.Option("-o", help="The page to write.")]


def command(
    records: RecordsArgument = None, output: OutputOption = Path("flashsmith-report.html")
) -> None:
    """Write one self-contained HTML page: works offline, no server, light and dark.

    Example: flashsmith report benchmarks/results/h200/tune.jsonl -o report.html
    """
    data = gather(records or [])
    if data.is_empty:
        raise ArgumentError(
            f"{data.source} holds no times that a chart could show; give records of bench, "
            f"progression or tune."
        )
    charts = write_page(data, output, reproduce=f"flashsmith {shlex.join(sys.argv[1:])}")
    note(f"Written from {data.source}: {charts} chart{'' if charts == 1 else 's'}.")
    say(str(output))
