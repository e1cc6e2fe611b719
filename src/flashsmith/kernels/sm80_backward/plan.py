"""How gradients are laid out on mma.sync: row statistics, then a block a tile of keys, of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import SCRATCH, Call, Launch, LaunchGeometry, Plan
from flashsmith.kernels.sm80_backward.arguments import ROW_PADDING, BackwardArguments
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm80_backward.parts import STATISTICS_BYTES
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of

MAX_GRID = 2**31 - 1  # CTAs along x, on every architecture
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class BackwardLaunch(Launch):
    """One of the launches: all are told the same."""

    def arguments(self, call: Call) -> BackwardArguments:
        """The kernels' one parameter."""
        problem = self.problem
        return BackwardArguments(
            q=call["q"],
            k=call["k"],
            v=call["v"],
            o=call["o"],
            d_o=call["do"],
            dq=call["dq"],
            dk=call["dk"],
            dv=call["dv"],
            lse=call["lse"].address,
            dlse=call["dlse"].address if "dlse" in call else 0,
            statistics=call[SCRATCH].address,
            batch=problem.batch,
            heads=problem.heads,
            kv_heads=problem.kv_heads,
            q_len=problem.q_len,
            k_len=problem.k_len,
            d_head=problem.d_head,
            padded_rows=padded_rows(problem),
            diagonal=problem.mask.diagonal,
            scale_log2=problem.softmax_scale * LOG2_E,
        )


def padded_rows(problem: AttentionProblem) -> int:
    """Query rows of a head in scratch memory: tiles never end beyond them."""
    return math.ceil(problem.q_len / ROW_PADDING) * ROW_PADDING


def plan_backward(config: Sm80BackwardConfig, problem: AttentionProblem) -> Plan:
    """The launches of `config` on `problem`, in the order in which they follow from each other."""
    rows = padded_rows(problem)
    of_rows = problem.heads * problem.batch
    of_keys = problem.kv_heads * problem.batch
    scratch = of_rows * rows * STATISTICS_BYTES
    delta, queries = config.delta, config.of_queries
    counts: dict[KernelConfig, int] = {delta: rows // delta.tile_q * of_rows}
    counts |= {part: math.ceil(problem.k_len / part.B_c) * of_keys for part in config.of_keys}
    counts[queries] = math.ceil(problem.q_len / queries.B_r) * of_rows
    return tuple(
        BackwardLaunch(
            part,
            problem,
            _needs(part, problem),
            _geometry(part, count),
            scratch_bytes=scratch,
        )
        for part, count in counts.items()
    )


def _needs(part: KernelConfig, problem: AttentionProblem) -> Needs:
    needs = needs_of(problem, tile_q=part.tile_q, tile_k=part.tile_k, d_head=part.d_head)
    if part.smem_bytes():
        return needs
    return Needs(tuple(name for name in needs if name == "narrow_d"))  # of rows alone


def _geometry(part: KernelConfig, ctas: int) -> LaunchGeometry:
    if ctas > MAX_GRID:
        raise ArgumentError(
            f"{part.short_form()}: the problem has {ctas:,} tiles, one launch takes {MAX_GRID:,}; "
            f"split the batch."
        )
    return LaunchGeometry((ctas, 1, 1), part.threads, part.smem_bytes())
