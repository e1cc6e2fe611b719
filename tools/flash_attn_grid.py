"""Calls flash-attn's functions by their names over the grids of its own tests, on a GPU.

    PYTHONPATH=src python tools/flash_attn_grid.py -o FILE [--cases 5000] [--processes 14]

The points are those of `flash_attn_points.py`. A call is held against float64 attention by
flash-attn's own rule: its output at most twice as far off as the same sums in the tensors'
precision and 1e-5 more (with a cache three times), its gradients three times and 5e-5 more (2e-4
where rows or keys are few, as there): of a row that sees one key they are 0, of which rounding
leaves something. A cache must hold the new rows, and nothing else may have changed. What is refused
is counted by feature; what is wrong, or ends in another error, is listed, and the exit status is 1.
One line a grid and one for all are appended to FILE; the table comes last. Without a GPU it tries
itself: points go to torch's products.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import multiprocessing
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from flash_attn_points import GRIDS, points_of

import flashsmith
from flashsmith.base.errors import Unsupported
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.runtime.devices import default_device

WHERE = "cuda" if torch.cuda.is_available() else "cpu"  # there the code itself can be tried
TOGETHER = 4  # points that a process is given at a time
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
        s = (s - (slopes[:, None, None] * far)).to(s.dtype)  # rounded once
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


def worst(found, truth, same, times: int, more: float) -> float:
    """How far off, over what is allowed: so many times what the same precision is, and `more`.

    The same precision may be exact: half a digit is added.
    """
    if found.shape != truth.shape:
        return math.inf
    if not truth.numel():
        return 0.0
    far = (found.double() - truth).abs().max().item()
    digit = torch.finfo(same.dtype).eps * truth.abs().max().item()
    allowed = times * ((same.double() - truth).abs().max().item() + digit / 2) + more
    return far / allowed if math.isfinite(far) and math.isfinite(allowed) else math.inf


def with_gradients(case: Case, axis: int, inputs, call, truths) -> float:
    """The worst of output and gradients, over what is allowed.

    Where `axis` stacks q, k and v, the gradient of each counts for itself: dV is the largest.
    """
    leaves = [x.requires_grad_(True) for x in inputs]
    out = call(*leaves)
    truth, same = truths(*leaves)
    d_out = torch.randn_like(out)
    more = 2e-4 if "short rows" in case.name else 5e-5
    ratio = worst(out.reshape(truth.shape), truth, same, 2, 1e-5)
    ours = torch.autograd.grad(out, leaves, d_out)
    shaped = d_out.reshape(truth.shape)
    right = torch.autograd.grad(truth, leaves, shaped.double(), retain_graph=True)
    near = torch.autograd.grad(same, leaves, shaped)
    for three in zip(ours, right, near, strict=True):
        stacked = three[0].dim() == axis + 3  # heads and d_head come behind
        for a, b, c in zip(*(x.unbind(axis) if stacked else (x,) for x in three), strict=True):
            ratio = max(ratio, worst(a, b.double(), c, 3, more))
    return ratio


def dense(case: Case) -> float:
    """`flash_attn_func` and its packed forms, with gradients."""
    batch, d = 2, case.p["d"]
    slopes = case.slopes(batch)
    options = case.options(slopes)

    def truths(q, k, v):
        return case.truths([*zip(q, k, v, strict=True)], slopes)

    if case.name.startswith("flash_attn_qkvpacked"):
        return with_gradients(
            *(case, 2, [case.tensor(batch, case.rows, 3, case.heads, d)]),
            lambda x: flashsmith.flash_attn_qkvpacked_func(x, **options),
            lambda x: truths(*x.unbind(2)),
        )
    q = case.tensor(batch, case.rows, case.heads, d)
    if case.name.startswith("flash_attn_kvpacked"):
        return with_gradients(
            *(case, 2, [q, case.tensor(batch, case.keys, 2, case.kv_heads, d)]),
            lambda q, kv: flashsmith.flash_attn_kvpacked_func(q, kv, **options),
            lambda q, kv: truths(q, *kv.unbind(2)),
        )
    k, v = (case.tensor(batch, case.keys, case.kv_heads, d) for _ in "kv")
    return with_gradients(
        *(case, 2, [q, k, v]),
        lambda *qkv: flashsmith.flash_attn_func(*qkv, **options),
        truths,
    )


def lengths_of(case: Case, count: int, most: int, least: int) -> list[int]:
    """Of so many sequences, drawn."""
    return [case.draw.randint(least, most) for _ in range(count)]


def boundaries(lengths: list[int]) -> torch.Tensor:
    """Where each sequence begins, and where the last one ends."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=WHERE)


def varlen(case: Case) -> float:
    """`flash_attn_varlen_func` and its packed forms, with gradients, or on pages without."""
    p, batch, d = case.p, 4, case.p["d"]
    q_lengths = lengths_of(case, batch, case.rows, max(case.rows - 20, 0))
    k_lengths = lengths_of(case, batch, case.keys, max(case.keys - 20, 1))
    if p.get("empty"):  # a sequence without rows and one without keys
        q_lengths[1] = k_lengths[2] = 0
    if "qkvpacked" in case.name:
        q_lengths = k_lengths
    slopes = case.slopes(batch)
    options = case.options(slopes)
    k_where = boundaries(k_lengths), case.keys
    where = boundaries(q_lengths), k_where[0], case.rows, case.keys

    def truths(q, k, v):
        split = q.split(q_lengths), k.split(k_lengths), v.split(k_lengths)
        return case.truths([*zip(*split, strict=True)], slopes)

    if "qkvpacked" in case.name:
        return with_gradients(
            *(case, 1, [case.tensor(sum(k_lengths), 3, case.heads, d)]),
            lambda x: flashsmith.flash_attn_varlen_qkvpacked_func(x, *k_where, **options),
            lambda x: truths(*x.unbind(1)),
        )
    q = case.tensor(sum(q_lengths), case.heads, d)
    if p.get("kvpacked"):
        return with_gradients(
            *(case, 1, [q, case.tensor(sum(k_lengths), 2, case.kv_heads, d)]),
            lambda q, kv: flashsmith.flash_attn_varlen_kvpacked_func(q, kv, *where, **options),
            lambda q, kv: truths(q, *kv.unbind(1)),
        )
    k, v = (case.tensor(sum(k_lengths), case.kv_heads, d) for _ in "kv")
    if p.get("page"):
        del options["dropout_p"], options["deterministic"]
        table, places = pages_of(case, k_lengths)
        k_pages, v_pages = (
            filled(case, (table.numel(), p["page"]), places, x.split(k_lengths)) for x in (k, v)
        )
        out = flashsmith.flash_attn_varlen_func(
            q, k_pages, v_pages, *where, block_table=table, **options
        )
        return worst(out, *truths(q, k, v), 2, 1e-5)
    return with_gradients(
        *(case, 1, [q, k, v]),
        lambda *qkv: flashsmith.flash_attn_varlen_func(*qkv, *where, **options),
        truths,
    )


def pages_of(case: Case, lengths: list[int]):
    """A table of pages in any order that holds sequences of `lengths`, and where rows lie."""
    page = case.p["page"]
    width = -(-max(*lengths, case.keys) // page)
    count = len(lengths) * width
    table = torch.randperm(count, device=WHERE).int().view(len(lengths), width)
    return table, lambda b, at: (table[b, at // page].long(), at % page)


def filled(case: Case, shape: tuple[int, int], places, sequences):
    """A cache or pool with rows of each sequence in their places; the rest is not a number."""
    shape = (*shape, case.kv_heads, case.p["d"])
    cache = torch.full(shape, float("nan"), device=WHERE, dtype=case.dtype)
    for b, own in enumerate(sequences):
        cache[places(b, torch.arange(len(own), device=WHERE))] = own
    return cache


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
    """`flash_attn_with_kvcache`: its output, and what it leaves in the cache."""
    p, batch, d = case.p, 2, case.p["d"]
    slopes = case.slopes(batch)
    new = case.draw.choice((case.rows, max(case.rows // 2, 1))) if p["new"] else 0
    room = case.keys
    most = room - new
    lengths = lengths_of(case, batch, most, max(most - 100, 1) if new == 0 else 0)
    pads = [case.draw.randint(0, n) for n in lengths] if p["leftpad"] else [0] * batch
    q = case.tensor(batch, case.rows, case.heads, d)
    full = [[case.tensor(n + new, case.kv_heads, d) for n in lengths] for _ in "kv"]
    options = case.options(slopes) | {"num_splits": p["num_splits"]}
    options["rotary_interleaved"] = case.interleaved
    shape, places = (batch, room), lambda b, at: (torch.full_like(at, b), at)
    if p["page"]:
        options["block_table"], places = pages_of(case, [n + new for n in lengths])
        shape = (options["block_table"].numel(), p["page"])
    elif p["batch_idx"]:
        index = torch.randperm(batch + 2, device=WHERE)[:batch].int()
        options["cache_batch_idx"], shape = index, (batch + 2, room)
        places = lambda b, at: (index[b].expand(len(at)).long(), at)  # noqa: E731
    caches = [
        filled(case, shape, places, [x[:n] for x, n in zip(f, lengths, strict=True)]) for f in full
    ]
    if p["leftpad"]:
        options["cache_leftpad"] = torch.tensor(pads, dtype=torch.int32, device=WHERE)
    if new:
        options["k"], options["v"] = (
            torch.stack([x[n:] for x, n in zip(f, lengths, strict=True)]) for f in full
        )
    q_rotated = q
    if p["rotary"] and new:  # flash-attn rotates where rows are appended
        width = int(p["rotary"] * d) // 16 * 16
        angles = torch.rand(2 * room + 256, width // 2, device=WHERE) * 2 * math.pi
        options["rotary_cos"] = angles.cos().to(case.dtype)
        options["rotary_sin"] = angles.sin().to(case.dtype)
        q_rotated = torch.stack(
            [turned(x, n, case, options) for x, n in zip(q, lengths, strict=True)]
        )
        for x, n in zip(full[0], lengths, strict=True):
            x[n:] = turned(x[n:], n, case, options | {"causal": True})
    out = flashsmith.flash_attn_with_kvcache(
        *(q, *caches),
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device=WHERE),
        **options,
    )
    seen = [[x[pad:] for x, pad in zip(f, pads, strict=True)] for f in full]
    truth, same = case.truths([*zip(q_rotated, *seen, strict=True)], slopes)
    for cache, rows, near in zip(caches, full, (bool(p["rotary"]), False), strict=True):
        if not same_cache(cache, filled(case, shape, places, rows), near):
            return math.inf
    # flash-attn's own test of caches allows three times, with slopes five.
    return worst(out.reshape(truth.shape), truth, same, 3, 1e-5)


def same_cache(found, wanted, near: bool) -> bool:
    """Whether every bit is equal, or every number `near`: rotated keys may be rounded otherwise."""
    if torch.equal(found.view(torch.int16), wanted.view(torch.int16)):
        return True
    return near and torch.allclose(found, wanted, 1e-2, 1e-2, equal_nan=True)


REFUSED = {  # by name, the first that holds; flash-attn has no left padding on pages either
    "dropout": lambda p: p.get("dropout"),
    "left padding on pages": lambda p: p.get("page") and p.get("leftpad"),
    "left padding with cache_batch_idx": lambda p: p.get("batch_idx") and p.get("leftpad"),
}


def outcome(job: tuple[str, int, dict]) -> tuple[str, str, str]:
    """The grid, what came of a point (right, wrong or what was refused), and the point."""
    name, seed, point = job
    run = cached if "kvcache" in name else varlen if "varlen" in name else dense
    try:
        ratio = run(Case(name, point, seed))
    except Unsupported as error:
        features = [feature for feature, holds in REFUSED.items() if holds(point)]
        return name, f"refused: {(features or [str(error)[:80]])[0]}", str(point)
    except Exception as error:  # noqa: BLE001 - any other error is a defect, and is listed as one
        return name, "wrong", f"{point}: {type(error).__name__}: {str(error)[:300]}"
    finally:
        if point["lengths"][1] > 10_000 and WHERE == "cuda":
            torch.cuda.empty_cache()  # other processes want that memory too
    return name, "right" if ratio <= 1 else "wrong", f"{point}: {ratio:.2f} of what is allowed"


def jobs_of(cases: int) -> list[tuple[str, int, dict]]:
    """Points of all grids with their seeds.

    Those of one kernel come one after the other, to few processes, which have compiled it.
    """
    share = -(-cases // len(GRIDS))
    jobs = [
        (name, seed, point)
        for name, grid in GRIDS.items()
        for seed, point in enumerate(points_of(grid, share, name))
    ]
    return sorted(jobs, key=lambda job: str({k: v for k, v in job[2].items() if k != "lengths"}))


def in_turn(jobs) -> list[tuple[str, str, str]]:
    """What came of a few points."""
    return [outcome(job) for job in jobs]


def outcomes(jobs, processes: int, seconds: float):
    """What came of each point, as long as there is time; a process that hangs ends with it."""
    begin, done = time.monotonic(), 0
    few = [jobs[at : at + TOGETHER] for at in range(0, len(jobs), TOGETHER)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        found = pool.imap_unordered(in_turn, few)
        for turn in range(len(few)):
            if turn % 64 == 0:
                print(f"[{time.monotonic() - begin:4.0f} s] {done} of {len(jobs)}", flush=True)
            try:
                of_turn = found.next(timeout=max(begin + seconds - time.monotonic(), 0.01))
            except multiprocessing.TimeoutError:
                print(f"time is up after {done} of {len(jobs)}")
                return
            done += len(of_turn)
            yield from of_turn


def main() -> None:
    """Runs all points in several processes; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=560.0)
    arguments = parser.parse_args()
    begin, jobs = time.monotonic(), jobs_of(arguments.cases)
    counts: dict[str, collections.Counter] = {name: collections.Counter() for name in GRIDS}
    wrong = []
    for name, what, point in outcomes(jobs, arguments.processes, arguments.seconds):
        counts[name][what] += 1
        if what == "wrong":
            wrong.append(f"{name} {point}")
            print(f"WRONG {wrong[-1]}", flush=True)
    seconds, total = time.monotonic() - begin, sum(counts.values(), collections.Counter())
    environment = asdict(environment_of(default_device(), compiler=find_nvrtc().compiler))
    append_records(
        arguments.output,
        [
            Record(
                {"suite": "flash_attn_grid", "grid": grid}, dict(sorted(found.items())), environment
            )
            for grid, found in counts.items()
        ]
        + [
            Record(
                {"suite": "flash_attn_grid", "grid": "all", "cases": len(jobs)},
                {
                    "seconds": round(seconds, 1),
                    "wrong points": wrong,
                    **dict(sorted(total.items())),
                },
                environment,
            )
        ],
    )
    print(f"\n{total.total()} of {len(jobs)} cases in {seconds:.0f} s, {len(wrong)} wrong")
    for name, found in counts.items():
        print(f"{name}: {dict(found.most_common())}")
    sys.exit(1 if wrong or total.total() < len(jobs) else 0)


if __name__ == "__main__":
    main()
