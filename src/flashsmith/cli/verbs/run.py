"""`flashsmith run`: configurations on problems, checked, and timed where there is a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from flashsmith.base.errors import ArgumentError, FlashsmithError
from flashsmith.check.cases import Case, quick_cases
from flashsmith.check.survey import Checked, check_one, compile_jobs
from flashsmith.cli import options
from flashsmith.cli.declared import Facts, takes_facts
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.cli.verbs.verify import error_columns
from flashsmith.compile.compiler import compile_many
from flashsmith.kernels import KernelConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_text
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import default_device, default_device_name

DEFAULT_KEY = "smoke"  # the set without KEY and KERNELS
# Problems beyond this many operations are checked on the quick cases: their float64 truth would
# take the host longer than the GPU takes for everything else.
CHECKED_FLOPS = 4e9
DEFAULT_LENGTH = {"cuda": 4096, "emulator": 200}
QLenOption = Annotated[
    str | None,
    typer.Option(
        "--q-len",
        "--seq-len",
        "--seq-lens",
        help="Query rows, as in 1024,4096; without it 4096 (emulator: 200).",
    ),
]
CountersOption = Annotated[
    bool, typer.Option("--counters", help="Emulator: count instructions, conflicts and bytes.")
]
SustainedOption = Annotated[
    bool, typer.Option("--sustained", help="CUDA: under load (0.3 s of it first), not rested.")
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", help="Emulator: a random schedule of the warps, by this seed."),
]


@dataclass(frozen=True, slots=True)
class Request:
    """What to run: a problem's options, its d_head and dtype taken from each configuration."""

    batch: int
    heads: int
    kv_heads: int | None
    q_len: int
    k_len: int | None
    d_head: int | None
    facts: Facts

    def case_for(self, config: KernelConfig) -> Case:
        """The problem of a configuration, as a case."""
        problem = options.problem_of(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            q_len=self.q_len,
            k_len=self.k_len,
            d_head=self.d_head or config.d_head,
            dtype=config.dtype,
            facts={**self.facts, "operation": config.OPERATION},
        )
        return Case("problem", problem)


@takes_facts
def command(
    key: options.KeyArgument = None,
    device: options.DeviceOption = None,
    batch: options.BatchOption = 1,
    heads: options.HeadsOption = 3,
    kv_heads: options.KvHeadsOption = None,
    q_len: QLenOption = None,
    k_len: options.KLenOption = None,
    d_head: options.DHeadOption = None,
    facts: Facts = {},  # noqa: B006 - users see options in its place
    counters: CountersOption = False,
    seed: SeedOption = None,
    rounds: options.RoundsOption = None,
    sustained: SustainedOption = False,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Run configurations: check each, and time those that are right on a GPU, side by side.

    Examples: flashsmith run smoke --device emulator --q-len 200 --k-len 333 --causal;
    flashsmith run prog --seq-lens 1024,4096
    """
    configs = options.configs_of(key, DEFAULT_KEY)
    name = device or default_device_name()
    lengths = _lengths(q_len, DEFAULT_LENGTH.get(name, 0))
    target = _open(name, counters=counters, seed=seed, rounds=rounds, sustained=sustained)
    rows: list[Row] = []
    for length in lengths:
        request = Request(batch, heads, kv_heads, length, k_len, d_head, facts)
        found = _run(target, configs, request, counters=counters)
        if name == "cuda":
            _time(target, configs, request, found, rounds or options.ROUNDS, sustained=sustained)
        each: Row = {"q_len": length} if len(lengths) > 1 else {}
        rows += [{"config": row["config"], **each, **row} for row in found.values()]
    if not (json or csv):
        rows.sort(key=lambda row: row["result"] == "right")  # what is wrong is among those shown
    title = _title(request.case_for(configs[0]), lengths, name)
    show(rows, json=json, csv=csv, every=every, title=title)
    if name == "emulator" and any(row["checked_on"] != "problem" for row in rows):
        note("A problem this large was not run: the emulator checked small cases in its place.")
    wrong = sum(row["result"] == "wrong" for row in rows)
    if wrong:
        note(f"{wrong} of {len(rows)} are wrong; their rows say where.")
        raise typer.Exit(1)


def _lengths(text: str | None, default: int) -> list[int]:
    if text is None:
        return [default]
    return [0] if text.strip() == "0" else options.numbers_of("--q-len", text)


def _open(
    name: str, *, counters: bool, seed: int | None, rounds: int | None, sustained: bool
) -> Device:
    if name != "emulator":
        if counters or seed is not None:
            raise ArgumentError(
                f"--counters and --seed were given for {name}; only the emulator has them; "
                f"add --device emulator."
            )
        return default_device(name)
    if sustained or rounds:
        option = "--sustained" if sustained else "--rounds"
        raise ArgumentError(
            f"{option} is given for the emulator; only a GPU is timed; drop it, or add "
            f"--device cuda."
        )
    from flashsmith.emulator.options import EmulatorOptions
    from flashsmith.runtime.emulated import EmulatedDevice

    return EmulatedDevice(options=EmulatorOptions(counters=counters, seed=seed))


def _run(
    device: Device, configs: Sequence[KernelConfig], request: Request, *, counters: bool
) -> dict[KernelConfig, dict[str, object]]:
    work = [(config, case) for config in configs for case in _cases(config, request)]
    compile_many(compile_jobs(device, work))
    rows: dict[KernelConfig, dict[str, object]] = {}
    with progress_bar(f"running on {device.name}") as progress:
        for done, config in enumerate(configs, start=1):
            checked = [check_one(device, config, case) for case in _cases(config, request)]
            rows[config] = _row(config, checked)
            if counters:
                rows[config] |= _counts(device)
            progress(done, len(configs))
    return rows


def _cases(config: KernelConfig, request: Request) -> tuple[Case, ...]:
    case = request.case_for(config)
    small = cost_of(case.problem).flops <= CHECKED_FLOPS
    return (case,) if small else quick_cases(config)


def _row(config: KernelConfig, checked: Sequence[Checked]) -> dict[str, object]:
    """The row of a configuration: its first case that is not right, else its last."""
    shown = next((one for one in checked if one.wrong or one.refusal), checked[-1])
    row: dict[str, object] = {
        "config": config.short_form(),
        "checked_on": shown.case if len(checked) == 1 else f"{len(checked)} quick cases",
        "result": "cannot run",
    }
    if shown.verdict is None:
        return row | {"reason": shown.refusal}
    row["result"] = "right" if shown.verdict.ok else "wrong"
    row |= {"of_allowed": error_columns(shown.verdict)["of_allowed"]}
    if not shown.verdict.ok:
        row |= {"where": shown.verdict.where, "reason": shown.verdict.reason}
    return row


def _counts(device: Device) -> Row:
    """What the emulator counted in its last launch."""
    report = device.report()
    if report is None or report.counters is None:
        return {}
    counts = report.counters
    return {
        "warp_instructions": report.warp_instructions,
        "bank_conflicts": counts.bank_conflicts,
        "shared_phases": counts.shared_phases,
        "sectors_a_request": round(counts.sectors_a_request, 3),
        "barrier_waits": counts.barrier_waits,
        **_named(counts.instructions, "instructions"),
        **_named(counts.bytes, "bytes"),
    }


def _named(counts: Mapping[str, int], unit: str) -> Row:
    return {f"{name.replace(' ', '_')}_{unit}": n for name, n in sorted(counts.items())}


def _time(
    device: Device,
    configs: Sequence[KernelConfig],
    request: Request,
    rows: dict[KernelConfig, dict[str, object]],
    rounds: int,
    *,
    sustained: bool,
) -> None:
    """Adds times to the rows of configurations that are right, problem by problem."""
    from flashsmith.measure.environment import timed_device
    from flashsmith.measure.timed_configs import time_configs

    by_problem: dict[AttentionProblem, list[KernelConfig]] = {}
    for config in configs:
        if rows[config]["result"] == "right":
            by_problem.setdefault(request.case_for(config).problem, []).append(config)
    for problem, group in by_problem.items():
        try:
            run = time_configs(
                timed_device(device),
                group,
                problem,
                rounds=rounds,
                regime="sustained" if sustained else "burst",
            )
        except FlashsmithError as error:
            note(f"{problem}: not timed: {error}")
            continue
        cost = cost_of(problem)
        for config, timed in zip(group, run.timed, strict=True):
            rows[config] |= {
                "median_us": round(timed.time_us.median, 2),
                "p20_us": round(timed.time_us.p20, 2),
                "p80_us": round(timed.time_us.p80, 2),
                "tflops": round(cost.tflops(timed.time_us.median / 1e6), 1),
                "ratio": round(timed.ratio.median, 3),
            }
        warning = "; void, measure again" if run.is_void else ""
        note(f"control {run.control.median:.4f}{warning}")


def _title(case: Case, lengths: Sequence[int], device: str) -> str:
    shape = problem_text(case.problem)
    others = f" (and {', '.join(map(str, lengths[:-1]))})" if len(lengths) > 1 else ""
    return f"{shape}{others}, on {device}"
