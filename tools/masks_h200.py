"""Races kernels with windows, caps, slopes, sinks and biases against the plain kernel of the run.

    PYTHONPATH=src python tools/masks_h200.py -o FILE [--peer FILE.py:NAME] [--only window,scores,…]

Every run is interleaved: first the plain problem with the kernel that is chosen for it, then the
problem with the fact on every candidate, then the peer, a function (q, k, v, causal, window) that
returns the output, where it has windows. A ratio of 1 is the rate of the plain kernel on the area
that the mask leaves. `--orders` races windows in other tile orders too, and with keys that all
heads share, which says what reading them from memory costs. Records are appended to FILE; the table
is last.
"""

from __future__ import annotations

import argparse
import importlib.util
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import Case
from flashsmith.check.survey import compile_jobs
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import Record, append_records
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import Prepared, prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded
from flashsmith.tuner.choose.choice import choose

_LOOP = "overlap+early_rescale+tiles_DYNAMIC+late_draw+sections"
_SUM = f"{_LOOP}+stats_SUM+lazy_8"
_WIDE = f"(BF16, 128, 2, 128): kv_2+q_4+{_SUM}+halves+pingpong+early_tests"
_VOTE = f"{_LOOP}+stats_VOTE+lazy_8+halves+pingpong+early_tests+o_smem"
_BITS = _VOTE.replace("VOTE", "BITS")
_THREE = f"(BF16, 64, 3, 128): kv_3+q_6+{_SUM}+halves+pingpong"
CONFIGS = {
    128: (
        f"{_WIDE}+split+o_smem+late_store+regs_232_40",
        f"(BF16, 128, 2, 128): kv_2+q_4+{_BITS}+late_store+regs_232_40",
        f"(BF16, 128, 3, 80): kv_2+q_6+{_LOOP}+stats_BITS+lazy_8+early_tests+o_smem+regs_160_32",
        f"(BF16, 128, 3, 80): kv_2+q_6+{_SUM}+pingpong+early_tests+split+o_smem+hints+regs_160_32",
    ),
    64: (
        f"{_THREE}+o_smem+regs_160_32",
        f"(BF16, 64, 2, 128): kv_3+q_4+{_SUM}+halves+pingpong+o_smem+regs_232_40",
        f"(BF16, 64, 2, 128): kv_3+q_4+{_VOTE}+regs_232_40",
    ),
}


def _two(stats: str, words: str) -> str:
    loop = f"{_LOOP}+stats_{stats}+lazy_8+halves+pingpong+early_tests+o_smem"
    return f"(BF16, 128, 2, 128): kv_2+q_4+{loop}+{words}+regs_232_40"


def _spans(words: str, stats: str = "BITS") -> str:
    loop = f"{_LOOP}+stats_{stats}+lazy_8+own_spans+early_tests"
    return f"(BF16, 128, 3, 64): kv_4+q_6+{loop}+{words}+regs_160_32"


# Of windows: configurations, and how many heads' tiles are drawn in turns; 0: as the rule says.
ORDERS = (1, 4, 8, 16)
WINDOW_CONFIGS = {
    128: (
        *(
            _spans(f"{words}hints")
            for words in ("ahead_6+o_q+", "ahead_2+o_q+", "o_q+", "ahead_6+")
        ),
        _spans("pingpong+ahead_6+o_q+hints", "SUM"),
        _two("BITS", "late_store+hints"),
        _two("BITS", "late_store"),
        _two("SUM", "late_store+hints"),
    ),
    64: (
        f"{_THREE}+own_spans+l_mma+o_smem+regs_160_32",
        f"{_THREE}+l_mma+o_smem+regs_160_32",
        f"{_THREE}+o_smem+regs_160_32",
    ),
}
# Of one score or bias each: what is raced beside the others.
SCORE_CONFIGS = {
    "sinks": (f"{_WIDE}+up_ALL+o_smem+hints+regs_232_40",),
    "bias": (_two("BITS", "split+late_store"), _two("BITS", "split+hints+late_store")),
}
WINDOWS = [
    (d, length, {"window_left": 1024, "causal": True})
    for d in (128, 64)
    for length in (8192, 32768)
]
SCORES = [
    (d, 4096, facts)
    for d in (128, 64)
    for facts in (
        {"softcap": 50.0},
        {"softcap": 50.0, "causal": True},
        {"alibi": True},
        {"alibi": True, "causal": True},
        {"sinks": True},
        {"sinks": True, "causal": True},
    )
]
_OF_ALL = {"bias_shared": "both"}  # one matrix for all heads and sequences
BIASES = [
    (128, 4096, facts)
    for facts in (
        {"bias": "same", "bias_keys": "chunks", **_OF_ALL},
        {"bias": "bool", **_OF_ALL},
        {"bias": "float32", **_OF_ALL},
    )
]


def problems_of(d_head: int, length: int, facts: dict) -> tuple[AttentionProblem, AttentionProblem]:
    """The plain problem that the rate is taken from, and the one with the facts."""
    batch = 1 if "window_left" in facts else 16384 // length
    plain = AttentionProblem(batch, 16, 16, length, length, d_head)
    causal = bool(facts.get("causal")) and "window_left" not in facts
    return replace(plain, causal=causal), replace(plain, **facts)


def peer_of(text: str):
    """The peer's function on tensors, called as FlashAttention-3's is where its file has `load`."""
    path, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("masks_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not hasattr(module, "load"):
        return function
    operators = module.load("d128")

    def call(q, k, v, causal, window):
        return function(operators, q, k, v, causal=causal, window=window)

    return call


def peer_contender(peer, problem: AttentionProblem) -> Contender:
    """The peer on tensors of its own."""
    torch.manual_seed(0)
    shape = (problem.batch, problem.q_len, problem.heads, problem.d_head)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    window = (
        -1 if problem.window_left is None else problem.window_left,
        0 if problem.causal else -1,
    )
    peer(q, k, v, problem.causal, window)

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            peer(q, k, v, problem.causal, window)

    return Contender("peer", launch)


@dataclass(frozen=True)
class Candidate:
    """A configuration, and the heads whose tiles are drawn in turns; 0: as the rule says."""

    text: str
    section_heads: int = 0
    shares_keys: bool = False  # all heads have the same K and V

    @property
    def config(self):
        """The configuration of the text."""
        return parse_config(f"hopper{self.text}")

    @property
    def name(self) -> str:
        """As records have it."""
        order = f", sections of {self.section_heads}" if self.section_heads else ""
        return self.config.short_form() + order + ", one kv head" * self.shares_keys

    def of(self, asked: AttentionProblem) -> AttentionProblem:
        """The problem that it is raced on."""
        return replace(asked, kv_heads=1) if self.shares_keys else asked

    def prepared(self, device, problem: AttentionProblem) -> Prepared:
        """Loaded, in its own order."""
        found = prepare(device, self.config, problem)
        if not self.section_heads:
            return found
        steps = []
        for step in found.steps:
            order = replace(step.launch.order, section_heads=self.section_heads)
            steps.append(replace(step, launch=replace(step.launch, order=order)))
        return Prepared(device, problem, tuple(steps), found.workspace_bytes)


def candidates_of(device, asked: AttentionProblem, facts: dict, orders: bool) -> list[Candidate]:
    """What is raced on a problem with these facts, what is chosen first where scores have them."""
    d_head = asked.d_head
    if "window_left" not in facts:
        more = [text for fact in facts for text in SCORE_CONFIGS.get(fact, ()) if d_head == 128]
        chosen = choose(asked, device.arch, gpu=device.name).config.short_form()
        texts = (chosen.removeprefix("hopper"), *CONFIGS[d_head], *more)
        found: dict[KernelConfig, Candidate] = {}
        for text in texts:
            found.setdefault(Candidate(text).config, Candidate(text))
        return [*found.values()]
    texts = WINDOW_CONFIGS[d_head]
    if not orders:
        return [Candidate(text) for text in texts]
    first = [Candidate(text, heads) for text in texts[:1] for heads in ORDERS]
    others = [Candidate(text, heads) for text in texts[1:] for heads in ORDERS[:1] + ORDERS[-1:]]
    return [*first, *others, Candidate(texts[0], 1, True), Candidate(texts[0], 16, True)]


def race(device, plain, asked, candidates, peer, rounds: int):
    """One interleaved run, and the problem of each contender."""
    chosen = choose(plain, device.arch, gpu=device.name).config
    with ExitStack() as stack:
        calls = {}
        for problem in dict.fromkeys([plain, *(c.of(asked) for c in candidates)]):
            locations, buffers = contiguous_tensors(problem, random_inputs(problem))
            calls[problem] = stack.enter_context(uploaded(device, buffers)).call(locations)

        def contender(name, prepared, problem):
            return Contender(name, lambda stream: prepared(calls[problem], stream))

        contenders = [contender("plain", prepare(device, chosen, plain), plain)]
        problems = [plain]
        for candidate in candidates:
            problem = candidate.of(asked)
            try:
                prepared = candidate.prepared(device, problem)
                contenders.append(contender(candidate.name, prepared, problem))
                problems.append(problem)
            except FlashsmithError as error:
                print(f"left out: {error}", flush=True)
        if peer is not None and "window_left" in problem_fields(asked) and asked.d_head == 128:
            contenders.append(peer_contender(peer, asked))
            problems.append(asked)
        return compare(device, contenders, rounds=rounds, attempts=2), problems


def small_of(asked: AttentionProblem) -> tuple[AttentionProblem, AttentionProblem]:
    """What a configuration is checked on: odd lengths, and the code that is raced.

    Three heads on one, a bias for each.
    """
    small = replace(asked, heads=3, kv_heads=1, batch=1, bias_shared="")
    return replace(small, q_len=1711, k_len=1712, lse=True), replace(small, q_len=2048, k_len=2048)


def compile_all(device, work, orders: bool) -> None:
    """Side by side, before anything is timed."""
    jobs = []
    for d_head, length, facts in work:
        plain, asked = problems_of(d_head, length, facts)
        jobs.append((choose(plain, device.arch, gpu=device.name).config, Case("race", plain)))
        for text in dict.fromkeys(c.text for c in candidates_of(device, asked, facts, orders)):
            config = parse_config(f"hopper{text}")
            jobs += [(config, Case("race", problem)) for problem in (asked, *small_of(asked))]
    compile_many(compile_jobs(device, list(dict.fromkeys(jobs))))


def is_right(device, text: str, asked: AttentionProblem) -> bool:
    """Whether a configuration is right on both small problems; says what is wrong."""
    config = parse_config(f"hopper{text}")
    try:
        for small in small_of(asked):
            check_case(device, config, Case("race", small)).require_ok(config.short_form())
    except FlashsmithError as error:
        print(f"NOT RIGHT: {error}", flush=True)
        return False
    return True


def work_of(arguments: argparse.Namespace) -> list[tuple[int, int, dict]]:
    """The problems that are asked for: width, length and facts."""
    parts = {"window": WINDOWS, "scores": SCORES, "bias": BIASES}
    work = [one for part, of_part in parts.items() if part in arguments.only for one in of_part]
    work = [one for one in work if not arguments.width or one[0] == arguments.width]
    wanted = set(arguments.fact.split(",")) if arguments.fact else set()

    def is_wanted(facts: dict) -> bool:
        return not wanted or bool(wanted & {w for k, v in facts.items() for w in (k, f"{k}={v}")})

    return [one for one in work if is_wanted(one[2])]


def main() -> None:
    """Checks each configuration on a small problem, races, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--peer")
    parser.add_argument("--only", default="window,scores,bias")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, help="only this d_head")
    parser.add_argument("--fact", help="only problems with one of these: sinks,bias=same,…")
    parser.add_argument("--orders", action="store_true", help="windows in other tile orders too")
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    environment = asdict(environment_of(device, compiler=find_nvrtc().compiler))
    peer = peer_of(arguments.peer) if arguments.peer else None
    table = []
    work = work_of(arguments)
    compile_all(device, work, arguments.orders)
    right: dict[tuple, bool] = {}  # the length does not matter
    for d_head, length, facts in work:
        plain, asked = problems_of(d_head, length, facts)
        candidates = candidates_of(device, asked, facts, arguments.orders)
        for text in dict.fromkeys(c.text for c in candidates):
            key = (text, *facts.items())
            if key not in right:
                right[key] = is_right(device, text, asked)
        candidates = [c for c in candidates if right[c.text, *facts.items()]]
        run, problems = race(device, plain, asked, candidates, peer, arguments.rounds)
        base = run.timed[0]
        for timed, problem in zip(run.timed, problems, strict=True):
            share = problem.mask.area / plain.mask.area
            ideal = base.time_us.median * share / timed.time_us.median
            result = {
                "median_us": timed.time_us.median,
                "p20_us": timed.time_us.p20,
                "p80_us": timed.time_us.p80,
                "share_of_the_plain_rate": ideal,
                "control": run.control.median,
                "rounds": timed.time_us.rounds,
            }
            what = {"suite": "masks", "name": timed.name, **problem_fields(problem)}
            append_records(arguments.output, [Record(what, result, environment)])
            void = " VOID" if run.is_void else ""
            table.append(
                f"d {d_head} {length} {facts}{void}: {timed.time_us.median:8.1f} µs, "
                f"{ideal:.3f} of plain, {timed.name}"
            )
        print(table[-1], flush=True)
    print("\n".join(table))


if __name__ == "__main__":
    main()
