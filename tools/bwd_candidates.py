"""Races candidate configurations of the backward kernels within a time: on wgmma, or of a file.

    PYTHONPATH=src python tools/bwd_candidates.py -o FILE --budget SECONDS \\
        [--peer FILE.py:NAME] [--unrecorded FILE.py:NAME] [--skip SHORT_FORM] \\
        [--lengths 512,2048] [--cells 256:full,256:causal] [--configs FILE] \\
        [--regime sustained]

Compiles all candidates on all cores, checks each on small problems of the same kernels, races them
interleaved with the peers on every cell, repeats the ordered ones bit by bit at full size, and
prints a table last: times as fast as the peers, or as the first candidate where there are none.
The first contender runs twice: how the two differ is said of every cell. A candidate that is
refused, wrong or raises is named and left out. One that hangs, or breaks the GPU's context, is
named and the script starts again without it, in the time that is left. Records are appended to
FILE, but those of `--unrecorded` peers; peers are called as tools/bwd_h200.py says. `--configs`
names a file of short forms, one a line, that are raced on the cells of their width instead.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from bwd_h200 import GRADIENTS, call_of, peer_of, problem_of, tensors_of

from flashsmith.base.errors import FlashsmithError, LaunchError
from flashsmith.check.cases import Case
from flashsmith.check.survey import compile_jobs
from flashsmith.check.verdict import Verdict, check_case
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import parse_config
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Comparison, Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import geometric_mean
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare

LENGTHS = "512,2048,8192"
REPEATS = 20
REPEATED = (512, 4096)  # lengths
HANGS_AFTER = 25.0  # seconds of one step that ought to take two
FAR = 0.02  # of a peer's gradient, in its own norm: 16-bit roundings give a tenth of it
_ALL = "turns+fold+early_dv+late_fences"
BEGINS = {64: f"ds_2+{_ALL}", 128: f"ds_3+{_ALL}", 256: "ds_2"}
FREE = {64: "dq_red+unordered", 128: "unordered", 256: "dq_red+unordered"}
# By width and mask: words behind those above, those of today's choice first. `free` stands for
# FREE's; what a group of words ends with is tried behind each of them.
_PASSES = "two_passes+early_release+v_halves"
_HIDING = "masks_first+adders_3+early_polls+rising"
_FREE_HIDING = "free+masks_first+short_last"
_ENDS = ("", "early_start", "rounds_dq", "rounds_dq+early_start")
WORDS = {
    (64, "full"): (
        *("adders_3+early_polls+section_20+heads_inner", *_ENDS),
        *("free+heads_inner", "", "early_start"),
    ),
    (64, "causal"): (
        *(f"{_HIDING}+section_20+heads_inner", *_ENDS),
        *(f"{_HIDING}+section_10", "rounds_dq+early_start"),
        *(f"{_FREE_HIDING}+section_10", "", "early_start"),
    ),
    (128, "full"): (
        *("adders_3+section_20+heads_inner", *_ENDS),
        *("adders_3+section_40+heads_inner", *_ENDS),
        *("adders_3+section_10+heads_inner", "rounds_dq+early_start"),
        *("free+heads_inner", "", "early_start"),
    ),
    (128, "causal"): (
        *(f"{_HIDING}+section_10", *_ENDS),
        *(f"{_HIDING}+section_20", "rounds_dq+early_start"),
        *(f"{_HIDING}+section_40", "rounds_dq+early_start"),
        *(f"{_FREE_HIDING}+section_40+heads_inner", "", "early_start"),
    ),
    (256, "full"): (f"{_PASSES}+heads_inner", "", "early_start"),
    (256, "causal"): (
        *(f"masks_first+{_PASSES}+short_last+section_40+heads_inner", "", "early_start"),
        *(f"masks_first+{_PASSES}+section_40+heads_inner", "early_start"),
    ),
}
CELLS = ",".join(f"{d_head}:{mask}" for d_head, mask in WORDS)
# One head of rows in three kv blocks, and keys that end early: the kernels of the cells, and more.
SMALL = ({"q_len": 512, "k_len": 512}, {"q_len": 400, "k_len": 400})


def words_of(d_head: int, mask: str) -> list[str]:
    """Each group's words with each of its ends."""
    found, begin = [], ""
    for words in WORDS[d_head, mask]:
        if words in _ENDS:
            found.append(f"{begin}+{words}".rstrip("+"))
        else:
            begin = words
    return found


GIVEN: list[KernelConfig] = []  # in place of all others


def candidates(d_head: int, mask: str) -> list[tuple[str, KernelConfig]]:
    """Labels and configurations of a width."""
    if GIVEN:
        kept = [config for config in GIVEN if config.d_head == d_head]
        begin = f"hopper_bwd({d_head}): {BEGINS[d_head]}+"  # what most have in common
        texts = [str(c).replace(f"{c.dtype.name}, ", "") for c in kept]
        return [(text.removeprefix(begin), c) for text, c in zip(texts, kept, strict=True)]
    found: list[tuple[str, KernelConfig]] = []
    for words in words_of(d_head, mask):
        text = f"{BEGINS[d_head]}+{words.replace('free', FREE[d_head], 1)}"
        ordered = sorted(text.split("+")[1:], key=_place)
        text = "+".join([text.split("+")[0], *ordered])
        config = parse_config(f"hopper_bwd(BF16, {d_head}): {text}")
        if config not in [other for _, other in found]:
            found.append((words, config))
    return found


def _place(word: str) -> int:
    """Where a word stands in a short form: in the order of the fields."""
    names = list(Sm90BackwardConfig.knobs())
    stems = {"adders": "adders", "section": "section_mb"}
    stem, _, value = word.partition("_")
    return names.index(stems.get(stem, word) if value.isdigit() else word)


@dataclass
class Session:
    """What is known so far; a second thread ends or restarts what hangs."""

    deadline: float  # of time.time(): it survives a restart
    skipped: list[str]
    doing: str = "starting"
    since: float = field(default_factory=time.time)
    said: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    begin: float = field(default_factory=time.time)

    def say(self, text: str) -> None:
        """A line now, and again before the table."""
        self.said.append(text)
        print(f"[{time.time() - self.begin:4.0f} s] {text}", flush=True)

    def start(self, doing: str) -> None:
        """What is named when nothing comes back."""
        self.doing, self.since = doing, time.time()

    @property
    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.time()

    def restart_without(self, text: str, why: str) -> None:
        """The same command in a new process, without one candidate."""
        print(f"{text}: {why}; starting again without it", flush=True)
        show(self)
        again = [a for a in sys.argv if not a.startswith("--until=")]
        again += [f"--skip={text}", f"--until={self.deadline}"]
        os.execv(sys.executable, [sys.executable, *again])

    def watch(self) -> None:
        """Ends the process some time after the deadline, and restarts it where a step hangs."""
        while True:
            time.sleep(1.0)
            if self.left < -HANGS_AFTER:
                print(f"out of time in: {self.doing}", flush=True)
                show(self)
                os._exit(3)
            if time.time() - self.since > HANGS_AFTER and "bwd" in self.doing:
                self.restart_without(self.doing, "hangs")


@dataclass(frozen=True)
class Cell:
    """One problem, and what was timed on it."""

    d_head: int
    mask: str
    length: int
    flops: float
    run: Comparison
    labels: dict[str, str]  # by name


def small_problems(config: KernelConfig, mask: str) -> list[AttentionProblem]:
    """Few heads, the last of which rise; causal ones are walked from the diagonal on."""
    return [
        AttentionProblem(
            1, 5, 5, d_head=config.d_head, causal=mask == "causal", operation="backward", **lengths
        )
        for lengths in SMALL
    ]


def check_all(device, session: Session, work) -> set[KernelConfig]:
    """Those that are right on small problems."""
    jobs = [
        (config, Case(f"{mask} {problem.q_len}", problem))
        for config, mask in work
        for problem in small_problems(config, mask)
    ]
    session.start("compiling")
    cells = [
        (config, Case("cell", problem_of(config.d_head, 512, mask == "causal")))
        for config, mask in work
    ]
    compile_many(compile_jobs(device, [*jobs, *cells]))
    session.say("compiled")
    right: set[KernelConfig] = set()
    wrong: set[KernelConfig] = set()
    for config, case in jobs:
        session.start(config.short_form())
        try:
            verdict = check_case(device, config, case)
        except LaunchError as error:  # the context is lost
            session.restart_without(config.short_form(), str(error))
        except FlashsmithError as error:
            verdict = Verdict(case.name, ok=False, worst=float("inf"), reason=str(error))
        (right if verdict.ok else wrong).add(config)
        if not verdict.ok:
            session.say(f"WRONG {config.short_form()} | {verdict}")
    session.start("between steps")
    session.say(f"{len(right - wrong)} candidates are right, {len(wrong)} WRONG or refused")
    return right - wrong


def repeats(device, config: KernelConfig, problem: AttentionProblem) -> str:
    """How many of the runs have other bits than the first, or nothing."""
    tensors = tensors_of(problem)
    call, prepared = call_of(tensors), prepare(device, config, problem)
    first: dict[str, torch.Tensor] = {}
    other = dict.fromkeys(GRADIENTS, 0)
    for _ in range(REPEATS):
        for name in GRADIENTS:
            tensors[name].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared(call)
        device.synchronize()
        for name in GRADIENTS:
            bits = tensors[name].view(torch.int16)
            other[name] += not torch.equal(first.setdefault(name, bits.clone()), bits)
    finite = all(bool(torch.isfinite(tensors[name]).all()) for name in GRADIENTS)
    if not any(other.values()) and finite:
        return ""
    return f"others than the first: {other}{'' if finite else '; NOT FINITE'}"


def repeat_all(device, session: Session, work) -> None:
    """Every ordered candidate at two lengths, as far as time allows."""
    done = bad = left = 0
    for config, mask in work:
        for length in REPEATED:
            if session.left < 2:
                left += 1
                continue
            session.start(config.short_form())
            try:
                why = repeats(device, config, problem_of(config.d_head, length, mask == "causal"))
            except FlashsmithError as error:
                why = f"FAILED {error}"
            done += 1
            if why:
                bad += 1
                session.say(f"{config.short_form()} {mask} {length}: {why}")
    session.start("between steps")
    session.say(f"{done} times {REPEATS} runs, {bad} with OTHER BITS, {left} not run in time")


def peer_contender(name: str, make, problem, tensors) -> tuple[Contender, Sequence[torch.Tensor]]:
    """A peer on the same tensors, and its gradients."""
    run = make(problem, *(tensors[n] for n in ("do", "q", "k", "v", "o", "lse")))
    theirs = [x.clone() for x in run()]

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            run()

    return Contender(name, launch), theirs


def distance(tensors, theirs) -> float:
    """The largest of the gradients' distances from a peer's, in the norm of its own."""
    far = 0.0
    for name, peers in zip(GRADIENTS, theirs, strict=False):
        off = (tensors[name].float() - peers.float()).norm() / peers.float().norm()
        far = max(far, off.nan_to_num(float("inf")).item())
    return far


def race(
    device, session: Session, raced, problem, peers, arguments
) -> tuple[Comparison, dict[str, str]]:
    """An interleaved run of what can be run on one problem; the first's gradients are a measure."""
    tensors = tensors_of(problem)
    call, contenders, labels = call_of(tensors), [], {}
    theirs: Sequence[torch.Tensor] = ()
    for name, make in peers:
        try:
            contender, gradients = peer_contender(name, make, problem, tensors)
        # What a foreign library raises is not known beforehand.
        except Exception as error:  # noqa: BLE001
            session.say(f"{name} does not run: {error}")
            continue
        contenders.append(contender)
        theirs = theirs or gradients
        labels[name] = name
    for label, config in raced:
        session.start(config.short_form())
        prepared = prepare(device, config, problem)
        for name in GRADIENTS:
            tensors[name].fill_(float("nan"))
        torch.cuda.synchronize()
        for _ in range(arguments.runs):
            prepared(call)
        device.synchronize()
        theirs = theirs or [tensors[name].clone() for name in GRADIENTS]
        far = distance(tensors, theirs)
        if far > FAR:
            session.say(f"WRONG {config.short_form()} at {problem.q_len}: {far:.1e} from the first")
            continue
        labels[config.short_form()] = label
        contenders.append(Contender(config.short_form(), lambda s, p=prepared: p(call, s)))
    session.start("racing")
    faulthandler.dump_traceback_later(HANGS_AFTER / 2)
    rounds, regime = arguments.rounds, arguments.regime
    run = compare(device, contenders, rounds=rounds, attempts=2, regime=regime)
    faulthandler.cancel_dump_traceback_later()
    return run, labels


def race_all(device, session: Session, right, arguments, peers, unrecorded) -> None:
    """Every cell, as far as time allows: wide lengths last of each kind."""
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    for length in map(int, arguments.lengths.split(",")):
        for d_head, mask in cells_of(arguments):
            if session.left < arguments.repeat_seconds:
                session.say(f"not raced in time: d {d_head} {mask} {length}")
                continue
            problem = problem_of(d_head, length, mask == "causal")
            raced = [(n, c) for n, c in candidates(d_head, mask) if c in right]
            try:
                run, labels = race(device, session, raced, problem, peers, arguments)
            except FlashsmithError as error:
                session.say(f"FAILED d {d_head} {mask} {length} in {session.doing}: {error}")
                continue
            flops = cost_of(problem).flops
            found = records_of(run, problem, environment, suite="backward", flops=flops)
            kept = [record for record in found if record.what["name"] not in unrecorded]
            append_records(arguments.output, kept)
            session.cells.append(Cell(d_head, mask, length, flops, run, labels))
            control = f"the first beside itself {run.control.median:.4f}"
            session.say(f"d {d_head} {mask} {length}: {control}{' VOID' if run.is_void else ''}")


def show(session: Session) -> None:
    """What was said, and by width and mask how fast each is, beside the peers or the first."""
    print("\n" + "\n".join(session.said))
    kinds = dict.fromkeys((cell.d_head, cell.mask) for cell in session.cells)
    for d_head, mask in kinds:
        cells = [c for c in session.cells if (c.d_head, c.mask) == (d_head, mask)]
        labels = cells[0].labels
        peers = [name for name, label in labels.items() if name == label] or list(labels)[:1]
        lengths = " ".join(f"{cell.length:>6}" for cell in cells)
        over = " ".join(f"over {labels[name]}"[:16].rjust(16) for name in peers)
        print(f"\nd {d_head} {mask}, TFLOP/s".ljust(65), lengths, over)
        for name, label in labels.items():
            rates = " ".join(f"{_rate(cell, name):6.0f}" for cell in cells)
            means = " ".join(f"{_mean_over(cells, name, peer):16.3f}" for peer in peers)
            print(f"{label:64} {rates} {means}")


def _rate(cell: Cell, name: str) -> float:
    """TFLOP/s, or nan where it was not timed."""
    times = {timed.name: timed.time_us.median for timed in cell.run.timed}
    return cell.flops / times[name] / 1e6 if name in times else float("nan")


def _mean_over(cells: Sequence[Cell], name: str, peer: str) -> float:
    """Geometric mean of the ratios of the cells that have both."""
    ratios = [_rate(cell, name) / _rate(cell, peer) for cell in cells]
    ratios = [ratio for ratio in ratios if ratio == ratio]
    return geometric_mean(ratios) if ratios else float("nan")


def name_of(peer: str) -> str:
    """That of its file."""
    return Path(peer.rpartition(":")[0]).stem


def cells_of(arguments: argparse.Namespace) -> list[tuple[int, str]]:
    """Widths and masks."""
    cells = [cell.split(":") for cell in arguments.cells.split(",")]
    return [(int(width), mask) for width, mask in cells]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of the records")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--unrecorded", action="append", default=[])
    parser.add_argument("--budget", type=float, default=150.0, help="seconds of everything")
    parser.add_argument("--repeat-seconds", type=float, default=20.0, help="kept for repeats")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=1, help="of each before a race")
    parser.add_argument("--regime", choices=("burst", "sustained"), default="burst")
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--cells", default=CELLS, help="widths and masks")
    parser.add_argument("--configs", type=Path, help="file of short forms to race")
    parser.add_argument("--skip", action="append", default=[], help="a candidate's short form")
    parser.add_argument("--until", type=float, default=0.0, help="of time.time(), for restarts")
    return parser.parse_args()


def main() -> None:
    """Checks, races, repeats; the table is last."""
    arguments = parsed()
    if arguments.configs:
        GIVEN.extend(parse_config(line) for line in arguments.configs.read_text().splitlines())
    session = Session(arguments.until or time.time() + arguments.budget, arguments.skip)
    device = timed_device(default_device("cuda"))
    threading.Thread(target=session.watch, daemon=True).start()
    work = [
        (config, mask)
        for d_head, mask in cells_of(arguments)
        for _, config in candidates(d_head, mask)
        if config.short_form() not in arguments.skip
    ]
    right = check_all(device, session, work)
    given = [*arguments.peer, *arguments.unrecorded]
    peers = [(name_of(text), peer_of(text)) for text in given]
    unrecorded = {name_of(text) for text in arguments.unrecorded}
    race_all(device, session, right, arguments, peers, unrecorded)
    repeat_all(device, session, [(c, m) for c, m in work if c in right and c.repeats_bits])
    show(session)


if __name__ == "__main__":
    main()
