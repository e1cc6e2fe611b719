"""Knobs in combinations that nobody chose: what is legal must be right."""

import random
from dataclasses import replace

import pytest

from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.kernels.sm90_forward import plan as launch
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.problem.attention import AttentionProblem

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

REGISTERS = {1: (240, 56), 2: (232, 40), 3: (160, 32)}
# Tails, tiles without pairs, one block of keys, fewer queries than keys and the reverse.
LENGTHS = [(300, 300), (140, 200), (700, 65), (384, 384), (65, 300), (520, 260), (700, 700)]
DIAGONALS = [None, None, -70, -1, 63]


def drawn(rng):
    """A legal configuration, small enough to emulate in a second."""
    knobs = Sm90ForwardConfig.knobs()
    while True:
        values = {name: rng.choice(knob.values) for name, knob in knobs.items()}
        values |= {"d_head": rng.choice([64, 64, 96]), "B_c": rng.choice([64, 80, 96, 128])}
        values["overlap"] |= rng.random() < 0.6  # most knobs need it
        registers = REGISTERS[values["n_warpgroups"]]
        values |= dict(zip(("consumer_registers", "producer_registers"), registers, strict=True))
        config = Sm90ForwardConfig.of(**values)
        if config.refusal() is None:
            return config


@pytest.mark.parametrize("seed", range(16))
def test_a_legal_combination_is_right(device, seed, monkeypatch):
    monkeypatch.setattr(launch, "LEAST_SAVED_KEYS", 1)  # tiles are split wherever they can be
    rng = random.Random(seed)
    while True:
        config = drawn(rng)
        q_len, k_len = rng.choice(LENGTHS)
        causal = rng.random() < 0.6
        diagonal = rng.choice(DIAGONALS) if causal else None
        shape = AttentionProblem(1, 3, 1, q_len, k_len, config.d_head, config.dtype)
        problem = replace(shape, causal=causal, diagonal=diagonal, lse=seed % 2 == 0)
        try:
            verdict = check_case(device, config, Case("combination", problem))
        except Unsupported:  # ptxas found no registers for it: the next one
            continue
        verdict.require_ok(config.short_form())
        return
