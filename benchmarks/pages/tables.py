"""Tables for pages that are kept: records as Markdown, and texts between marks rewritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from flashsmith.base.errors import DamagedFile
from flashsmith.bench.ladder import KNOB, LADDER, changes
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.parse import looks_like_config
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.varying import varying, varying_texts
from flashsmith.measure.record import Record
from flashsmith.measure.statistics import geometric_mean
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import (
    Against,
    against_peers,
    leading_family,
    regime_of,
    runs_of,
    tflops_of,
)
from flashsmith.report.winners import Winner, winners_on_grid

NOT_MEASURED = "not measured yet"


def between_marks(text: str, name: str, content: str) -> str:
    """`text` with what stands between the marks of `name` replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise DamagedFile(f"The page has no place {begin} … {end}, or more than one; add it.")
    place = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.S)
    return place.sub(lambda found: f"{found[1]}{content.rstrip()}\n{found[2]}", text)


FA3 = "FlashAttention-3"
BACKWARD_PAGE = "docs/kernels/sm90_backward.md"


def beside_fa3_table(
    grid: Sequence[Record], free: Sequence[Record], served: Sequence[Record]
) -> str:
    """How many times as fast as FlashAttention-3 we are, where both ran side by side.

    Gradients of the papers' grid, in order and in any, and the caches of suite `serve`.
    """
    kinds = {
        ("gradients, the same bits every time", BACKWARD_PAGE): grid,
        ("gradients, sums in any order", BACKWARD_PAGE): free,
        ("decoding, contiguous caches", "docs/serving.md"): [
            r for r in served if not r.problem.page
        ],
        ("decoding, pages of 16 and 64 tokens", "docs/serving.md"): [
            r for r in served if r.problem.page
        ],
    }
    lines = ["| beside FlashAttention-3 | shapes | times as fast | least | most |"]
    lines.append("|---|---:|---:|---:|---:|")
    for (what, page), records in kinds.items():
        beside = sorted(against_peers(records), key=lambda a: str(a.ours.environment["date"]))
        newest = {a.problem: a.ratio for a in beside if a.peer == FA3}  # of whichever family
        if newest:
            found = [*newest.values()]
            cells = " | ".join(f"{r:.2f}×" for r in (geometric_mean(found), min(found), max(found)))
            lines.append(f"| [{what}]({page}) | {len(found)} | {cells} |")
    return "\n".join(lines) if len(lines) > 2 else NOT_MEASURED


_WAYS = {Sm90BackwardConfig.NAME: "wgmma", Sm80BackwardConfig.NAME: "mma.sync"}


def compile_seconds_table(records: Sequence[Record]) -> str:
    """Seconds of compiling, of configurations and of first calls, by family and d_head.

    Left out are configurations with `masks_first`: the cases that were compiled do not need the
    kernel that this word makes, so that their seconds are of the other launches alone.
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    first: dict[int, str] = {}
    for record in records:
        name, part = str(record.what["name"]), record.what.get("part")
        if part == "first":
            found = re.fullmatch(r"first gradients, d (\d+) (\w+), nothing compiled", name)
            if found is None:
                raise DamagedFile(
                    f"The record {name!r} has no width and mask in its name; name it as "
                    f"tools/bwd_owed_h200.py does."
                )
            first[int(found[1])] = f"{record.result['seconds']:.2f} ({found[2]})"
        elif part == "compile":
            config = parse_config(name)
            if getattr(config, "masks_first", False):
                continue
            key = (_WAYS[config.NAME], config.d_head)
            seconds.setdefault(key, []).append(record.result["compile_s"])
    lines = ["| kernels | d_head | configurations | median, s | slowest, s | first call, s |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for (way, d_head), found_s in seconds.items():
        cells = f"{len(found_s)} | {median(found_s):.2f} | {max(found_s):.2f}"
        of_first = first.get(d_head, "") if way == "wgmma" else ""
        lines.append(f"| {way} | {d_head} | {cells} | {of_first} |")
    return "\n".join(lines)


def suite_table(records: Sequence[Record]) -> str:
    """What is chosen on every cache of suite `serve`: its time, and over the peers that take it."""
    peers = ("cuDNN", "FlashAttention-2 (torch)", FA3)
    rows: dict[AttentionProblem, dict[str, Against]] = {}
    for one in against_peers(records):
        rows.setdefault(one.problem, {})[one.peer] = one
    lines = [f"| batch | heads | rows x keys | page | µs | of a plain read | {' | '.join(peers)} |"]
    lines.append("|---:|---:|---:|---:|---:|---:|" + "---:|" * len(peers))
    for p, found in rows.items():
        ours = next(iter(found.values())).ours.result
        over = [f"{found[peer].ratio:.2f}" if peer in found else "" for peer in peers]
        lines.append(
            f"| {p.batch} | {p.heads}:{p.kv_heads} | {p.q_len} x {p.k_len:,} | {p.page or ''} | "
            f"{ours['median_us']:,.0f} | {ours['of_read']:.2f} | {' | '.join(over)} |"
        )
    return "\n".join(lines)


def chunk_table(records: Sequence[Record]) -> str:
    """Chunks of query rows on long caches: microseconds, and over FlashAttention-3's there."""
    ways = {
        "slices that fill the SMs": "FA3",
        "slices by the sequence": "FA3",
        "lengths": "FA3",
        "page 16": "FA3 page 16",
    }
    lines = [f"| batch | rows x keys | {' | '.join(ways)} | FlashAttention-3 | on pages |"]
    lines.append("|---:|---:|" + "---:|" * (len(ways) + 2))
    runs: dict[AttentionProblem, dict[str, float]] = {}
    for record in records:
        names = runs.setdefault(record.problem, {})
        names[str(record.what["name"]).removeprefix("ours, ")] = record.result["median_us"]
    for p, us in runs.items():
        ours = [f"{us[way]:.0f} ({us[peer] / us[way]:.2f})" for way, peer in ways.items()]
        theirs = f"{us['FA3']:.0f} | {us['FA3 page 16']:.0f}"
        lines.append(f"| {p.batch} | {p.q_len} x {p.k_len:,} | {' | '.join(ours)} | {theirs} |")
    return "\n".join(lines)


def masks_table(records: Sequence[Record]) -> str:
    """The best configuration of each fact beside the plain kernel of its run, and the peer."""
    runs: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        p = record.problem
        if record.what["name"] != "plain":
            facts = (p.window_left, p.causal, p.softcap, p.alibi, p.sinks, p.bias)
            runs.setdefault((p.d_head, p.q_len, facts), []).append(record)
    lines = ["| fact | d_head | length | time, µs | of the plain rate | over FlashAttention-3 |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for (d_head, length, _), of_all in runs.items():
        newest = max(r.environment["date"] for r in of_all)
        found = [r for r in of_all if r.environment["date"] == newest]
        ours = [r for r in found if looks_like_config(str(r.what["name"]))]
        peers = [r.result["median_us"] for r in found if r not in ours]
        best = min(ours, key=lambda r: r.result["median_us"])
        over = f"{peers[0] / best.result['median_us']:.2f}" if peers else ""
        share = best.result["share_of_the_plain_rate"]
        us = best.result["median_us"]
        what = _facts_text(best.problem)
        lines.append(f"| {what} | {d_head} | {length:,} | {us:,.0f} | {share:.2f} | {over} |")
    return "\n".join(lines)


def _facts_text(problem: AttentionProblem) -> str:
    found = ["causal" if problem.causal else "full"]
    if problem.window_left is not None:
        found.append(f"window {problem.window_left:,}")
    if problem.softcap is not None:
        found.append(f"softcap {problem.softcap:g}")
    found += [name for name in ("alibi", "sinks") if getattr(problem, name)]
    found += [f"bias of all heads, {problem.bias}"] if problem.bias else []
    return ", ".join(found)


def winners_table(tuned: Sequence[Winner]) -> str:
    """The rate of the tuner's winner, by width, mask and length."""
    shapes = sorted({(w.problem.d_head, w.problem.causal) for w in tuned})
    grids = {shape: winners_on_grid(tuned, *shape) for shape in shapes}
    lengths = sorted({length for grid in grids.values() for length in grid})
    if not lengths:
        return NOT_MEASURED
    lines = ["| d_head | mask |" + "".join(f" {length:,} |" for length in lengths)]
    lines.append("|---:|---|" + "---:|" * len(lengths))
    for (d_head, causal), grid in grids.items():
        rates = [f"{grid[length].tflops:.0f}" if length in grid else "" for length in lengths]
        lines.append(f"| {d_head} | {_mask(causal)} | {' | '.join(rates)} |")
    families = {parse_config(w.config).NAME for grid in grids.values() for w in grid.values()}
    return "\n".join([*lines, "", f"- kernels: {_coded(families)}"])


def peers_table(
    records: Sequence[Record],
    peers: Sequence[str],
    regime: str = "burst",
    family: str | None = None,
) -> str:
    """Our rate, and how many times as fast as each peer we are, by width, mask and length.

    Of one family of kernels, the fastest unless another is named: two are never mixed.
    """
    mine = leading_family(records) if family is None else family
    found = [a for a in against_peers(records) if a.peer in peers and a.regime == regime]
    found = [a for a in found if a.problem.heads == a.problem.kv_heads and a.family == mine]
    if not found:
        return NOT_MEASURED
    lengths = sorted({a.problem.q_len for a in found})
    lines = ["| d_head | mask | against |" + "".join(f" {length:,} |" for length in lengths)]
    lines.append("|---:|---|---|" + "---:|" * len(lengths))
    rows = sorted({(a.problem.d_head, a.problem.causal, peers.index(a.peer)) for a in found})
    for d_head, causal, number in rows:
        cells = {
            a.problem.q_len: f"{tflops_of(a.ours):.0f} ({a.ratio:.2f}×)"
            for a in found
            if (a.problem.d_head, a.problem.causal, a.peer) == (d_head, causal, peers[number])
        }
        texts = "".join(f" {cells.get(length, '')} |" for length in lengths)
        lines.append(f"| {d_head} | {_mask(causal)} | {peers[number]} |{texts}")
    kernels = [f"- kernels: {_coded({mine})}"] if mine else []
    return "\n".join([*lines, "", *_means(found, peers), *kernels])


def _mask(causal: bool) -> str:
    return "causal" if causal else "full"


def _coded(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _means(found: Sequence[Against], peers: Sequence[str]) -> list[str]:
    lines = []
    for peer in peers:
        ratios = [a.ratio for a in found if a.peer == peer]
        if ratios:
            lines.append(
                f"- {geometric_mean(ratios):.2f}× {peer} in the geometric mean over {len(ratios)} "
                f"shapes ({min(ratios):.2f}× to {max(ratios):.2f}×)"
            )
    return lines


def ladder_table(configs: Sequence[KernelConfig], records: Sequence[Record]) -> str:
    """What every step adds and, from the newest run of the ladder, what it brings."""
    run = _newest_run(configs, records)
    adds = ["the start"] + [changes(a, b) for a, b in pairwise(configs)]
    lines = ["| | adds | TFLOP/s | × the step before |", "|---:|---|---:|---:|"]
    for number, text in enumerate(adds):
        rate, gain = NOT_MEASURED, ""
        if run:
            rate = f"{tflops_of(run[number]):.0f}"
            gain = f"{_gain(run[number - 1], run[number]):.3f}" if number else ""
        lines.append(f"| {number + 1} | {text} | {rate} | {gain} |")
    lines += ["", f"All steps: {varying(configs).caption}. The start is `{configs[0]}`."]
    if not run:
        return "\n".join(lines)
    p, e = run[0].problem, run[0].environment
    where = (
        f"{e['device']}, {e['date'][:10]}, commit {e['commit']}: batch {p.batch}, {p.heads} heads, "
        f"length {p.q_len:,}, d_head {p.d_head}, {_mask(p.causal)} mask, {regime_of(run[0])}, "
        f"control {run[0].result['control']:.4f}."
    )
    return "\n".join([*lines, "", where])


def knob_table(records: Sequence[Record], knob: str) -> str:
    """How many times as fast a flag makes a kernel, by length, from the newest run of each."""
    timed = [r for r in records if r.what["suite"] == f"{KNOB}{knob}" and not r.result.get("void")]
    found: dict[int, tuple[Record, Record]] = {}
    for run in runs_of(timed):
        by_value = {getattr(parse_config(str(r.what["name"])), knob): r for r in run}
        if set(by_value) == {False, True}:
            found[run[0].problem.q_len] = (by_value[False], by_value[True])
    if not found:
        return NOT_MEASURED
    gains = {n: f"{_gain(*pair):.2f}×" for n, pair in sorted(found.items())}
    lines = ["|" + "".join(f" {n:,} |" for n in gains), "|" + "---:|" * len(gains)]
    lines.append("|" + "".join(f" {gain} |" for gain in gains.values()))
    with_it = [parse_config(str(pair[1].what["name"])) for pair in found.values()]
    p, e = found[min(found)][1].problem, found[min(found)][1].environment
    where = (
        f"`{with_it[0]}`, {p.batch * p.q_len:,} tokens, {p.heads} heads, {_mask(p.causal)} mask; "
        f"{e['device']}, {e['date'][:10]}."
    )
    return "\n".join([*lines, "", where])


def spills_table(compiled: Sequence[Record]) -> str:
    """Kernels of a compile record that spill on any architecture: bytes stored plus loaded."""
    rows = [record for record in compiled if "arch" in record.what]
    arches = list(dict.fromkeys(str(row.what["arch"]) for row in rows))
    spilled = {(row.what["name"], row.what["arch"]): row.result["spill_bytes"] for row in rows}
    names = list(dict.fromkeys(name for (name, _), amount in spilled.items() if amount))
    found = varying_texts(names)
    lines = ["|" + "".join(f" {name} |" for name in (*found.columns, *arches))]
    lines.append("|" + "---|" * len(found.columns) + "---:|" * len(arches))
    for name, cells in zip(names, found.table(), strict=True):
        amounts = [spilled.get((name, arch)) for arch in arches]
        shown = ["" if amount is None else str(amount) for amount in amounts]
        lines.append("|" + "".join(f" {text} |" for text in (*cells.values(), *shown)))
    compilers = ", ".join(sorted({str(row.environment["compiler"]) for row in rows}))
    others = len({row.what["name"] for row in rows}) - len(names)
    shared = f"All: {found.caption}. " if found.caption else ""
    end = f"{shared}{compilers}; the other {others} configurations spill nothing."
    return "\n".join([*lines, "", end])


def _gain(before: Record, after: Record) -> float:
    """Times as fast: from the ratios to the first step where rounds were compared."""
    if "ratio" in before.result and "ratio" in after.result:
        return float(after.result["ratio"]) / float(before.result["ratio"])
    return float(before.result["median_us"]) / float(after.result["median_us"])


def _newest_run(configs: Sequence[KernelConfig], records: Sequence[Record]) -> list[Record]:
    """The records of the last run that timed exactly these steps; empty where there is none."""
    names = [config.short_form() for config in configs]
    runs = runs_of([r for r in records if r.what["suite"] == LADDER and not r.result.get("void")])
    fitting = [run for run in runs if [r.what["name"] for r in run] == names]
    return fitting[-1] if fitting else []
