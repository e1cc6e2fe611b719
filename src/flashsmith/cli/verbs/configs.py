"""`flashsmith configs`: sets of configurations with their facts, and why one is left out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flashsmith import arch as arches
from flashsmith.arch.occupancy import occupancy
from flashsmith.base.fields import value_text
from flashsmith.cli import options
from flashsmith.cli.output import Row, say, show
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.page import configuration_page
from flashsmith.kernels.sets import named_sets
from flashsmith.kernels.space import autotuning_steps, whole_space_steps

DEFAULT_KEY = "tune"  # the set without KEY and KERNELS
WhyOption = Annotated[
    str | None,
    typer.Option("--why", metavar="SHORT_FORM", help="Say which filter refuses a configuration."),
]
SpaceOption = Annotated[
    bool, typer.Option("--space", help="Print the size of the space before and after each filter.")
]
PageOption = Annotated[
    bool, typer.Option("--page", help="Print the reference of every knob as Markdown.")
]


def command(
    key: options.KeyArgument = None,
    arch: options.ArchOption = "sm_90a",
    why: WhyOption = None,
    page: PageOption = False,
    space: SpaceOption = False,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Show a set of configurations: short form, threads, shared bytes, most blocks per SM.

    At most so many blocks fit an SM by threads and shared memory; how many do fit is known with
    the registers, after `flashsmith compile`.
    Example: flashsmith configs 64,32 --arch sm_86 --csv
    """
    options.refuse_together({"KEY": key, "--why": why, "--space": space, "--page": page})
    if page:
        options.refuse_together({"--page": page, "--json": json, "--csv": csv})
        say(configuration_page())
        return
    chosen = arches.get(arch)
    if why is not None:
        config = parse_config(why)
        title = config.short_form()
        show(_why(config, chosen), json=json, csv=csv, title=title, prose=["answer"])
    elif space:
        show(
            _space(),
            json=json,
            csv=csv,
            every=every,
            title="size of the space after each rule that refuses some",
        )
    else:
        configs = options.configs_of(key, DEFAULT_KEY)
        rows = [_facts(config, chosen) for config in configs]
        title = f"{len(rows)} configurations on {chosen.name}"
        show(rows, json=json, csv=csv, every=every, title=title)


def _facts(config: KernelConfig, arch: arches.Arch) -> Row:
    smem_bytes = config.smem_bytes()
    room = occupancy(arch, threads=config.threads, registers=0, smem_bytes=smem_bytes)
    blocks = room.blocks if config.runs_on(arch.name) else 0
    return {
        "short_form": config.short_form(),
        "threads": config.threads,
        "smem_bytes": smem_bytes,
        "blocks_at_most": blocks,
        "limit": room.limit if config.runs_on(arch.name) else "architecture",
    }


def _space() -> list[Row]:
    """What is laid out, and each rule that refuses some of it."""
    return [
        asdict(step)
        for step in (*whole_space_steps(), *autotuning_steps())
        if step.refused or step.step in ("legal values", "tuning grid")
    ]


def _why(config: KernelConfig, arch: arches.Arch) -> list[Row]:
    """One row a rule, in the order in which they are asked; the first that refuses decides."""
    rows: list[Row] = []
    for purpose, rules in (("build", config.BUILD_RULES), ("autotune", config.AUTOTUNE_RULES)):
        for rule in rules:
            refuses = rule.refuses(config)
            answer = f"refuses: {rule.reason}; {rule.advice}" if refuses else "lets pass"
            rows.append({"for": purpose, "filter": rule.name, "answer": answer})
    for name, passes, reason in _asked_of(arch, config):
        answer = f"{'lets pass' if passes else 'refuses'}: {reason}"
        rows.append({"for": arch.name, "filter": name, "answer": answer})
    refusal = config.refusal() or config.autotune_refusal()
    verdict = (
        f"{refusal.rule} refuses it" if refusal else f"{_runs(arch, config)}; {_where(config)}"
    )
    decides = refusal.rule if refusal else ""
    rows.append({"for": "verdict", "filter": decides, "answer": verdict})
    return rows


def _asked_of(arch: arches.Arch, config: KernelConfig) -> list[tuple[str, bool, str]]:
    """What an architecture must have: what it is called, whether it is there, and what is asked."""
    needs = f"{config.smem_bytes():,} of {arch.max_smem_per_block:,} bytes of shared memory"
    others = ", ".join(a.name for a in arches.ARCHES if config.runs_on(a.name))
    has = config.runs_on(arch.name)
    reason = f"its instructions {'exist' if has else 'do not exist'} on {arch.name}"
    return [
        ("instructions", has, reason if has else f"{reason}; they do on {others}"),
        ("shared_memory", config.smem_bytes() <= arch.max_smem_per_block, needs),
    ]


def _runs(arch: arches.Arch, config: KernelConfig) -> str:
    """Whether an architecture runs a configuration that no filter refuses, or what it lacks."""
    lacks = [name.replace("_", " ") for name, passes, _ in _asked_of(arch, config) if not passes]
    if lacks:
        return f"no filter refuses it, but {arch.name} lacks the {' and '.join(lacks)}"
    return f"no filter refuses it, and {arch.name} can run it"


def _where(config: KernelConfig) -> str:
    """Which sets hold a configuration that no filter refuses, or why none does."""
    holders = [name for name, make in named_sets().items() if config in make()]
    if holders:
        return f"it is in {', '.join(holders)}"
    grid = config.autotuning_grid()
    outside = [
        f"{name} {value_text(getattr(config, name))}"
        for name in config.knobs()
        if grid and getattr(config, name) not in {getattr(point, name) for point in grid}
    ]
    why = f"not in the grid: {', '.join(outside)}" if outside else "no set lists it"
    return f"{why}; give it by its short form, or as a line of @file"
