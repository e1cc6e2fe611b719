"""How tables write a problem."""

from __future__ import annotations

from flashsmith.problem.attention import AttentionProblem


def shape_text(problem: AttentionProblem) -> str:
    """A problem in a table: batch, heads, lengths, d_head, mask."""
    heads = f"{problem.heads}/{problem.kv_heads}"
    mask = f"causal{problem.diagonal_offset:+d}" if problem.causal else "full"
    return f"{problem.batch}x{heads} {problem.q_len}x{problem.k_len} d{problem.d_head} {mask}"
