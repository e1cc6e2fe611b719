"""How few query rows are laid out: a cta a slice of keys, all heads of a group in one tile."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.edges import edges_of
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import SCRATCH, WORKSPACE, Call, Launch, LaunchGeometry, Plan
from flashsmith.kernels.paging import page_shift
from flashsmith.kernels.sm80_decode.arguments import DecodeArguments
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.sm80_decode.sets import wide_config
from flashsmith.kernels.tile_list.sizes import OUTER_ITEMS
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of

MAX_GRID = 2**31 - 1  # ctas along x, on every architecture
FLOAT_BYTES = 4
# Words at the start of the workspace that every kernel finds zero and leaves zero.
MOST_COUNTERS = 4096
_NO_CTAS = LaunchGeometry((0, 1, 1), 0, 0)  # of a kind of launch, until sequences are shared out


@dataclass(frozen=True, slots=True)
class DecodeLaunch(Launch):
    """One launch: sequences whose q tiles have a counter each."""

    first_batch: int = 0
    batch: int = 0
    # Of packed rows: sequences with so many, of all heads of a group, and rows of no sequence.
    least_rows: int = 0
    most_rows: int = 0
    takes_outer: bool = False

    def arguments(self, call: Call) -> DecodeArguments:
        """The kernel's one parameter."""
        problem, config = self.problem, _own(self.config)
        parts = _parts(config, problem)
        scratch = _address(call, SCRATCH)
        rows, edges = _part_rows(config, problem), edges_of(problem)
        return DecodeArguments(
            q=call["q"],
            k=call["k"],
            v=call["v"],
            o=call["o"],
            lse=_address(call, "lse"),
            parts=scratch,
            statistics=scratch and scratch + parts * rows * config.d_head * FLOAT_BYTES,
            counters=_address(call, WORKSPACE),
            sinks=_address(call, "sinks"),
            alibi_slopes=_address(call, "alibi_slopes"),
            k_lengths=_address(call, "k_lengths"),
            block_table=_address(call, "block_table"),
            first_batch=self.first_batch,
            batch=self.batch,
            group=problem.group,
            k_len=problem.k_len,
            diagonal=edges.right,
            left_diagonal=edges.left,
            position=edges.position,
            follows_length=problem.diagonal is None,
            q_tiles=_q_tiles(config, problem),
            slices=_slices(config, problem),
            slice_keys=slices_of(config, problem.k_len)[0],
            part_rows=rows,
            page=problem.page,
            page_shift=page_shift(problem.page),
            pages=problem.pages,
            table_pages=problem.table_pages,
            cu_seqlens_q=_address(call, "cu_seqlens_q"),
            sequences=problem.sequences,
            outer=OUTER_ITEMS if self.takes_outer else 0,
            least_rows=self.least_rows,
            most_rows=self.most_rows,
        )


def _address(call: Call, name: str) -> int:
    return call[name].address if name in call else 0


def _own(config: KernelConfig) -> Sm80DecodeConfig:
    assert isinstance(config, Sm80DecodeConfig)
    return config


def _q_tiles(config: Sm80DecodeConfig, problem: AttentionProblem) -> int:
    """Tiles of the query rows of all heads that share one of K and V.

    Of packed rows: those of a sequence that is divided into slices, which has one.
    """
    return 1 if problem.sequences else math.ceil(problem.q_len * problem.group / config.B_r)


def slices_of(config: Sm80DecodeConfig, k_len: int) -> tuple[int, int]:
    """Keys of a slice and number of slices, of a sequence of `k_len` keys: by nothing else.

    Two slices are one, which needs no sum; where there would be more than most_slices, they double.
    """
    least = math.ceil(k_len / config.slice_keys)
    if least <= 2:
        return 2 * config.slice_keys, 1
    doubled = ((least - 1) // config.most_slices).bit_length()
    return config.slice_keys << doubled, ((least - 1) >> doubled) + 1


def _slices(config: Sm80DecodeConfig, problem: AttentionProblem) -> int:
    """Slices of a sequence; where lengths are in memory, as many as any may have."""
    if problem.k_lengths:
        least = math.ceil(problem.k_len / config.slice_keys)
        return 1 if least <= 2 else min(least, config.most_slices)
    return slices_of(config, problem.k_len)[1]


def slices_at_most(config: Sm80DecodeConfig, problem: AttentionProblem) -> int:
    """Slices of all q tiles of a call: ctas of a launch that takes one slice each."""
    tiles = problem.requests * problem.kv_heads * _q_tiles(config, problem)
    return tiles * _slices(config, problem)


def _part_rows(config: Sm80DecodeConfig, problem: AttentionProblem) -> int:
    rows = problem.q_len * problem.group
    return min(rows, config.B_r * max(problem.sequences, 1))


def _parts(config: Sm80DecodeConfig, problem: AttentionProblem) -> int:
    """Parts of a call; a q tile of one slice leaves none behind.

    Those of packed rows hold a slice of all sequences.
    """
    slices = _slices(config, problem)
    if slices == 1:
        return 0
    return problem.kv_heads * slices if problem.sequences else slices_at_most(config, problem)


def plan_decode(
    config: Sm80DecodeConfig,
    problem: AttentionProblem,
    sm_count: int,
    launch_type: type[DecodeLaunch] = DecodeLaunch,
) -> Plan:
    """The launches of `config` on `problem`: mostly one, more where counters are too few.

    Packed sequences are routed by their own rows: those of one q tile of `config` are its work, and
    the rest that of the widest tile, so that neither looks at what else is packed.
    """
    if not problem.sequences:
        kind = launch_type(config, problem, _needs(config, problem), _NO_CTAS)
        return _launches(kind, sm_count)
    wide = replace(wide_config(config), persistent=True)
    rows = problem.q_len * problem.group
    few = DecodeLaunch(
        *(config, problem, _needs(config, problem), _NO_CTAS), least_rows=1, most_rows=config.B_r
    )
    many = DecodeLaunch(
        *(wide, problem, _needs(wide, problem), _NO_CTAS),
        least_rows=config.B_r + 1,
        most_rows=max(rows, config.B_r),
        takes_outer=True,
    )
    found = (*_launches(few, sm_count), *_launches(many, sm_count))
    scratch = max(launch.scratch_bytes for launch in found)
    return tuple(replace(launch, scratch_bytes=scratch) for launch in found)


def _launches(kind: DecodeLaunch, sm_count: int) -> tuple[DecodeLaunch, ...]:
    """Launches of one kind for all sequences."""
    config, problem = _own(kind.config), kind.problem
    of_sequence = problem.kv_heads * _q_tiles(config, problem)
    if of_sequence > MOST_COUNTERS:
        raise ArgumentError(
            f"{config.short_form()}: a sequence has {of_sequence:,} tiles of {config.B_r} query "
            f"rows, this kernel counts up to {MOST_COUNTERS:,}; it is for few query rows: use a "
            f"forward kernel."
        )
    at_once = MOST_COUNTERS // of_sequence
    slices, rows = _slices(config, problem), _part_rows(config, problem)
    parts = _parts(config, problem)
    more = _undivided_tiles(config, problem) if kind.takes_outer else 0
    return tuple(
        replace(
            kind,
            geometry=_geometry(config, (of_sequence, slices, batch), more, sm_count),
            workspace_bytes=MOST_COUNTERS * 4 if slices > 1 else 0,
            scratch_bytes=parts * rows * (config.d_head + 2) * FLOAT_BYTES,
            first_batch=first,
            batch=batch,
            takes_outer=kind.takes_outer and first + batch == problem.requests,
        )
        for first in range(0, problem.requests, at_once)
        for batch in (min(at_once, problem.requests - first),)
    )


def _undivided_tiles(config: Sm80DecodeConfig, problem: AttentionProblem) -> int:
    """Q tiles of packed sequences that have several, and of rows of none, at most."""
    tiles = problem.q_len * problem.group // config.B_r + problem.sequences + OUTER_ITEMS
    return problem.kv_heads * tiles


def _needs(config: Sm80DecodeConfig, problem: AttentionProblem) -> Needs:
    """Query rows are always looked at one by one: a tile is of several heads."""
    needs = needs_of(problem, tile_q=1, tile_k=config.B_c, d_head=config.d_head)
    return Needs((*needs, "ragged_q"))


def _geometry(
    config: Sm80DecodeConfig, slices: tuple[int, int, int], more: int, sm_count: int
) -> LaunchGeometry:
    """A cta a slice, or as many as run at once, which share out what slices there are.

    `slices`: q tiles of a sequence, slices of each, sequences; `more`: ctas beside those.
    """
    ctas = math.prod(slices) + more
    if ctas > MAX_GRID:
        raise ArgumentError(
            f"{config.short_form()}: the problem has {ctas:,} slices, one launch takes "
            f"{MAX_GRID:,}; split the batch."
        )
    grid = (ctas, 1, 1)
    if config.runs:
        # As many for each q tile, which share out the slices of all sequences.
        at_once = sm_count * config.ctas // slices[0]
        grid = (slices[0] * max(min(at_once, ctas // slices[0]), 1), 1, 1)
    elif config.persistent:
        grid = (min(ctas, sm_count * config.ctas), 1, 1)
    elif config.quick_start:
        grid = slices
    return LaunchGeometry(grid, config.threads, config.smem_bytes())
