"""`flashsmith build registry`: the static registry of a set as C++ files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith.cli import options
from flashsmith.cli.output import say
from flashsmith.compile.ahead_of_time.registry import write_registry

DEFAULT_KEY = "all"  # the set without KEY and KERNELS
FolderOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.")
]


def command(output: FolderOption, key: options.KeyArgument = None) -> None:
    """Write flash_kernels.cuh, one unit a configuration, and the host file around them.

    Example: flashsmith build registry all -o build/registry
    """
    written = write_registry(options.configs_of(key, DEFAULT_KEY), output)
    count = len(written.units)
    say(f"{written.folder}/flash_kernels.cuh: {count} configurations, one unit each in kernels/")
