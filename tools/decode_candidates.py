"""Races candidates of the decode kernels, and chunks of prompts on long caches, within a time.

    PYTHONPATH=src python tools/decode_candidates.py -o FILE [--fa3 FILE.py] [--budget SECONDS]
    PYTHONPATH=src python tools/decode_candidates.py -o FILE --configs FILE [--shapes 4x65536,…]

Compiles all candidates on all cores, runs the cases of servers on each, races them interleaved with
cuDNN, FlashAttention-2, FlashAttention-3 (`--fa3`, as tools/serve_h200.py takes it) and a plain
read of the cache, then chunks of 64 to 512 rows on long caches: whole tiles, slices that fill the
SMs, and slices by the sequence alone, for lengths that the host knows and for such in memory. With
`--only pages`, chunks on pages of 1 to 128 rows.
Candidates that are wrong or refused are named. Records are appended to FILE; tables come last:
microseconds, and times as fast as the best peer on the same kind of cache.

`--configs` races the short forms of a file instead, one a line: on each of `--shapes` (batch x
keys), in each of `--ways`, beside what is chosen (which the control times twice), cuDNN and a plain
read. `--places` says how often: each time the cache lies elsewhere in memory, which moves times of
1 GB by up to 6 %. The table says times as fast as what is chosen, and as cuDNN.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from serve_h200 import PAGE, WAYS, Cache, fa3_contenders, load_fa3, ours, problem_of

from flashsmith.base.errors import FlashsmithError
from flashsmith.bench.peers import contenders_of, find_peers
from flashsmith.check.cases import Case, serving_cases
from flashsmith.check.survey import check_one, compile_jobs
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Comparison, Contender, compare
from flashsmith.measure.plain_read import READ, plain_read
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import geometric_mean
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.tuner.choose.choice import choose

BOTH = "+quick_start+quick_end"
ALL_WAYS = ("", " lengths", f" page {PAGE}")
_FEW, _MANY = "stages_3+ctas_2", "stages_2+ctas_3"


def decode(words: str, warps: int = 4, prefix: str = "decode") -> str:
    """A candidate for up to 16 rows at d_head 128, by what varies."""
    return f"{prefix}(BF16, 128, 16, 16, {warps}): {words}"


def of_slices(slices: str, rings: Sequence[str], words: Sequence[str]) -> list[str]:
    """Candidates of one length of slices: every ring with every word."""
    return [decode(f"{slices}+{ring}{word}") for ring in rings for word in words]


_ALONE = [
    *of_slices("slice_512+most_32", [_FEW], ["", "+quick_start", "+quick_end", BOTH]),
    *of_slices("slice_512+most_32", ["stages_6+ctas_1"], ["", BOTH]),
    *of_slices("slice_512+most_32", ["stages_4+ctas_1"], [BOTH]),
    *of_slices("slice_256+most_32", [_FEW], [BOTH]),
    decode(f"slice_512+most_32+stages_3+ctas_1{BOTH}", warps=8),
    *(
        decode(f"slice_512+most_32+{r}{BOTH}", prefix="hopper_decode")
        for r in (_FEW, "stages_6+ctas_1")
    ),
]
_BATCHED = [
    *of_slices("slice_512+most_32", [_MANY], ["", "+quick_start", "+quick_end", BOTH]),
    *of_slices("slice_512+most_32", [_FEW], ["", BOTH]),
    decode(f"slice_512+most_32+{_MANY}{BOTH}", prefix="hopper_decode"),
]
_GROUPED = [
    *of_slices("slice_1024+most_32", [_MANY, _FEW], ["", BOTH]),
    *of_slices("slice_512+most_32", [_MANY, _FEW], [BOTH]),
    *of_slices("slice_2048+most_32", [_FEW], [BOTH]),
    *(decode(f"slice_1024+most_32+{_MANY}{w}", prefix="hopper_decode") for w in ("", BOTH)),
]
# Batch, keys, query tokens, and heads where they are others than 32 on 8.
RACES = (
    ((1, 8192, 1), _ALONE),
    ((8, 8192, 1, 128, 8), _GROUPED),
    ((8, 8192, 1, 64, 8), _GROUPED),
    ((8, 8192, 4), _GROUPED),
    ((32, 8192, 1), _BATCHED),
    ((64, 4096, 1), _BATCHED),
    ((4, 65536, 1), _BATCHED),
    ((8, 8192, 1), _BATCHED),
    ((1, 65536, 1), _BATCHED),
    ((256, 1024, 1), _BATCHED),
)
# Chunks and rows of a page.
PAGED = tuple(((1, 32768, rows), page) for page in (1, 16, 32, 64, 128) for rows in (128, 512))
CHUNKS = ((1, 32768, 128), (1, 32768, 64), (4, 32768, 128), (1, 32768, 512), (1, 131072, 128))


@dataclass
class Race:
    """What every race needs, and what was found."""

    device: object
    fa3: object
    rounds: int
    output: Path
    environment: object
    said: list[str]
    table: list[str]

    def keep(self, found: Comparison, problem: AttentionProblem) -> None:
        """Appends the records of one interleaved run."""
        flops = cost_of(problem).flops
        records = records_of(found, problem, self.environment, suite="serve", flops=flops)
        append_records(self.output, records)

    def run(self, problem: AttentionProblem, contenders: list[Contender], cache: Cache) -> None:
        """One interleaved run, its records and its rows of the table."""
        with plain_read(self.device, cache.pool.data_ptr(), cache.n_bytes) as read:
            found = compare(self.device, [read, *contenders], rounds=self.rounds, attempts=2)
        self.keep(found, problem)
        heads = f"{problem.heads}:{problem.kv_heads}"
        void = " VOID" if found.is_void else ""
        title = f"b {problem.batch} k {problem.k_len} q {problem.q_len} h {heads}{void}"
        self.table += [f"\n{title}", *rows_of(found)]


def rows_of(found: Comparison) -> Iterator[str]:
    """A line a contender, the fastest first, beside the best peer on the same kind of cache."""
    peers = {True: [], False: []}
    for timed in found.timed:
        if timed.name != READ and not is_ours(timed.name):
            peers[is_paged(timed.name)].append(timed.time_us.median)
    for timed in sorted(found.timed, key=lambda one: one.time_us.median):
        us, best = timed.time_us.median, min(peers[is_paged(timed.name)], default=0.0)
        yield f"  {us:8.1f} us  {best / us:5.3f} x best peer  {timed.name}"


def is_ours(name: str) -> bool:
    """Whether a contender is not a peer."""
    return name.startswith(("decode", "hopper", "ours"))


def is_paged(name: str) -> bool:
    """Whether a contender's cache lies in pages."""
    return " page " in name


def check(device, configs: Sequence[KernelConfig], deadline: float, said: list[str]) -> None:
    """Runs the cases of servers on every candidate, as far as time allows."""
    work = [(config, case) for config in configs for case in serving_cases(config)]
    compile_many(compile_jobs(device, work))
    right = 0
    for done, (config, case) in enumerate(work):
        if time.monotonic() > deadline:
            said.append(f"{len(work) - done} of {len(work)} cases were not run in time")
            break
        found = check_one(device, config, case)
        right += not (found.refusal or found.wrong)
        if found.refusal or found.wrong:
            said.append(f"WRONG {config} | {case.name} | {found.refusal or found.verdict}")
    said.append(f"{right} cases of {len(configs)} candidates are right")


def race_decode(race: Race, shape: tuple[int, ...], texts: Sequence[str]) -> None:
    """Candidates, contiguous, with lengths and in pages, beside the peers."""
    problem = problem_of(*shape)
    cache = Cache(problem)
    contenders = list(ours(race.device, cache, [parse_config(t) for t in texts], race.said))
    if problem.q_len == 1:
        peers = find_peers(["cuDNN", "FlashAttention-2 (torch)"])
        tensors = {"q": cache.q, "k": cache.k, "v": cache.v}
        contenders += contenders_of(race.device, peers, problem, tensors)[0]
    if race.fa3 is not None:
        contenders += fa3_contenders(race.fa3, cache)
    race.run(problem, contenders, cache)


# How the cache of a chunk is given: in pages, with lengths in memory, and facts.
CHUNK_WAYS = {
    "ours, slices that fill the SMs": (False, False, {}),
    "ours, slices by the sequence": (False, False, {"batch_invariant": True}),
    "ours, lengths": (False, True, {}),
    f"ours, page {PAGE}": (True, True, {}),
}


def chunk_work(device) -> Iterator[tuple[KernelConfig, Case]]:
    """What is chosen for every chunk, to be compiled beforehand."""
    for shape in CHUNKS:
        for paged, lengths, facts in CHUNK_WAYS.values():
            pages = {"page": PAGE, "pages": PAGE} if paged else {}
            problem = replace(problem_of(*shape), k_lengths=lengths, **pages, **facts)
            chosen = choose(problem, device.arch, gpu=device.name).config
            yield chosen, Case("chunk", problem)


def race_chunk(race: Race, shape: tuple[int, ...]) -> None:
    """A chunk of a prompt by what is chosen for it, in every way that a cache may be given."""
    problem = problem_of(*shape)
    cache = Cache(problem)
    truth, contenders = cache.truth(), []
    for name, (paged, lengths, facts) in CHUNK_WAYS.items():
        asked, call, out = cache.call(paged=paged, lengths=lengths)
        asked = replace(asked, **facts)
        config = choose(asked, race.device.arch, gpu=race.device.name).config
        try:
            prepared = prepare(race.device, config, asked)
            prepared(call)
            race.device.synchronize()
        except FlashsmithError as error:
            race.said.append(f"{name} on {shape}: {error}")
            continue
        far = float((out.float() - truth).norm() / truth.norm())
        if not far < 5e-3:
            race.said.append(f"WRONG {name} on {shape}: {far:.1e} off")
        race.said.append(f"{name} on {shape}: {config.short_form()}")
        contenders.append(Contender(name, lambda s, p=prepared, c=call, kept=out: p(c, s)))
    if race.fa3 is not None:
        contenders += fa3_contenders(race.fa3, cache)
    race.run(problem, contenders, cache)


def pages_work(device) -> Iterator[tuple[KernelConfig, Case]]:
    """What is chosen for chunks on pages, to be compiled beforehand."""
    for shape, page in PAGED:
        problem = replace(problem_of(*shape), k_lengths=True, page=page, pages=page)
        yield choose(problem, device.arch, gpu=device.name).config, Case("pages", problem)


def race_pages(race: Race, shape: tuple[int, ...], page: int) -> None:
    """What is chosen for a chunk on pages of one size; FlashAttention-3 reads the same ones."""
    cache = Cache(problem_of(*shape), page=page)
    asked, _, _ = cache.call(paged=True, lengths=True)
    ways = {f" page {page}": (True, True)}
    config = choose(asked, race.device.arch, gpu=race.device.name).config
    contenders = [*ours(race.device, cache, [config], race.said, ways)]
    if race.fa3 is not None:
        contenders += fa3_contenders(race.fa3, cache)
    race.run(asked, contenders, cache)


# Bytes that lie before a cache, for each time that it is raced: no multiple of 64 MB.
PLACE_BYTES = 98 << 20


def configs_of(path: Path) -> list[KernelConfig]:
    """The configurations of a file of short forms, one a line; a line may be a comment (#)."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [parse_config(line) for line in dict.fromkeys(lines) if line]


def shape_of(text: str) -> tuple[int, int, int]:
    """Batch, keys and one query token, of `4x65536`."""
    batch, _, keys = text.partition("x")
    return int(batch), int(keys), 1


def way_of(text: str) -> str:
    """How a cache is kept, by a word: `contiguous`, `lengths` or `page`."""
    ways = dict(zip(("contiguous", "lengths", "page"), WAYS, strict=True))
    return ways[text]


def asked_in(problem: AttentionProblem, way: str) -> AttentionProblem:
    """A problem whose cache is kept in one way."""
    paged, lengths = WAYS[way]
    pages = {"page": PAGE, "pages": problem.batch * problem.k_len // PAGE} if paged else {}
    return replace(problem, k_lengths=lengths, **pages)


def beside_chosen(
    device, problem: AttentionProblem, configs: Sequence[KernelConfig]
) -> list[KernelConfig]:
    """What is chosen for a problem, and behind it the candidates that compute it."""
    chosen = choose(problem, device.arch, gpu=device.name).config
    able = [c for c in configs if c.refusal() is None and not c.refused_problem(problem)]
    return list(dict.fromkeys([chosen, *able]))


def race_given(
    race: Race, shape: tuple[int, int, int], way: str, configs: Sequence[KernelConfig], place: int
) -> Comparison:
    """One interleaved run: what is chosen, the candidates, cuDNN and a plain read."""
    before = torch.empty(place * PLACE_BYTES, dtype=torch.uint8, device="cuda")
    problem = problem_of(*shape)
    cache = Cache(problem)
    raced = beside_chosen(race.device, asked_in(problem, way), configs)
    contenders = [*ours(race.device, cache, raced, race.said, {way: WAYS[way]})]
    tensors = {"q": cache.q, "k": cache.k, "v": cache.v}
    peers, left_out = contenders_of(race.device, find_peers(["cuDNN"]), problem, tensors)
    race.said += [f"{name}: {reason}" for name, reason in left_out.items()]
    with plain_read(race.device, cache.pool.data_ptr(), cache.n_bytes) as read:
        everyone = [*contenders, *peers, read]
        found = compare(race.device, everyone, rounds=race.rounds, attempts=2)
    race.keep(found, asked_in(problem, way))
    del before
    return found


def rows_beside_chosen(runs: Sequence[Comparison]) -> Iterator[str]:
    """A line a contender, the fastest first: microseconds of each run, and ratios of medians."""
    first = runs[0]
    timed = {one.name: [one] for one in first.timed}
    for run in runs[1:]:
        for one in run.timed:
            timed.setdefault(one.name, []).append(one)
    cudnn = [one.time_us.median for one in timed.get("cuDNN", [])]

    def speed(name: str) -> float:
        return geometric_mean([one.ratio.median for one in timed[name]])

    for name in sorted(timed, key=speed, reverse=True):
        us = [one.time_us.median for one in timed[name]]
        least = min(one.ratio.median for one in timed[name])
        beside = geometric_mean([a / b for a, b in zip(cudnn, us, strict=False)]) if cudnn else 0.0
        is_chosen = " (chosen)" if name == first.timed[0].name else ""
        yield (
            f"  {' '.join(f'{one:7.1f}' for one in us)} us  {speed(name):.4f} x chosen "
            f"(least {least:.4f})  {beside:.4f} x cuDNN  {name}{is_chosen}"
        )


def compile_given(device, shapes, ways: Sequence[str], configs: Sequence[KernelConfig]) -> None:
    """Compiles all candidates, and what is chosen, on all cores."""
    asked = [asked_in(problem_of(*shape), way) for shape in shapes for way in ways]
    work = [(c, Case("race", one)) for one in asked for c in beside_chosen(device, one, configs)]
    compile_many(compile_jobs(device, work))


def race_file(race: Race, arguments: argparse.Namespace, begin: float) -> None:
    """Races the candidates of a file within the time, place by place; a table a shape and way."""
    shapes = [shape_of(text) for text in arguments.shapes.split(",")]
    ways = [way_of(text) for text in arguments.ways.split(",")]
    configs = configs_of(arguments.configs)
    compile_given(race.device, shapes, ways, configs)
    print(f"[{time.monotonic() - begin:5.0f} s] compiled", flush=True)
    runs: dict[tuple[tuple[int, int, int], str], list[Comparison]] = {}
    for place in range(arguments.places):
        for shape, way in ((shape, way) for shape in shapes for way in ways):
            if time.monotonic() - begin > arguments.budget:
                race.said.append(f"not in time: {shape}{way}, place {place}")
                continue
            found = race_given(race, shape, way, configs, place)
            runs.setdefault((shape, way), []).append(found)
            torch.cuda.empty_cache()
            print(f"[{time.monotonic() - begin:5.0f} s] {shape}{way}", flush=True)
    for (shape, way), found in runs.items():
        controls = ", ".join(
            f"{one.control.median:.4f}{' VOID' if one.is_void else ''}" for one in found
        )
        race.table.append(f"\nb {shape[0]} k {shape[1]}{way}; chosen beside itself: {controls}")
        race.table += rows_beside_chosen(found)


def race_of(arguments: argparse.Namespace) -> Race:
    """What every race needs."""
    device = timed_device(default_device("cuda"))
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    fa3, rounds, output = load_fa3(arguments.fa3), arguments.rounds, arguments.output
    return Race(device, fa3, rounds, output, environment, [], [])


def race_all(race: Race, arguments: argparse.Namespace, begin: float) -> None:
    """Checks and races the candidates of RACES, and the chunks."""
    device = race.device
    configs = [parse_config(text) for text in dict.fromkeys(t for _, ts in RACES for t in ts)]
    work = [
        (parse_config(text), Case("race", replace(problem_of(*shape), **facts)))
        for shape, texts in (RACES if "decode" in arguments.only else ())
        for text in texts
        for facts in ({}, {"k_lengths": True}, {"k_lengths": True, "page": PAGE, "pages": PAGE})
    ]
    if "chunks" in arguments.only:
        work += chunk_work(device)
    if "pages" in arguments.only:
        work += pages_work(device)
    compile_many(compile_jobs(device, work))
    print(f"[{time.monotonic() - begin:5.0f} s] compiled", flush=True)
    if "check" in arguments.only:
        check(device, configs, begin + 0.4 * arguments.budget, race.said)
        print(f"[{time.monotonic() - begin:5.0f} s] {race.said[-1]}", flush=True)
    steps = [(race_pages, one) for one in PAGED if "pages" in arguments.only]
    steps += [(race_chunk, (shape,)) for shape in CHUNKS[:1] if "chunks" in arguments.only]
    steps += [(race_decode, one) for one in RACES if "decode" in arguments.only]
    steps += [(race_chunk, (shape,)) for shape in CHUNKS[1:] if "chunks" in arguments.only]
    for step, given in steps:
        if time.monotonic() - begin > arguments.budget:
            race.said.append(f"not in time: {step.__name__} {given[0]}")
            continue
        step(race, *given)
        torch.cuda.empty_cache()
        print(f"[{time.monotonic() - begin:5.0f} s] {given[0]}", flush=True)


def main() -> None:
    """Checks, races; tables are last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--fa3")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds of all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="check,decode,chunks")
    parser.add_argument("--configs", type=Path, help="a file of short forms to race instead")
    parser.add_argument("--shapes", default="4x65536,32x8192,64x4096")
    parser.add_argument("--ways", default="contiguous", help="contiguous,lengths,page")
    parser.add_argument("--places", type=int, default=2)
    arguments = parser.parse_args()
    begin = time.monotonic()
    race = race_of(arguments)
    if arguments.configs is not None:
        race_file(race, arguments, begin)
    else:
        race_all(race, arguments, begin)
    print("\n".join([*race.said, *race.table]))


if __name__ == "__main__":
    main()
