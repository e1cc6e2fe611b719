"""Boundaries of packed sequences: those that lie, and mutants of those that do not."""

import numpy as np

from flashsmith.check import cases
from flashsmith.problem.attention import AttentionProblem

PACKED = AttentionProblem(1, 3, 1, 300, 411, 64, lse=True, sequences=7)

WILD = {
    "falling": ([0, 120, 40, 90, 300], [0, 200, 100, 150, 411]),
    "overlong": ([0, 100, 2**31 - 1, 200, 10**9], [0, 10**6, 10**6, 411, 500]),
    "negative": ([-5, -(2**31), 60, -1, 250], [-7, 100, -3, 200, 400]),
    "rows outside": ([20, 60, 60, 150, 280], [30, 90, 200, 300, 390]),
    "empty": ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    "no keys": ([0, 100, 200, 250, 300], [50, 50, 50, 50, 50]),
}


def given_boundaries(monkeypatch, q, k):
    """Draws these in the place of sensible ones."""

    def drawn(sequences, length, random):
        return np.array(q if length == PACKED.q_len else k, np.int32)

    monkeypatch.setattr(cases, "drawn_boundaries", drawn)


def off_by_one(bits):
    return np.where(np.arange(len(bits)) == 1, bits + 1, bits).astype(np.uint32)
