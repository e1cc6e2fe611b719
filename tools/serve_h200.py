"""Checks the decode kernels on a GPU and races them with peers and with a plain read of the cache.

    PYTHONPATH=src python tools/serve_h200.py -o FILE [--fa3 FILE.py] [--config TEXT …] [--only …]

Set `decode` runs the cases of servers and the quick ones (as many as the budget allows, and it is
said how many). Then one query token (and a few) on caches of many lengths are raced with the
protocol of measure/: K and V contiguous, with lengths in memory, and in pages of 16, beside cuDNN
and FlashAttention-2 of torch, FlashAttention-3 (`--fa3`: a file with `load` and `decode`), and a
kernel that reads as many bytes and computes nothing. Records are appended to FILE; the table comes
last: microseconds, and in brackets the share of the plain read's rate.

`flashsmith bench --suite serve` is the everyday run: what is chosen, on 40 caches. This script also
checks the set, races FlashAttention-3's splits and given configurations, and times caches that are
not full: ctas that find nothing to do, beside persistent ones that share out what there is.
`--sweep` races variants of one configuration instead: rings, ctas, slices, persistence.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from flashsmith.base.errors import FlashsmithError
from flashsmith.bench.peers import contenders_of, find_peers
from flashsmith.check.cases import Case, quick_cases, serving_cases
from flashsmith.check.survey import check_one, compile_jobs
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.sm90_decode.config import Sm90DecodeConfig
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.plain_read import plain_read
from flashsmith.measure.record import append_records, records_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_text
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.tuner.choose.choice import choose

PAGE = 16
# Batch, cached tokens, query tokens; 32 query heads on 8 of K and V, d 128.
SHAPES = (
    (1, 8192, 1),
    (1, 65536, 1),
    (4, 65536, 1),
    (8, 8192, 1),
    (32, 8192, 1),
    (64, 4096, 1),
    (256, 1024, 1),
    (8, 8192, 4),
    (1, 131072, 1),
)
# Query heads, KV heads: the same cache under other groups.
GROUPS = ((8, 8), (64, 8), (128, 8))
SWEPT = (
    *((1, 8192, 1), (1, 65536, 1), (8, 8192, 1), (32, 8192, 1), (256, 1024, 1)),
    *((1, 131072, 1), (4, 65536, 1), (8, 8192, 4)),
)
# Batch, room for tokens, query tokens; and tokens that there are.
WIDE = (((8, 131072, 1), 8192), ((64, 32768, 1), 4096), ((128, 16384, 1), 1024))
VARIANTS = (
    "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_3+ctas_2",
    "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_2+ctas_3",
    "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_2+ctas_3+persistent",
    "decode(BF16, 128, 16, 16, 4): slice_256+most_32+stages_3+ctas_2",
    "decode(BF16, 128, 16, 16, 4): slice_1024+most_32+stages_3+ctas_2",
    "decode(BF16, 128, 16, 16, 4): slice_1024+most_32+stages_2+ctas_3",
    "decode(BF16, 128, 16, 16, 4): slice_512+most_16+stages_3+ctas_2",
    "decode(BF16, 128, 16, 16, 4): slice_512+most_64+stages_2+ctas_3",
)


def check(device, deadline: float) -> tuple[int, int, int]:
    """How many of the set's cases are right, wrong, and not run in time."""
    configs = get_kernel_configs("decode")
    work = [
        (c, case) for cases in (serving_cases, quick_cases) for c in configs for case in cases(c)
    ]
    compile_many(compile_jobs(device, work))
    right = wrong = 0
    for done, (config, case) in enumerate(work):
        if time.monotonic() > deadline:
            return right, wrong, len(work) - done
        found = check_one(device, config, case)
        if found.refusal or found.wrong:
            wrong += 1
            print(f"WRONG {config} | {case.name} | {found.refusal or found.verdict}", flush=True)
        right += not (found.refusal or found.wrong)
    return right, wrong, 0


@dataclass
class Cache:
    """The tensors of one problem: contiguous, and the same rows in pages of any order."""

    problem: AttentionProblem
    filled: int = 0  # tokens that a sequence has; as many as there is room for, unless given
    page: int = PAGE  # rows

    def __post_init__(self) -> None:
        p = self.problem
        self.filled = self.filled or p.k_len
        torch.manual_seed(0)
        self.q = torch.randn(p.batch, p.q_len, p.heads, p.d_head, device="cuda").bfloat16()
        pool = torch.randn(2, p.batch * p.k_len, p.kv_heads, p.d_head, device="cuda").bfloat16()
        self.pool = pool  # K behind V: the plain read takes both
        self.k, self.v = (one.view(p.batch, p.k_len, p.kv_heads, p.d_head) for one in pool)
        pages = p.batch * p.k_len // self.page
        order = torch.randperm(pages, device="cuda")
        shape = (pages, self.page, p.kv_heads, p.d_head)
        self.table = order.int().view(p.batch, p.k_len // self.page).contiguous()
        self.k_pages = self.k.view(shape)[torch.argsort(order)].contiguous()
        self.v_pages = self.v.view(shape)[torch.argsort(order)].contiguous()
        self.lengths = torch.full((p.batch,), self.filled, device="cuda", dtype=torch.int32)

    @property
    def is_full(self) -> bool:
        """Whether sequences end where the cache does."""
        return self.filled == self.problem.k_len

    @property
    def n_bytes(self) -> int:
        """K and V that are read."""
        return self.pool.numel() * 2 // self.problem.k_len * self.filled

    def call(self, *, paged: bool, lengths: bool) -> tuple[AttentionProblem, dict, torch.Tensor]:
        """A problem, its tensors and the output they fill."""
        p, out = self.problem, torch.empty_like(self.q)
        tensors = {"q": self.q, "k": self.k, "v": self.v, "o": out}
        if lengths:
            p, tensors["k_lengths"] = replace(p, k_lengths=True), self.lengths
        if paged:
            p = replace(p, page=self.page, pages=self.k_pages.shape[0])
            tensors |= {"k": self.k_pages, "v": self.v_pages, "block_table": self.table}
        args = {
            name: TensorArg(t.data_ptr(), *(t.stride()[:3] if t.dim() == 4 else ()))
            for name, t in tensors.items()
        }
        return p, args, out

    def truth(self) -> torch.Tensor:
        """The output in float32."""
        k, v = self.k[:, : self.filled], self.v[:, : self.filled]
        q, k, v = (x.float().transpose(1, 2) for x in (self.q, k, v))
        group = self.problem.group
        found = torch.empty_like(q)
        rows, keys = q.shape[2], k.shape[2]
        mask = torch.ones(rows, keys, device="cuda", dtype=torch.bool).tril(keys - rows)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                scores = q[b, h] @ k[b, h // group].T * self.problem.softmax_scale
                scores.masked_fill_(~mask, float("-inf"))
                found[b, h] = scores.softmax(-1) @ v[b, h // group]
        return found.transpose(1, 2)


def on_stream(call: Callable[[], object]) -> Callable[[int], None]:
    """A call of torch as a launch on the stream of a handle."""

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            call()

    return launch


def fa3_contenders(fa3, cache: Cache):
    """FlashAttention-3 with its own splits, on the contiguous cache and on pages."""
    operators, decode = fa3
    causal = cache.problem.causal
    yield Contender(
        "FA3",
        on_stream(
            lambda: decode(operators, cache.q, cache.k, cache.v, cache.lengths, causal=causal)
        ),
    )
    yield Contender(
        f"FA3 page {cache.page}",
        on_stream(
            lambda: decode(
                *(operators, cache.q, cache.k_pages, cache.v_pages, cache.lengths),
                page_table=cache.table,
                causal=causal,
            )
        ),
    )


# How a cache may be kept: in pages or not, with lengths in memory or not.
WAYS = {"": (False, False), " lengths": (False, True), f" page {PAGE}": (True, True)}


def ours(device, cache: Cache, configs, said: list[str], ways=WAYS):
    """Our contenders: every configuration, each way of keeping a cache; what is wrong is said."""
    truth = cache.truth()
    if not cache.is_full:
        ways = {f"{way} of {cache.problem.k_len}": ways[way] for way in [*ways][1:]}
    for config in configs:
        for way, (paged, lengths) in ways.items():
            problem, call, out = cache.call(paged=paged, lengths=lengths)
            try:
                prepared = prepare(device, config, problem)
                prepared(call)
                device.synchronize()
            except FlashsmithError as error:
                said.append(f"{config}{way} on {problem_text(problem)}: {error}")
                continue
            far = float((out.float() - truth).norm() / truth.norm())
            if not far < 5e-3:
                said.append(f"WRONG {config}{way} on {problem_text(problem)}: {far:.1e} off")
            yield Contender(f"{config}{way}", lambda s, p=prepared, c=call, kept=out: p(c, s))


def problem_of(batch: int, k_len: int, q_len: int, heads: int = 32, kv: int = 8):
    """One shape."""
    return AttentionProblem(batch, heads, kv, q_len, k_len, 128, causal=q_len > 1)


def race(device, cache: Cache, configs, fa3, rounds: int, said: list[str]):
    """An interleaved run of the plain read, our configurations and the peers."""
    contenders = [*ours(device, cache, configs, said)]
    if cache.is_full and (cache.problem.q_len == 1 or not cache.problem.causal):
        peers = find_peers(["cuDNN", "FlashAttention-2 (torch)"])
        tensors = {"q": cache.q, "k": cache.k, "v": cache.v}
        contenders += contenders_of(device, peers, cache.problem, tensors)[0]
    if fa3 is not None:
        contenders += fa3_contenders(fa3, cache)
    with plain_read(device, cache.pool.data_ptr(), cache.n_bytes) as read:
        return compare(device, [read, *contenders], rounds=rounds, attempts=2)


def show(table, said: list[str], names: dict[str, str]) -> None:
    """What was found, in few lines."""
    print("\n" + "\n".join(said))
    for letter, config in names.items():
        print(f"{letter}: {config}")
    for problem, run, n_bytes in table:
        read = run.timed[0].time_us.median
        best = min((t.time_us.median for t in run.timed[1:] if is_peer(t.name)), default=0.0)
        mine = min(t.time_us.median for t in run.timed[1:] if not is_peer(t.name))
        cells = []
        for timed in run.timed[1:]:
            us, label = timed.time_us.median, timed.name
            for letter, config in sorted(names.items(), key=lambda item: -len(item[1])):
                label = label.replace(config, letter)
            cells.append(f"{label} {us:.1f} ({read / us:.2f})")
        text = f"b {problem.batch} k {problem.k_len} q {problem.q_len}"
        text += f" h {problem.heads}:{problem.kv_heads}"
        rate = f"{n_bytes / 1e6:.0f} MB read {read:.1f} us {n_bytes / read / 1e6:.2f} TB/s"
        void = " VOID" if run.is_void else ""
        print(f"{text}{void} | {rate} | best peer/ours {best / mine:.2f} | {', '.join(cells)}")


def is_peer(name: str) -> bool:
    """Whether a contender is not ours."""
    return not name.startswith(("decode", "hopper_decode"))


def load_fa3(path: str | None):
    """FlashAttention-3's operators and the function that calls them, or None."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("serving_peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load("d128"), module.decode


def chosen(problem: AttentionProblem, device, *, both: bool):
    """What would run, and beside it the same by the other kernel; or with persistent ctas."""
    config = choose(replace(problem, k_lengths=both), device.arch, gpu=device.name).config
    if both:
        return [replace(config, persistent=on) for on in (False, True)]
    same = {field.name: getattr(config, field.name) for field in fields(config)}
    other = Sm80DecodeConfig if isinstance(config, Sm90DecodeConfig) else Sm90DecodeConfig
    return [config, other(**same)]


def main() -> None:
    """Checks, races; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--fa3")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--budget", type=float, default=70.0, help="seconds of checking")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="check,race")
    parser.add_argument("--shapes", type=int, help="so many of the shapes, from the first on")
    arguments = parser.parse_args()
    device = timed_device(default_device("cuda"))
    begin, said, table = time.monotonic(), [], []
    fa3 = load_fa3(arguments.fa3)
    if "check" in arguments.only:
        right, wrong, left = check(device, time.monotonic() + arguments.budget)
        said.append(f"decode: {right} right, {wrong} WRONG or refused, {left} not run in time")
        print(f"[{time.monotonic() - begin:5.0f} s] {said[-1]}", flush=True)
    texts = arguments.config or (VARIANTS if arguments.sweep else [])
    named = [parse_config(text) for text in texts]
    names = {chr(ord("A") + i): config.short_form() for i, config in enumerate(named)}
    shapes = [(problem_of(*shape), 0) for shape in (SWEPT if arguments.sweep else SHAPES)]
    if not arguments.sweep:
        shapes += [(problem_of(8, 8192, 1, *heads), 0) for heads in GROUPS]
        shapes += [(problem_of(*shape), filled) for shape, filled in WIDE]
    shapes = shapes[: arguments.shapes]
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    work = [
        (config, Case("race", replace(problem, **facts)))
        for problem, filled in shapes
        for config in named or chosen(problem, device, both=filled > 0)
        for facts in ({}, {"k_lengths": True}, {"k_lengths": True, "page": PAGE, "pages": PAGE})
    ]
    compile_many(compile_jobs(device, work))
    print(f"[{time.monotonic() - begin:5.0f} s] compiled", flush=True)
    for problem, filled in shapes if "race" in arguments.only else []:
        configs = named or chosen(problem, device, both=filled > 0)
        for text in [c.short_form() for c in configs if c.short_form() not in names.values()]:
            names[chr(ord("A") + len(names))] = text
        cache = Cache(problem, filled)
        problem = replace(problem, k_len=cache.filled)
        run = race(device, cache, configs, fa3, arguments.rounds, said)
        flops = cost_of(problem).flops
        found = records_of(run, problem, environment, suite="serve", flops=flops)
        append_records(arguments.output, found)
        table.append((problem, run, cache.n_bytes))
        print(f"[{time.monotonic() - begin:5.0f} s] {problem_text(problem)}", flush=True)
        del cache
        torch.cuda.empty_cache()
    show(table, said, names)


if __name__ == "__main__":
    main()
