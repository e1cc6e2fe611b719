"""Where masks begin and end, as kernels are told."""

from __future__ import annotations

from typing import NamedTuple

from flashsmith.problem.attention import AttentionProblem


class Edges(NamedTuple):
    """Where masks begin and end, and where distances count from, as kernels are told."""

    right: int
    left: int
    position: int


def edges_of(problem: AttentionProblem, *, is_listed: bool = False) -> Edges:
    """From a row's own index; where sequences are packed or listed, from their own alignments."""
    if problem.sequences or is_listed:
        edges = problem.edges
        return Edges(*edges.offsets, edges.alignment)
    mask = problem.mask
    return Edges(mask.diagonal, mask.left_diagonal, mask.alignment if problem.alibi else 0)
