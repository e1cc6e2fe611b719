"""Calls flash-attn's functions by their names over the grids of its own tests, on a GPU.

    PYTHONPATH=src python tools/flash_attn_grid.py -o FILE [--cases 5000] [--processes 14]

Each grid multiplies the values that flash-attn's tests try. Of each, points are drawn by a seed: a
sample that holds every value and every pair of values of different lists, then any. A call is held
against float64 attention, by flash-attn's own rule: at most twice as far off as the same sum in the
tensors' precision, its gradients three times; in the grids of few rows 1e-5 and 2e-4 more. What is
refused is counted by what was said; what is wrong is listed. One line a grid is appended to FILE;
the table comes last.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import multiprocessing
import random
import time
from dataclasses import asdict
from pathlib import Path

import torch

import flashsmith
from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.measure.environment import environment_of
from flashsmith.runtime.devices import default_device

WHERE = "cuda" if torch.cuda.is_available() else "cpu"  # there the code itself can be tried
DTYPES = ("float16", "bfloat16")
WIDTHS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
LENGTHS = (
    *((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256)),
    *((1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)),
)
COMMON = {
    "dtype": DTYPES,
    "heads": ((6, 6), (6, 1), (6, 2)),
    "deterministic": (False, True),
    "alibi": (False, True),
    "local": (False, True),
    "causal": (False, True),
    "d": WIDTHS,
    "dropout": (0.0, 0.0, 0.0, 0.17),
    "softcap": (0.0, 50.0),
}
SHORT = ((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (108, 256), (1023, 1024))
CACHED = (
    *((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048)),
    *((16, 20000), (1, 131072), (128, 128)),
)
GRIDS = {
    "flash_attn_func": {**COMMON, "lengths": LENGTHS},
    "flash_attn_kvpacked_func": {**COMMON, "lengths": LENGTHS},
    "flash_attn_qkvpacked_func": {
        **COMMON,
        "heads": ((6, 6),),
        "lengths": tuple((n, n) for n in (97, 128, 200, 384, 768, 1024, 1025, 2048)),
    },
    "flash_attn_func, short rows": {**COMMON, "lengths": (*SHORT, *(x[::-1] for x in SHORT))},
    "flash_attn_varlen_func": {**COMMON, "lengths": LENGTHS},
    "flash_attn_varlen_func, short rows": {**COMMON, "lengths": SHORT},
    "flash_attn_varlen_func, pages": {
        **COMMON,
        "dropout": (0.0,),
        "deterministic": (False,),
        "lengths": SHORT,
        "page": (16, 256),
    },
    "flash_attn_with_kvcache": {
        "dtype": DTYPES,
        "heads": ((6, 6), (6, 1), (6, 3)),
        "num_splits": (1, 0),
        "new": (False, True),
        "alibi": (False, True),
        "local": (False, True),
        "causal": (False, True),
        "rotary": (0.0, 0.0, 0.5, 1.0),
        "interleaved": (False, True),
        "page": (0, 16, 256),
        "leftpad": (False, False, True),
        "batch_idx": (False, True),
        "d": (32, 59, 64, 80, 128, 256),
        "lengths": CACHED,
    },
}


def points_of(grid: dict, count: int, seed: str) -> list[dict]:
    """At least every pair of values, then any, until there are `count`."""
    draw = random.Random(seed)
    names = list(grid)

    def pairs(point):
        return {(a, point[a], b, point[b]) for a, b in itertools.combinations(names, 2)}

    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x in range(len(grid[a]))
        for y in range(len(grid[b]))
    }
    drawn = []
    while missing or len(drawn) < count:
        point = {name: draw.randrange(len(grid[name])) for name in names}
        if missing:
            a, x, b, y = min(missing)
            tries = [
                {n: draw.randrange(len(grid[n])) for n in names} | {a: x, b: y} for _ in range(8)
            ]
            point = max(tries, key=lambda p: len(pairs(p) & missing))
            missing -= pairs(point)
        drawn.append(point)
    return [{name: grid[name][at] for name, at in point.items()} for point in drawn]


# The truth


def mask_of(rows: int, keys: int, p: dict, window: tuple[int, int]) -> torch.Tensor:
    """True where a row sees a key; aligned bottom-right."""
    at = torch.arange(rows, device=WHERE)[:, None] + (keys - rows)
    key = torch.arange(keys, device=WHERE)[None, :]
    seen = torch.ones(rows, keys, dtype=torch.bool, device=WHERE)
    left, right = window
    if p["causal"]:
        right = 0
    if left >= 0:
        seen &= key >= at - left
    if right >= 0:
        seen &= key <= at + right
    return seen


def attend(q, k, v, p: dict, window, slopes, dtype):
    """Attention of one sequence, (rows, heads, d), in `dtype`."""
    q, k, v = (x.to(dtype).transpose(0, 1) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
    s = q @ k.transpose(1, 2) * (1.0 / math.sqrt(q.shape[-1]))
    if p.get("softcap"):
        s = p["softcap"] * torch.tanh(s / p["softcap"])
    rows, keys = s.shape[1:]
    if slopes is not None:
        at = torch.arange(rows, device=WHERE)[:, None] + (keys - rows)
        far = (at - torch.arange(keys, device=WHERE)[None, :]).abs()
        s = s - (slopes[:, None, None] * far).to(s.dtype)
    s = s.masked_fill(~mask_of(rows, keys, p, window), float("-inf"))
    weights = torch.softmax(s, dim=-1)
    weights = torch.nan_to_num(weights) if keys else weights
    return (weights @ v).transpose(0, 1)


class Case:
    """Tensors of one point and what they should become."""

    def __init__(self, name: str, p: dict, seed: int) -> None:
        self.name, self.p = name, p
        torch.manual_seed(seed)
        self.draw = random.Random(seed)
        self.dtype = getattr(torch, p["dtype"])
        self.heads, self.kv_heads = p["heads"]
        self.rows, self.keys = p["lengths"]
        self.interleaved = bool(p.get("interleaved"))
        self.window = (-1, -1)
        if p["local"]:
            self.window = tuple(self.draw.randrange(self.keys) for _ in range(2))

    def tensor(self, *shape):
        return torch.randn(*shape, device=WHERE, dtype=self.dtype)

    def slopes(self, batch: int):
        return torch.rand(batch, self.heads, device=WHERE) * 0.3 if self.p["alibi"] else None

    def options(self, slopes) -> dict:
        p = self.p
        options = {"causal": p["causal"], "window_size": self.window, "alibi_slopes": slopes}
        if "softcap" in p:
            options["softcap"] = p["softcap"]
        if "dropout" in p:
            options |= {"dropout_p": p["dropout"], "deterministic": p["deterministic"]}
        return options

    def truths(self, sequences, slopes):
        """Of (q, k, v) of every sequence: outputs in float64 and in the tensors' precision."""
        found = []
        for dtype in (torch.float64, self.dtype):
            outs = [
                attend(*qkv, self.p, self.window, None if slopes is None else slopes[i], dtype)
                for i, qkv in enumerate(sequences)
            ]
            found.append(torch.cat(outs))
        return found


def worst(found, truth, same, times: int, more: float = 0.0) -> float:
    """How far off, over what is allowed: so many times what the same precision is, and `more`.

    The same precision may be exact: half a digit is added.
    """
    if not truth.numel():
        return 0.0
    far = (found.double() - truth).abs().max().item()
    digit = torch.finfo(same.dtype).eps * truth.abs().max().item()
    allowed = times * ((same.double() - truth).abs().max().item() + digit / 2) + more
    if not far:  # all numbers may be zeros
        return 0.0
    return far / allowed if math.isfinite(far) and allowed else math.inf


def with_gradients(case: Case, inputs, call, truths) -> float:
    """The worst of output and gradients, over what is allowed."""
    leaves = [x.requires_grad_(True) for x in inputs]
    out = call(*leaves)
    truth, same = truths(*leaves)
    d_out = torch.randn_like(out)
    # Of few rows or keys gradients may be zeros, of which rounding leaves something.
    more = (1e-5, 2e-4) if "short rows" in case.name else (0.0, 0.0)
    ratio = worst(out.reshape(truth.shape), truth, same, 2, more[0])
    ours = torch.autograd.grad(out, leaves, d_out)
    shaped = d_out.reshape(truth.shape)
    right = torch.autograd.grad(truth, leaves, shaped.double(), retain_graph=True)
    near = torch.autograd.grad(same, leaves, shaped)
    for a, b, c in zip(ours, right, near, strict=True):
        ratio = max(ratio, worst(a, b.double(), c, 3, more[1]))
    return ratio


def dense(case: Case) -> float:
    """`flash_attn_func` and its packed forms, with gradients."""
    batch, d = 2, case.p["d"]
    slopes = case.slopes(batch)
    options = case.options(slopes)

    def truths(q, k, v):
        return case.truths([*zip(q, k, v, strict=True)], slopes)

    if case.name.startswith("flash_attn_qkvpacked"):
        qkv = case.tensor(batch, case.rows, 3, case.heads, d)
        return with_gradients(
            case,
            [qkv],
            lambda x: flashsmith.flash_attn_qkvpacked_func(x, **options),
            lambda x: truths(*x.unbind(2)),
        )
    q = case.tensor(batch, case.rows, case.heads, d)
    if case.name.startswith("flash_attn_kvpacked"):
        kv = case.tensor(batch, case.keys, 2, case.kv_heads, d)
        return with_gradients(
            case,
            [q, kv],
            lambda q, kv: flashsmith.flash_attn_kvpacked_func(q, kv, **options),
            lambda q, kv: truths(q, *kv.unbind(2)),
        )
    k, v = (case.tensor(batch, case.keys, case.kv_heads, d) for _ in "kv")
    return with_gradients(
        case, [q, k, v], lambda *qkv: flashsmith.flash_attn_func(*qkv, **options), truths
    )


def lengths_of(case: Case, count: int, most: int, least: int) -> list[int]:
    """Of so many sequences, drawn."""
    return [case.draw.randint(least, most) for _ in range(count)]


def boundaries(lengths: list[int]) -> torch.Tensor:
    """Where each sequence begins, and where the last one ends."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=WHERE)


def varlen(case: Case) -> float:
    """`flash_attn_varlen_func` with gradients, or on pages without."""
    batch, d = 4, case.p["d"]
    q_lengths = lengths_of(case, batch, case.rows, max(case.rows - 20, 0))
    k_lengths = lengths_of(case, batch, case.keys, max(case.keys - 20, 1))
    cu_q, cu_k = boundaries(q_lengths), boundaries(k_lengths)
    slopes = case.slopes(batch)
    options = case.options(slopes)
    q = case.tensor(sum(q_lengths), case.heads, d)
    k, v = (case.tensor(sum(k_lengths), case.kv_heads, d) for _ in "kv")

    def truths(q, k, v):
        return case.truths(
            [*zip(q.split(q_lengths), k.split(k_lengths), v.split(k_lengths), strict=True)], slopes
        )

    if case.p.get("page"):
        options.pop("dropout_p"), options.pop("deterministic")
        k_pages, v_pages, table = paged(case, k.split(k_lengths), v.split(k_lengths))
        out = flashsmith.flash_attn_varlen_func(
            *(q, k_pages, v_pages, cu_q, cu_k, case.rows, case.keys),
            block_table=table,
            **options,
        )
        return worst(out, *truths(q, k, v), 2)
    return with_gradients(
        case,
        [q, k, v],
        lambda *qkv: flashsmith.flash_attn_varlen_func(
            *qkv, cu_q, cu_k, case.rows, case.keys, **options
        ),
        truths,
    )


def paged(case: Case, keys, values):
    """Sequences in pages of a pool, in any order; what no row lies in is not a number."""
    page, d = case.p["page"], case.p["d"]
    counts = [-(-len(k) // page) for k in keys]
    width = max(max(counts), -(-case.keys // page))
    pool = torch.randperm(len(keys) * width, device=WHERE).int().view(len(keys), width)
    pages = [
        torch.full(
            (pool.numel(), page, case.kv_heads, d), float("nan"), device=WHERE, dtype=case.dtype
        )
        for _ in "kv"
    ]
    for of, rows in zip(pages, (keys, values), strict=True):
        for b, own in enumerate(rows):
            at = torch.arange(len(own), device=WHERE)
            of[pool[b, at // page].long(), at % page] = own
    return *pages, pool


def turned(x, first: int, case: Case, options: dict):
    """Rows of one sequence, rotated from position `first` on, or all there if they see the same."""
    at = torch.arange(len(x), device=WHERE) + first
    if not options["causal"] and case.window == (-1, -1):
        at = torch.full_like(at, first)
    cos, sin = (options[name].double()[at][:, None] for name in ("rotary_cos", "rotary_sin"))
    found, half = x.double(), cos.shape[-1]
    a, b = slice(0, half), slice(half, 2 * half)
    if case.interleaved:
        a, b = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    z = torch.complex(found[..., a], found[..., b]) * torch.complex(cos, sin)
    found[..., a], found[..., b] = z.real, z.imag
    return found.to(x.dtype)


def cached(case: Case) -> float:
    """`flash_attn_with_kvcache`."""
    p, batch, d = case.p, 2, case.p["d"]
    slopes = case.slopes(batch)
    new = case.draw.choice((case.rows, max(case.rows // 2, 1))) if p["new"] else 0
    room = case.keys
    most = room - new
    lengths = lengths_of(case, batch, most, max(most - 100, 1) if new == 0 else 0)
    pads = [0] * batch
    if p["leftpad"]:
        pads = [case.draw.randint(0, n) for n in lengths]
    q = case.tensor(batch, case.rows, case.heads, d)
    full = [[case.tensor(n + new, case.kv_heads, d) for n in lengths] for _ in "kv"]
    options = case.options(slopes) | {"num_splits": p["num_splits"]}
    options["rotary_interleaved"] = case.interleaved
    index = None
    if p["page"]:
        old = [[x[:n] for x, n in zip(f, lengths, strict=True)] for f in full]
        k_cache, v_cache, table = paged(case, *old)
        options["block_table"] = table
    else:
        sequences = [*range(batch)]
        if p["batch_idx"]:
            sequences = case.draw.sample(range(batch + 2), batch)
            index = torch.tensor(sequences, dtype=torch.int32, device=WHERE)
        shape = (batch + 2 if p["batch_idx"] else batch, room, case.kv_heads, d)
        k_cache, v_cache = (
            torch.full(shape, float("nan"), device=WHERE, dtype=case.dtype) for _ in "kv"
        )
        for of, rows in zip((k_cache, v_cache), full, strict=True):
            for b, own in enumerate(rows):
                of[sequences[b], : lengths[b]] = own[: lengths[b]]
    if index is not None:
        options["cache_batch_idx"] = index
    if p["leftpad"]:
        options["cache_leftpad"] = torch.tensor(pads, dtype=torch.int32, device=WHERE)
    if p["rotary"] and new:  # flash-attn rotates where rows are appended
        width = int(p["rotary"] * d) // 16 * 16
        options |= {
            name: torch.randn(2 * room + 256, width // 2, device=WHERE, dtype=case.dtype)
            for name in ("rotary_cos", "rotary_sin")
        }
    q_rotated, rotates = q, bool(new and p["rotary"])
    if new:
        options["k"], options["v"] = (
            torch.stack([x[n:] for x, n in zip(f, lengths, strict=True)]) for f in full
        )
    if rotates:
        q_rotated = torch.stack(
            [turned(x, n, case, options) for x, n in zip(q, lengths, strict=True)]
        )
        for x, n in zip(full[0], lengths, strict=True):
            x[n:] = turned(x[n:], n, case, options | {"causal": True})
    out = flashsmith.flash_attn_with_kvcache(
        *(q, k_cache, v_cache),
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device=WHERE),
        **options,
    )
    seen = [[x[pad:] for x, pad in zip(f, pads, strict=True)] for f in full]
    truth, same = case.truths([*zip(q_rotated, *seen, strict=True)], slopes)
    return worst(out.reshape(truth.shape), truth, same, 2)


def outcome(job: tuple[str, int, dict]) -> tuple[str, str, str]:
    """The grid, what came of a point (right, wrong or what was refused), and the point."""
    name, seed, point = job
    run = cached if "kvcache" in name else varlen if "varlen" in name else dense
    try:
        ratio = run(Case(name, point, seed))
    except FlashsmithError as error:
        return name, f"refused: {str(error).split(';')[0].split(' is ')[0][:60]}", str(point)
    except Exception as error:  # noqa: BLE001 - a bare error is a defect, and is listed as one
        return name, "wrong", f"{point}: {type(error).__name__}: {str(error)[:300]}"
    return name, "right" if ratio <= 1 else "wrong", f"{point}: {ratio:.2f} of what is allowed"


def main() -> None:
    """Runs all points in several processes; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=500.0)
    arguments = parser.parse_args()
    share = arguments.cases // len(GRIDS)
    jobs = [
        (name, seed, point)
        for name, grid in GRIDS.items()
        for seed, point in enumerate(points_of(grid, share, name))
    ]
    # Points of one kernel come one after the other to one process, which has compiled it.
    jobs.sort(key=lambda job: str({k: v for k, v in job[2].items() if k != "lengths"}))
    begin = time.monotonic()
    counts: dict[str, collections.Counter] = {name: collections.Counter() for name in GRIDS}
    wrong = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for done, (name, what, point) in enumerate(pool.imap_unordered(outcome, jobs, chunksize=4)):
            counts[name][what] += 1
            if what == "wrong":
                wrong.append(f"{name} {point}")
                print(f"WRONG {wrong[-1]}", flush=True)
            if done % 250 == 0:
                print(f"[{time.monotonic() - begin:4.0f} s] {done} of {len(jobs)}", flush=True)
            if time.monotonic() - begin > arguments.seconds:
                print(f"time is up after {done + 1} of {len(jobs)}")
                break
    device = default_device()
    environment = asdict(environment_of(device, compiler=find_nvrtc().compiler))
    with arguments.output.open("a", encoding="utf-8") as file:
        for name, found in counts.items():
            line = {"what": {"suite": "flash_attn_grid", "grid": name}, "result": dict(found)}
            file.write(json.dumps({**line, "environment": environment}) + "\n")
    seconds = time.monotonic() - begin
    print(f"\n{sum(sum(c.values()) for c in counts.values())} cases in {seconds:.0f} s")
    for name, found in counts.items():
        print(f"{name}: {dict(found.most_common())}")


if __name__ == "__main__":
    main()
