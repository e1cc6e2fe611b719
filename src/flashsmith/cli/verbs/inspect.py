"""`flashsmith inspect`: a kernel's PTX and SASS, its instructions counted, and two compared."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Annotated

import typer

from flashsmith.base.errors import CompilerMissing
from flashsmith.cli import options
from flashsmith.cli.declared import NONE, takes_needs
from flashsmith.cli.output import note, say, show
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.instruction_mix import ptx_mix, sass_mix
from flashsmith.compile.machine.sass import disassemble, find_nvdisasm
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.varying import changed
from flashsmith.problem.needs import Needs

ConfigArgument = Annotated[str, typer.Argument(metavar="SHORT_FORM", help="A configuration.")]
DiffOption = Annotated[
    str | None, typer.Option("--diff", metavar="SHORT_FORM", help="Compare with another one.")
]
PtxOption = Annotated[bool, typer.Option("--ptx", help="Print the PTX (with --diff: changes).")]
SassOption = Annotated[bool, typer.Option("--sass", help="Print the SASS (with --diff: changes).")]
WholeOption = Annotated[bool, typer.Option("--whole", help="Count opcodes with their modifiers.")]


@takes_needs
def command(
    config: ConfigArgument,
    arch: options.ArchOption = "sm_90a",
    diff: DiffOption = None,
    ptx: PtxOption = False,
    sass: SassOption = False,
    whole: WholeOption = False,
    needs: Needs = NONE,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Count the instructions of a kernel, print its PTX or SASS, or compare two kernels.

    Example: flashsmith inspect "(FP16, 128, 64, 64, 4): async+load_2_2_2_tiles" --sass
    """
    if ptx or sass:
        listing = "--ptx" if ptx else "--sass"
        for other, value in {"--sass": ptx and sass, "--json": json, "--csv": csv}.items():
            options.refuse_together({listing: True, other: value})
        options.refuse_together({listing: True, "--whole": whole})
    configs = [parse_config(text) for text in (config, diff) if text is not None]
    name = options.arch_of(arch).name
    kernels = [_compile(c, needs, name) for c in configs]
    if ptx or sass:
        _print_listing([k.ptx if ptx else disassemble(k.cubin) for k in kernels], configs)
        return
    with_sass = _can_disassemble()
    mixes = [_mix(kernel, whole, with_sass) for kernel in kernels]
    rows = _rows(mixes)
    if diff is None:
        title = f"instructions of {configs[0].short_form()}"
    else:
        rows = [row for row in rows if row["difference"]]
        changes = changed(configs[0], configs[1])
        title = f"count: {configs[0].short_form()}\nother: {changes or 'the same'}"
    show(rows, json=json, csv=csv, every=every, title=title)
    if len(kernels) == 2 and kernels[0].code == kernels[1].code:
        note("The machine code of both is the same: they are aliases.")


def _compile(config: KernelConfig, needs: Needs, arch: str) -> CompiledKernel:
    config.require_buildable(options.arch_of(arch))
    return compile_kernel(config, needs, arch)


def _can_disassemble() -> bool:
    """Whether SASS can be read here; where it cannot, PTX alone is counted, and said to be."""
    try:
        find_nvdisasm()
    except CompilerMissing as error:
        note(f"Only PTX is counted: {error}")
        return False
    return True


def _mix(kernel: CompiledKernel, whole: bool, with_sass: bool) -> Counter[tuple[str, str]]:
    """Counts by listing and opcode."""
    found: Counter[tuple[str, str]] = Counter()
    if with_sass:
        for opcode, count in sass_mix(disassemble(kernel.cubin), whole=whole).items():
            found["sass", opcode] = count
    for opcode, count in ptx_mix(kernel.ptx, whole=whole).items():
        found["ptx", opcode] = count
    return found


def _rows(mixes: list[Counter[tuple[str, str]]]) -> list[dict[str, object]]:
    """The most frequent first in each listing; of two kernels, what differs most first."""
    rows: list[dict[str, object]] = []
    first, last = mixes[0], mixes[-1]
    keys = sorted(
        set(first) | set(last),
        key=lambda key: (key[0] != "sass", -abs(last[key] - first[key]), -first[key], key[1]),
    )
    for listing, opcode in keys:
        row: dict[str, object] = {"listing": listing, "opcode": opcode}
        row["count"] = first[listing, opcode]
        if len(mixes) == 2:
            row["other"] = last[listing, opcode]
            row["difference"] = last[listing, opcode] - first[listing, opcode]
        rows.append(row)
    return rows


def _print_listing(listings: list[str], configs: list[KernelConfig]) -> None:
    if len(listings) == 1:
        say(listings[0])
        return
    changes = difflib.unified_diff(
        listings[0].splitlines(),
        listings[1].splitlines(),
        configs[0].short_form(),
        configs[1].short_form(),
        lineterm="",
    )
    for line in changes:
        say(line)
