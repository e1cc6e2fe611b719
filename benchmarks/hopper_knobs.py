"""What each knob of the Hopper picks brings: the pick beside itself with one knob moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from hopper_parts import ROUNDS, Numbers, Setting, flat, grid_problem
from hopper_shapes import device, if_right, make_tensors, now, ours, pick

from flashsmith.config.hopper import Ascending
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.config.knob import value_text
from flashsmith.measure.interleaved import compare
from flashsmith.measure.record import Record
from flashsmith.problem.attention_problem import AttentionProblem

LENGTH = 4096
SHAPES = [(d, causal) for d in (64, 128, 256) for causal in (False, True)]
# Tiles and registers go together with everything else; they are the tuning set's business.
FIXED = (
    *("dtype", "d_head", "n_warpgroups", "B_c", "consumer_registers", "producer_registers"),
    "rescale_threshold",
)
# What must go too when a knob is moved, because it would be refused or mean nothing.
ALSO: dict[str, dict[str, Any]] = {
    "overlap": {
        "early_rescale": False,
        "early_tests": False,
        "late_store": False,
        "ascending": Ascending.NONE,
    },
    "scheduler": {"l2_sections": False},
    "statistics": {"l_by_mma": False},
    "o_staged": {"late_store": False, "o_halves": False},
}
Moved = tuple[str, str, KernelConfig]  # the knob, its value, the configuration


def moved(config: KernelConfig, *, causal: bool) -> Iterator[Moved]:
    """Every configuration that differs from `config` in one knob, and what that one forces."""
    # Without a mask there is one order of tiles, and keys have none.
    fixed = FIXED if causal else (*FIXED, "l2_sections", "ascending")
    for name, knob in config.knobs().items():
        for value in knob.values if name not in fixed else ():
            if value == getattr(config, name) or not _is_near(config, name, value):
                continue
            other = config.replace(**{name: value})
            if other.refusal() is not None:
                other = config.replace(**{name: value, **ALSO.get(name, {})})
            if other.refusal() is None:
                yield name, value_text(value), other


def _is_near(config: KernelConfig, name: str, value: Any) -> bool:  # Any: a knob's value
    """Whether a ring is one stage longer or shorter, or just holds a tile; other knobs: always."""
    if name == "q_slots":
        return bool(value == config.tile_q // 64)
    return name != "kv_stages" or abs(value - getattr(config, name)) == 1


def knob_problems() -> list[tuple[KernelConfig, AttentionProblem]]:
    """The configurations with the problems they are timed on."""
    problems = [grid_problem(d, causal, LENGTH) for d, causal in SHAPES]
    return [
        (other, problem)
        for problem in problems
        for _, _, other in moved(pick(problem), causal=problem.causal)
    ]


def knobs(setting: Setting) -> Iterator[Record]:
    """The picks at 4,096 beside their variations, rested."""
    for d, causal in SHAPES:
        tensors = make_tensors(d, LENGTH)
        expected = torch.empty_like(tensors.q)
        mine, config = ours(tensors, causal=causal, name="pick", out=expected)
        now(mine)
        contenders, others = [mine], []
        for name, text, other in moved(config, causal=causal):
            found = if_right(tensors, other, expected, causal=causal)
            if found is not None:
                contenders.append(found)
                others.append((name, text))
        run = compare(device(), contenders, rounds=ROUNDS)
        for (name, text), timed in zip(others, run.timed[1:], strict=True):
            what: Numbers = {
                "suite": "hopper knobs",
                "case": f"{name} {text}",
                "knob": name,
                "to": text,
            }
            what |= {"from": value_text(getattr(config, name)), "d_head": d, "causal": causal}
            what |= {"length": LENGTH, "config": config.short_form(), "other": timed.name}
            yield flat(
                setting,
                what,
                {
                    "share": timed.ratio.median,
                    "noise": run.is_noise(timed),
                    "rounds": timed.time_us.rounds,
                    "control": run.control.median,
                    "void": run.is_void,
                    "attempts": run.attempts,
                },
            )
