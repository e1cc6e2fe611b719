"""The parts of tools/bwd_owed_h200.py: what each measures, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bwd_owed_base import (
    Part,
    cells,
    mean,
    of_mma_sync,
    ours,
    over,
    problem_of,
    tensors_of,
    theirs,
    void,
)
from bwd_owed_checks import compile_sets, errors, first_call, repeats, sanitize, train


def _variants(d_head: int, causal: bool) -> dict:
    """What is raced beside the plain problem: problems and layouts, by name."""
    from flashsmith.base.dtypes import DType

    plain = problem_of(d_head, 4096, causal)
    odd = replace(plain, q_len=4071, k_len=4071)
    heads = plain.heads
    return {
        "plain": (plain, "bshd"),
        f"groups of {8 if heads % 8 == 0 else heads}": (
            replace(plain, kv_heads=max(heads // 8, 1)),
            "bshd",
        ),
        "4071 rows": (odd, "bshd"),
        "heads first": (plain, "bhsd"),
        "one tensor of q, k, v": (plain, "qkv"),
        "fp16": (replace(plain, dtype=DType.FP16), "bshd"),
    }


def shapes(part: Part) -> None:
    """By useful FLOP: rows that are padding are no use."""
    from flashsmith.problem.cost import cost_of

    found: dict[str, list[float]] = {}
    for length, d_head, causal in cells((4096,)):
        cell = f"d {d_head} {'causal' if causal else 'full'} {length}"
        if part.left < 8:
            part.say(cell, "not run in time")
            continue
        variants = _variants(d_head, causal)
        contenders = [
            ours(part, problem, tensors_of(problem, layout), name=name)
            for name, (problem, layout) in variants.items()
        ]
        problems = [problem for problem, _ in variants.values()]
        flops = [cost_of(problem).flops for problem in problems]
        run = part.race(contenders, problems, flops)
        for place, name in enumerate(variants):
            if not place:
                continue
            ratio = over(run, place, 0) * flops[place] / flops[0]
            bar = 0.97 if name == "fp16" else 0.94
            found.setdefault(name, []).append(ratio)
            what = f"{name}, {cell}, of the plain rate"
            part.say(what, f"{ratio:.3f}{void(run)}", f">= {bar}", ratio >= bar)
    for name, ratios in found.items():
        part.say(f"{name}, mean of {len(ratios)}", f"{mean(ratios):.3f}")


def beside(
    part: Part,
    peer: str,
    bar: float,
    work: Sequence[tuple[int, int, bool]],
    call_of: Callable,
    config_of: Callable = lambda problem: None,
    **how: str,
) -> None:
    """What is chosen, or what `config_of` says, beside a peer's call of the same gradients."""
    from flashsmith.problem.cost import cost_of

    ratios = []
    for length, d_head, causal in work:
        what = f"over {peer}, d {d_head} {'causal' if causal else 'full'} {length}"
        if part.left < 6:
            part.say(what, "not run in time")
            continue
        problem = problem_of(d_head, length, causal)
        x, flops = tensors_of(problem), cost_of(problem).flops
        contenders = [ours(part, problem, x, config_of(problem)), theirs(peer, call_of(problem, x))]
        run = part.race(contenders, problem, [flops, flops], **how)
        ratios.append(over(run, 0, 1))
        part.say(what, f"{ratios[-1]:.3f}{void(run)}")
    found = mean(ratios)
    part.say(f"over {peer}, mean of {len(ratios)}", f"{found:.3f}", f">= {bar}", found >= bar)


def mma_beside_flash(part: Part) -> None:
    """At two lengths; of the 36 cells other sections are chosen only where lengths are shorter."""
    from flashsmith.bench.gradient_peers import flash

    beside(
        *(part, "FlashAttention-2 (torch)", 1.05, cells((512, 2048, 8192))),
        lambda problem, x: flash(problem, x["do"], x["q"], x["k"], x["v"]),
        lambda problem: of_mma_sync(part, problem),
    )


def sustained(part: Part) -> None:
    """Sums in any order and the default, beside FlashAttention-3 with sums in any order."""
    import importlib.util

    from flashsmith.problem.cost import cost_of

    spec = importlib.util.spec_from_file_location("owed_peer", part.arguments.fa3)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    operators = peer.load("plain")

    def call_of(problem, x):
        given = [x[name] for name in ("do", "q", "k", "v", "o", "lse")]
        return lambda: peer.backward(operators, *given, causal=problem.causal)

    kinds = {"any order": [], "default": []}
    for length, d_head, causal in cells((4096, 16384), (128, 64, 256)):
        what = f"d {d_head} {'causal' if causal else 'full'} {length} over FlashAttention-3"
        if part.left < 15:
            part.say(what, "not run in time")
            continue
        default = problem_of(d_head, length, causal)
        free, x, flops = (
            replace(default, deterministic=False),
            tensors_of(default),
            cost_of(default).flops,
        )
        contenders = {one.name: one for one in (ours(part, free, x), ours(part, default, x))}
        names = [*contenders]
        peers = [theirs("FlashAttention-3", call_of(default, x))]
        run = part.race(
            [*contenders.values(), *peers], default, [flops] * (len(names) + 1), regime="sustained"
        )
        ratios = [over(run, place, len(names)) for place in (0, len(names) - 1)]
        for found, ratio in zip(kinds.values(), ratios, strict=True):
            found.append(ratio)
        part.say(what, f"{ratios[0]:.3f}, default {ratios[1]:.3f}{void(run)}")
    for kind, found in kinds.items():
        bar = 1.08 if kind == "any order" else None
        least = mean(found)
        told = ("", None) if bar is None else (f">= {bar}", least >= bar)
        part.say(f"{kind} over FlashAttention-3, mean of {len(found)}", f"{least:.3f}", *told)


PARTS: dict[str, Callable[[Part], None]] = {
    "compile": compile_sets,
    "sanitize": sanitize,
    "first": first_call,
    "errors": errors,
    "shapes": shapes,
    "mma": mma_beside_flash,
    "repeats": repeats,
    "sustained": sustained,
    "train": train,
}
