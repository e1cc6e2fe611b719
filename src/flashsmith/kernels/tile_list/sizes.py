"""How long the list of q tiles may be, and how much memory it takes."""

from __future__ import annotations

from dataclasses import replace

from flashsmith.problem.attention import AttentionProblem

HEADER_BYTES, ENTRY_BYTES, ITEM_BYTES = 16, 32, 16
OUTER_ITEMS = 2  # rows before the first sequence, and behind the last


def turned(problem: AttentionProblem) -> AttentionProblem:
    """The problem with queries and keys in each other's place: its q tiles are kv blocks."""
    return replace(problem, q_len=problem.k_len, k_len=problem.q_len)


def most_tiles(problem: AttentionProblem, tile_q: int) -> int:
    """As many entries as the list of a problem can have, whatever the lengths are."""
    if not problem.sequences:
        of_one = -(-problem.q_len // tile_q) + (1 if problem.q_lengths else 0)
        return problem.batch * min(of_one, problem.q_len)
    return min(problem.q_len // tile_q + items_of(problem), problem.q_len)


def list_bytes(problem: AttentionProblem, tile_q: int) -> int:
    """Scratch memory of the list and of what it is made from."""
    words = items_of(problem) + 1
    return items_at(problem, tile_q) + ITEM_BYTES * words + 4 * words


def items_of(problem: AttentionProblem) -> int:
    """Rows before the first sequence, of each, behind the last, and behind what each uses."""
    return problem.requests * (2 if problem.q_lengths else 1) + OUTER_ITEMS


def items_at(problem: AttentionProblem, tile_q: int) -> int:
    """Where what the list is made from begins, behind the list."""
    return HEADER_BYTES + ENTRY_BYTES * most_tiles(problem, tile_q)
