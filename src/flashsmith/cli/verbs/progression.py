"""`flashsmith bench ladder`: what each step of the ladder, or one knob, brings on this GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ArgumentError
from flashsmith.bench.ladder import KNOB, LADDER, Step, ablation, steps_of
from flashsmith.cli import options
from flashsmith.cli.declared import Facts, takes_facts
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.kernels import KernelConfig, get_kernel_configs, parse_config
from flashsmith.kernels.parse import looks_like_config
from flashsmith.kernels.sets import named_sets
from flashsmith.kernels.varying import changed
from flashsmith.measure.facts import facts_of
from flashsmith.measure.interleaved import Comparison, Regime
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_text
from flashsmith.runtime.devices import default_device, default_device_name
from flashsmith.tuner.run.counting import counted

DEFAULT_LADDER = "prog"
LADDERS = [name for name in named_sets() if "prog" in name]  # the sets that are steps in order
LadderArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[LADDER]",
        help=f"{', '.join(LADDERS)}; the ending -prog may be left out. With --knob a short form as "
        f"well. Without it: {DEFAULT_LADDER}.",
        show_default=False,
    ),
]
KnobOption = Annotated[
    str | None, typer.Option("--knob", help="Move one knob through its values instead.")
]

ABOUT_TIMES = ("output", "rounds", "sustained", "seq_lens", "batch", "heads", "kv_heads")

# A terminal has room for what a step adds and why it pays; --json and --csv hold all columns.
TABLE = (
    *("adds", "length", "median_us", "tflops", "times_as_fast", "p20", "p80", "since_start"),
    *("registers", "spill_bytes", "blocks_per_sm", "instructions", "conflicts_a_phase"),
)


@takes_facts
def command(
    context: typer.Context,
    ladder: LadderArgument = None,
    knob: KnobOption = None,
    device: options.DeviceOption = None,
    arch: options.ArchOption = "sm_90a",
    seq_lens: options.SeqLensOption = "4096",
    batch: options.GridBatchOption = None,
    heads: options.GridHeadsOption = None,
    kv_heads: options.KvHeadsOption = None,
    facts: Facts = {},  # noqa: B006 - users see options in its place
    rounds: options.RoundsOption = None,
    sustained: options.SustainedOption = False,
    output: options.AppendOption = None,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Time the ladder step by step, each against the one before, with reasons in counters.

    Examples: flashsmith bench ladder; flashsmith bench ladder --knob eager_load_blocks
    --seq-lens 1024,4096,16384
    """
    configs = _configs(ladder, knob)
    name = device or default_device_name()
    can_time = name == "cuda"
    arch_name = default_device("cuda").arch if can_time else get_arch(arch).name
    if not can_time:
        options.refuse_given(context, ABOUT_TIMES, "without a GPU, and nothing is timed here")
        note(f"No GPU is used: resources for {arch_name} and the emulator's counters, no times.")
    with progress_bar("counting events") as progress:
        causal = bool(facts.get("causal"))
        known = counted(configs, arch_name, causal=causal, progress=progress)
    # One that does not compile has no facts: asked here, the compiler's error is shown.
    figures = [
        known.get(c) or facts_of(c, arch_name, causal=bool(facts.get("causal"))) for c in configs
    ]
    rows: list[Row] = []
    for length in options.numbers_of("--seq-lens", seq_lens):
        problem = _problem(configs[0], length, batch, heads, kv_heads, facts)
        regime: Regime = "sustained" if sustained else "burst"
        run = _time(configs, problem, rounds or options.ROUNDS, regime) if can_time else None
        if run is not None and output is not None:
            _append(output, run, problem, KNOB + knob if knob else LADDER)
        steps = steps_of(configs, figures, run, against_first=knob is not None)
        rows += [_row(step, problem, run) for step in steps]
    if not (json or csv):
        adds = _short_adds(configs, against_first=knob is not None)
        rows = [{**row, "adds": adds[n % len(adds)]} for n, row in enumerate(rows)]
    what = f"knob {knob}" if knob else "the ladder"
    columns = None if json or csv else [name for name in TABLE if name in rows[0]]
    title = f"{what} on {'this GPU' if can_time else arch_name}\nfrom {configs[0].short_form()}"
    show(rows, json=json, csv=csv, columns=columns, title=title)


def _short_adds(configs: Sequence[KernelConfig], *, against_first: bool) -> list[str]:
    """What each step adds, in the words of short forms, which take less room."""
    before = [configs[0]] * len(configs) if against_first else configs
    return ["the start", *(changed(a, b) for a, b in zip(before, configs[1:], strict=False))]


def _configs(ladder: str | None, knob: str | None) -> list[KernelConfig]:
    if knob is not None and ladder is not None and "(" in ladder:
        return ablation(parse_config(ladder), knob)
    steps = get_kernel_configs(_set_name(ladder or DEFAULT_LADDER))
    return ablation(steps[-1], knob) if knob is not None else list(steps)


def _set_name(text: str) -> str:
    if looks_like_config(text):
        raise ArgumentError(f"{text!r} is one configuration, moved knob by knob; add --knob NAME.")
    # KEY means the ladder KEY-prog where there is one, not the set that is tuned.
    for name in (text, f"{text}-prog"):
        if name in LADDERS:
            return name
    raise ArgumentError(f"{text!r} has no ladder; there are {', '.join(LADDERS)}; choose one.")


def _problem(
    config: KernelConfig,
    length: int,
    batch: int | None,
    heads: int | None,
    kv_heads: int | None,
    facts: Facts,
) -> AttentionProblem:
    return options.problems_of(
        seq_lens=str(length),
        d_heads=str(config.d_head),
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        facts=facts,
        dtype=config.dtype.name,
    )[0]


def _time(
    configs: Sequence[KernelConfig],
    problem: AttentionProblem,
    rounds: int,
    regime: Regime,
) -> Comparison:
    from flashsmith.measure.environment import timed_device
    from flashsmith.measure.timed_configs import time_configs

    gpu = timed_device(default_device("cuda"))
    run = time_configs(gpu, configs, problem, rounds=rounds, regime=regime)
    if run.is_void:
        note(f"void, the control is {run.control.median:.4f}: {problem_text(problem)}")
    return run


def _append(path: Path, run: Comparison, problem: AttentionProblem, suite: str) -> None:
    from flashsmith.compile.nvrtc.library import find_nvrtc
    from flashsmith.measure.environment import environment_of
    from flashsmith.measure.record import append_records, records_of

    environment = environment_of(default_device("cuda"), compiler=find_nvrtc().compiler)
    flops = cost_of(problem).flops
    append_records(path, records_of(run, problem, environment, suite=suite, flops=flops))


def _row(step: Step, problem: AttentionProblem, run: Comparison | None) -> Row:
    row: dict[str, object] = {"config": step.config.short_form(), "adds": step.adds}
    if run is not None and step.timed is not None:
        cost = cost_of(problem)
        row["length"] = problem.q_len
        row["median_us"] = round(step.timed.time_us.median, 2)
        row["tflops"] = round(cost.tflops(step.timed.time_us.median / 1e6), 1)
        gain = step.gain
        row["times_as_fast"] = round(gain.median, 3) if gain else None
        row["p20"], row["p80"] = (round(gain.p20, 3), round(gain.p80, 3)) if gain else (None, None)
        row["since_start"] = round(step.timed.ratio.median, 3)
    return row | asdict(step.facts)
