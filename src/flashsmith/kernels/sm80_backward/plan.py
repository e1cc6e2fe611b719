"""How gradients are laid out on mma.sync: row statistics, then a cta a tile of keys, of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.arguments import NO_SCORES
from flashsmith.kernels.edges import edges_of
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import SCRATCH, Call, Launch, LaunchGeometry, Plan, scores_arg
from flashsmith.kernels.sm80_backward.arguments import ROW_PADDING, BackwardArguments
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm80_backward.parts import STATISTICS_BYTES, Sm80DeltaConfig
from flashsmith.kernels.tile_list.plan import list_launch
from flashsmith.kernels.tile_list.sizes import list_bytes, most_tiles, turned
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of

MAX_GRID = 2**31 - 1  # ctas along x, on every architecture
LIST_ALIGNMENT = 16  # of a list in scratch memory: entries are read 16 bytes at a time


@dataclass(frozen=True, slots=True)
class DqSums:
    """Where in scratch dQ is added up, and how kv blocks find their turn; nowhere: they do not."""

    place: int = 0
    counters: int = 0
    n_counters: int = 0
    section_heads: int = 0


@dataclass(frozen=True, slots=True)
class BackwardLaunch(Launch):
    """One of the launches: all are told the same."""

    lists: tuple[int, int] = (0, 0)  # where in scratch q tiles and kv blocks are listed
    sums: DqSums = DqSums()

    def arguments(self, call: Call) -> BackwardArguments:
        """The kernels' one parameter."""
        problem = self.problem
        edges = edges_of(problem)
        places = (*self.lists, self.sums.place, self.sums.counters)
        q_list, k_list, dq_sums, counters = (
            call[SCRATCH].address + place if place else 0 for place in places
        )
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
            padded_rows=padded_rows(problem),
            diagonal=edges.right,
            left_diagonal=edges.left,
            softcap=problem.softcap or 0.0,
            position=edges.position,
            q_list=q_list,
            k_list=k_list,
            alibi_slopes=call["alibi_slopes"].address if "alibi_slopes" in call else 0,
            bias=scores_arg(self, call) if self.config.smem_bytes() else NO_SCORES,  # of rows alone
            dbias=call["dbias"].address if problem.dbias else 0,
            bias_sequences=problem.bias_sequences,
            bias_heads=problem.bias_heads,
            dq_sums=dq_sums,
            counters=counters,
            n_counters=self.sums.n_counters,
            section_heads=self.sums.section_heads,
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
    if problem.dbias:
        part = config.of_bias
        tiles = math.ceil(problem.q_len / part.tile_q) * math.ceil(problem.k_len / part.tile_k)
        counts[part] = tiles * problem.bias_sequences * problem.bias_heads
    if problem.sequences:
        return _plan_packed(config, problem, scratch, counts[delta])
    return tuple(
        BackwardLaunch(
            part,
            problem,
            needs_of_part(part, problem),
            geometry_of(part, count),
            scratch_bytes=scratch,
        )
        for part, count in counts.items()
    )


def _plan_packed(
    config: Sm80BackwardConfig, problem: AttentionProblem, statistics: int, of_rows: int
) -> Plan:
    """The same behind two lists, of q tiles and of kv blocks: each as long as they can be."""
    delta, queries, keys = config.delta, config.of_queries, config.of_keys
    q_list = statistics
    k_list = q_list + _aligned(list_bytes(problem, queries.B_r))
    scratch = k_list + list_bytes(turned(problem), config.dkv_keys)
    counts: dict[KernelConfig, int] = {delta: of_rows}
    blocks = most_tiles(turned(problem), config.dkv_keys)
    counts |= dict.fromkeys(keys, blocks * problem.kv_heads)
    counts[queries] = most_tiles(problem, queries.B_r) * problem.heads
    listed = (
        list_launch(
            problem,
            needs_of_part(queries, problem),
            tile_q=queries.B_r,
            tile_k=queries.B_c,
            place=q_list,
        ),
        # Blocks of one sequence are equal here, whatever the mask hides.
        list_launch(
            turned(problem),
            Needs(),
            tile_q=config.dkv_keys,
            tile_k=config.dkv_rows,
            place=k_list,
            of_keys=True,
        ),
    )
    return (
        *(replace(launch, scratch_bytes=scratch) for launch in listed),
        *(
            BackwardLaunch(
                part,
                problem,
                needs_of_part(part, problem),
                geometry_of(part, count),
                scratch_bytes=scratch,
                lists=(q_list, k_list),
            )
            for part, count in counts.items()
        ),
    )


def _aligned(n_bytes: int) -> int:
    return math.ceil(n_bytes / LIST_ALIGNMENT) * LIST_ALIGNMENT


def needs_of_part(part: KernelConfig, problem: AttentionProblem) -> Needs:
    """What of a problem a launch is compiled for."""
    needs = needs_of(problem, tile_q=part.tile_q, tile_k=part.tile_k, d_head=part.d_head)
    if part.smem_bytes():
        # Registers are short here: what lies in chunks is read by pairs.
        return Needs(tuple(name for name in needs if name != "bias_keys_chunks"))
    looks_at = {"narrow_d"}  # of rows alone
    if isinstance(part, Sm80DeltaConfig) and part.unseen_rows:
        looks_at |= {"causal", "window_left"}
    return Needs(tuple(name for name in needs if name in looks_at))


def geometry_of(part: KernelConfig, ctas: int) -> LaunchGeometry:
    """A launch of so many ctas, if there can be so many."""
    if ctas > MAX_GRID:
        raise ArgumentError(
            f"{part.short_form()}: the problem has {ctas:,} tiles, one launch takes {MAX_GRID:,}; "
            f"split the batch."
        )
    return LaunchGeometry((ctas, 1, 1), part.threads, part.smem_bytes())
