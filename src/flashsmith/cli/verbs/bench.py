"""`flashsmith bench`: our choices against peers on a suite of shapes, interleaved, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, DeviceMissing
from flashsmith.bench.suite import (
    Shape,
    Suite,
    of_lengths,
    of_operations,
    of_widths,
    read_suite,
    suite_names,
)
from flashsmith.cli import options
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.kernels import KernelConfig, resolve_key
from flashsmith.problem.cost import Cost, cache_bytes, cost_of
from flashsmith.problem.needs import facts_that_hold
from flashsmith.problem.signature import FORWARD
from flashsmith.report.contenders import length_text, mask_text
from flashsmith.runtime.devices import default_device, has_cuda

if TYPE_CHECKING:
    from flashsmith.bench.numbers import Numbers
    from flashsmith.bench.peers import Peer
    from flashsmith.bench.versus import Versus
    from flashsmith.measure.interleaved import Regime, Timed

NO_PEERS = "none"  # of those that are known; files that are given race all the same
DEFAULT_KEY = "what is chosen for each shape"  # without KEY and KERNELS
SuiteOption = Annotated[
    str,
    typer.Option(
        "--suite", help="quick, paper, llm, models, serve (caches), or a path to a .toml file."
    ),
]
PeersOption = Annotated[
    str,
    typer.Option(
        "--peers", help="Only peers whose name contains one of these, as in cudnn,fa3; or none."
    ),
]
PeerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="FILE.py:NAME",
        help="A contender of your own: NAME(problem, q, k, v), and k_lengths and block_table where "
        "it has parameters for them, of gradients NAME(problem, d_out, q, k, v, out, lse), returns "
        "the call; repeatable.",
    ),
]
NumbersOption = Annotated[
    bool,
    typer.Option("--numbers", help="No times: the error of each against the exact result."),
]
ListOption = Annotated[
    bool, typer.Option("--list", help="No times: the suite's shapes, on any machine.")
]
AnyOrderOption = Annotated[
    bool,
    typer.Option("--any-order", help="Gradients whose bits may differ from run to run."),
]
OnlyLensOption = Annotated[
    str | None,
    typer.Option("--seq-lens", "--seq-len", help="Only the suite's shapes of these lengths."),
]
OnlyWidthsOption = Annotated[
    str | None,
    typer.Option("--d-heads", "--d-head", help="Only those of these head dimensions."),
]


def command(
    key: options.KeyArgument = None,
    op: options.OpOption = None,
    any_order: AnyOrderOption = False,
    suite: SuiteOption = "quick",
    seq_lens: OnlyLensOption = None,
    d_heads: OnlyWidthsOption = None,
    peers: PeersOption = "",
    peer: PeerOption = None,
    dtype: options.DTypeOption = "bf16",
    rounds: options.RoundsOption = None,
    sustained: options.SustainedOption = False,
    numbers: NumbersOption = False,
    shapes: ListOption = False,
    output: options.AppendOption = None,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Time flashsmith's choices against its peers, side by side in one process.

    With KEY, or the variable KERNELS, every configuration of that set is timed beside the peers.
    Examples: flashsmith bench --suite quick --peers cudnn -o records.jsonl;
    flashsmith bench prog --dtype fp16 --peers fa2;
    flashsmith bench --suite paper --peer ../fa3/peer.py:flash_attention_3;
    flashsmith bench --suite serve --list; flashsmith bench --op backward --suite paper;
    flashsmith bench prog --dtype fp16 --peers flashattention-2 --numbers
    """
    chosen = _held_to(read_suite(suite, options.dtype_of(dtype)), seq_lens, d_heads)
    given = key or settings.kernels_key()
    configs = resolve_key(given) if given else []
    operations = options.operations_of(op, given or None)
    _refuse_any_order(any_order and operations == [FORWARD.operation])
    chosen = of_operations(chosen, operations, deterministic=not any_order)
    if given:
        chosen = of_configs(chosen, configs, given)
    if shapes:
        options.refuse_together({"--list": True, "--numbers": numbers, "-o": output})
        about = f"{chosen.name}: {chosen.about}"
        row_of = listed if json or csv else glimpsed
        show([row_of(s) for s in chosen.shapes], json=json, csv=csv, every=every, title=about)
        return
    wanted = Wanted(peers, peer or [], rounds or options.ROUNDS, sustained, output)
    if numbers:
        if any(shape.problem.operation != FORWARD.operation for shape in chosen.shapes):
            raise ArgumentError(
                "--numbers compares outputs of the forward pass; `flashsmith verify KEY` checks "
                "those of gradients."
            )
        options.refuse_together({"--numbers": True, "-o": output})
        options.refuse_together({"--numbers": True, "--rounds": rounds})
        options.refuse_together({"--numbers": True, "--sustained": sustained})
        title = f"{chosen.name}: errors against the exact result"
        show(_numbers(chosen, wanted, configs), json=json, csv=csv, every=every, title=title)
        return
    rows = _run(chosen, wanted, configs)
    show(rows, json=json, csv=csv, every=every, title=f"{chosen.name}: {chosen.about}")


def _held_to(suite: Suite, seq_lens: str | None, d_heads: str | None) -> Suite:
    if seq_lens is not None:
        suite = of_lengths(suite, options.numbers_of("--seq-lens", seq_lens))
    if d_heads is not None:
        suite = of_widths(suite, options.numbers_of("--d-heads", d_heads))
    return suite


def _refuse_any_order(of_forward: bool) -> None:
    if of_forward:
        raise ArgumentError(
            "--any-order is for gradients: a forward pass has the same bits every time; add "
            "--op backward."
        )


def glimpsed(shape: Shape) -> Row:
    """One shape of a suite for a terminal: its name says other facts; a cache has a size."""
    problem = shape.problem
    is_grouped = problem.heads != problem.kv_heads
    size = {"kv_mib": round(cache_bytes(problem) / 2**20)}
    return {
        "shape": shape.name,
        "batch": problem.batch,
        "heads": f"{problem.heads}:{problem.kv_heads}" if is_grouped else f"{problem.heads}",
        "length": length_text(problem),
        "d_head": problem.d_head,
        **(size if problem.k_lengths else {"mask": mask_text(problem)}),
    }


def listed(shape: Shape) -> Row:
    """One shape of a suite with all of its facts."""
    problem = shape.problem
    dimensions = ("batch", "heads", "kv_heads", "q_len", "k_len", "d_head")
    facts = {name: getattr(problem, name) for name in facts_that_hold(problem)}
    return {
        "shape": shape.name,
        **{name: getattr(problem, name) for name in dimensions},
        "facts": " ".join(n if v is True else f"{n}={v}" for n, v in facts.items()),
        "kv_mib": round(cache_bytes(problem) / 2**20, 1),
    }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whom to race, how often, and where records go."""

    names: str
    files: list[str]
    rounds: int
    sustained: bool
    output: Path | None

    def peers(self) -> list[Peer]:
        """The peers of files, then those that are known; a file alone is raced alone."""
        from flashsmith.bench.peers import find_peers, peer_of_file

        given = [name.strip() for name in self.names.split(",") if name.strip()]
        if given == [NO_PEERS]:
            return [*map(peer_of_file, self.files)]
        for name in given:
            if not find_peers([name]):
                listed = ", ".join(peer.name for peer in find_peers([]))
                raise ArgumentError(
                    f"--peers is {name!r}; peers are {listed}; name one of them, or {NO_PEERS}."
                )
        known = find_peers(given) if given or not self.files else []
        return [*map(peer_of_file, self.files), *known]

    def say_left_out(self, reasons: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Names the peers that no row has: with the reason where they were asked for."""
        missing = {name: why for name, why in reasons.items() if _has_none(rows, name)}
        if self.names or self.files:
            for name, why in missing.items():
                note(f"{name} did not run: {why}")
        elif missing:
            note(f"did not run: {', '.join(missing)}; --peers NAME says why")


def _has_none(rows: Sequence[Row], peer: str) -> bool:
    return all(row.get("peer") != peer for row in rows)


def of_configs(suite: Suite, configs: Sequence[KernelConfig], key: str) -> Suite:
    """The suite with the shapes that some configuration of the set computes at its width."""
    from flashsmith.bench.versus import computing

    shapes = tuple(shape for shape in suite.shapes if computing(configs, shape.problem))
    if not shapes:
        kinds = sorted({f"{c.dtype.name} d_head {c.d_head}" for c in configs})
        raise ArgumentError(
            f"no shape of {suite.name} fits {key}, whose kernels are {', '.join(kinds)}; choose "
            f"another --suite or --dtype."
        )
    return replace(suite, shapes=shapes)


def _run(suite: Suite, wanted: Wanted, configs: Sequence[KernelConfig]) -> list[Row]:
    if not has_cuda():
        raise DeviceMissing(
            f"bench times kernels and needs a GPU with its driver; none was found here. Shipped "
            f"records are shown by `flashsmith report`; suites are {', '.join(suite_names())}."
        )
    from flashsmith.bench.versus import computing, records, versus
    from flashsmith.compile.nvrtc.library import find_nvrtc
    from flashsmith.measure.environment import environment_of, timed_device
    from flashsmith.measure.record import append_records

    device = timed_device(default_device("cuda"))
    peers = wanted.peers()
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    regime: Regime = "sustained" if wanted.sustained else "burst"
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    with progress_bar(f"benchmark {suite.name}") as progress:
        for number, shape in enumerate(suite.shapes, start=1):
            found = versus(
                device,
                shape,
                peers,
                rounds=wanted.rounds,
                regime=regime,
                configs=computing(configs, shape.problem),
            )
            rows += _rows(found)
            left_out |= found.left_out
            if wanted.output is not None:
                append_records(wanted.output, records(found, environment, suite.name, peers))
            progress(number, len(suite.shapes))
    wanted.say_left_out(left_out, rows)
    _say(rows, wanted.output, with_means=not configs)
    return rows


def _numbers(suite: Suite, wanted: Wanted, configs: Sequence[KernelConfig]) -> list[Row]:
    """A row a shape, configuration of ours and peer; on any device."""
    from flashsmith.bench.numbers import compare_numbers
    from flashsmith.bench.versus import computing
    from flashsmith.tuner.choose.choice import choose

    device, peers = default_device(), wanted.peers()
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    with progress_bar(f"numbers of {suite.name}") as progress:
        for number, shape in enumerate(suite.shapes, start=1):
            chosen = choose(shape.problem, device.arch, gpu=device.name).config
            ours = computing(configs, shape.problem) or ([chosen] if chosen else [])
            found = compare_numbers(device, shape.problem, ours, peers)
            rows += [{"shape": shape.name, **row} for row in number_rows(found)]
            left_out |= found.left_out
            progress(number, len(suite.shapes))
    wanted.say_left_out(left_out, rows)
    return rows


def number_rows(found: Numbers) -> list[Row]:
    """One row a configuration of ours and peer; without peers, one a configuration."""
    from flashsmith.bench.numbers import apart

    rows: list[Row] = []
    for ours in found.ours:
        own: Row = {"ours_rms": float(f"{ours.rms:.3g}"), "ours_worst": float(f"{ours.worst:.3g}")}
        for peer in found.peers:
            theirs: Row = {
                "peer": peer.name,
                "peer_rms": float(f"{peer.rms:.3g}"),
                "rms_ratio": round(ours.rms / peer.rms, 3) if peer.rms else None,
                "peer_worst": float(f"{peer.worst:.3g}"),
                "apart": float(f"{apart(ours, peer):.3g}"),
            }
            rows.append({**theirs, **own, "config": ours.name})
        if not found.peers:
            rows.append({**own, "config": ours.name})
    return rows


def _rows(found: Versus) -> list[Row]:
    """One row a configuration of ours and peer; without peers, one a configuration."""
    if found.read is not None:
        return _rows_of_cache(found, found.read)
    cost, gemm = cost_of(found.shape.problem), found.gemm_tflops()
    rows: list[Row] = []
    for ours in found.set:
        rate = cost.tflops(ours.time_us.median / 1e6)
        chosen = found.choice.config.short_form() if found.choice.config else None
        end: Row = {
            "of_gemm": round(rate / gemm, 3) if gemm else None,
            "control": round(found.comparison.control.median, 4),
            "void": found.comparison.is_void,
            "config": chosen if found.n_ours == 1 else ours.name,
        }
        begin: Row = {"shape": found.shape.name, "ours_tflops": round(rate, 1)}
        against: list[Row] = [_against(found, ours, peer, cost) for peer in found.peers]
        rows += [{"shape": begin["shape"], **one, **end} for one in against] or [{**begin, **end}]
    return rows


def _rows_of_cache(found: Versus, read: Timed) -> list[Row]:
    """The same of a cache, in microseconds and shares of the rate of a plain read."""
    rows: list[Row] = []
    for ours in found.set:
        chosen = found.choice.config.short_form() if found.choice.config else None
        own: Row = {
            "ours_us": round(ours.time_us.median, 1),
            "read_us": round(read.time_us.median, 1),
            "of_read": round(found.of_read(ours) or 0.0, 3),
        }
        end: Row = {
            "control": round(found.comparison.control.median, 4),
            "void": found.comparison.is_void,
            "config": chosen if found.n_ours == 1 else ours.name,
        }
        name = found.shape.name
        for peer in found.peers:
            ratio = found.times_as_fast(peer, ours)
            against: Row = {
                "peer": peer.name,
                "peer_us": round(peer.time_us.median, 1),
                "times_as_fast": round(ratio.median, 3),
                "p20": round(ratio.p20, 3),
                "p80": round(ratio.p80, 3),
            }
            rows.append({"shape": name, **against, **own, **end})
        if not found.peers:
            rows.append({"shape": name, **own, **end})
    return rows


def _against(found: Versus, ours: Timed, peer: Timed, cost: Cost) -> Row:
    ratio = found.times_as_fast(peer, ours)
    return {
        "peer": peer.name,
        "ours_tflops": round(cost.tflops(ours.time_us.median / 1e6), 1),
        "peer_tflops": round(cost.tflops(peer.time_us.median / 1e6), 1),
        "times_as_fast": round(ratio.median, 3),
        "p20": round(ratio.p20, 3),
        "p80": round(ratio.p80, 3),
    }


def _say(rows: list[Row], output: Path | None, *, with_means: bool) -> None:
    """The means over shapes, unless a set was timed: its configurations are not to be mixed."""
    from flashsmith.measure.statistics import geometric_mean

    by_peer: dict[str, list[float]] = {}
    for row in rows:
        if not row["void"] and "peer" in row:
            by_peer.setdefault(str(row["peer"]), []).append(float(str(row["times_as_fast"])))
    for peer, ratios in by_peer.items() if with_means else ():
        note(f"{geometric_mean(ratios):.3f} times as fast as {peer} ({len(ratios)} shapes)")
    void = {str(row["shape"]) for row in rows if row["void"]}
    if void:
        note(f"void, because the control was off by more than 1 %: {', '.join(sorted(void))}")
    if output is not None:
        note(f"records appended to {output}")
