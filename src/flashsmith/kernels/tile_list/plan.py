"""The launch that lists q tiles, and how much memory the list takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashsmith.kernels.launch import SCRATCH, Call, Launch, LaunchGeometry
from flashsmith.kernels.tile_list.arguments import TileListArguments
from flashsmith.kernels.tile_list.config import TileListConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs

HEADER_BYTES, ENTRY_BYTES, ITEM_BYTES = 16, 32, 16
BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_k")
OUTER_ITEMS = 2  # rows before the first sequence, and behind the last
SECTION_BYTES = 32 << 20  # of K and V that should stay in L2 while a section of heads is worked on


def turned(problem: AttentionProblem) -> AttentionProblem:
    """The problem with queries and keys in each other's place: its q tiles are kv blocks."""
    return replace(problem, q_len=problem.k_len, k_len=problem.q_len)


def most_tiles(problem: AttentionProblem, tile_q: int) -> int:
    """As many entries as the list of a problem can have, whatever the lengths are."""
    if not problem.sequences:
        of_one = -(-problem.q_len // tile_q) + (1 if problem.q_lengths else 0)
        return problem.batch * min(of_one, problem.q_len)
    return min(problem.q_len // tile_q + _items(problem), problem.q_len)


def list_bytes(problem: AttentionProblem, tile_q: int) -> int:
    """Scratch memory of the list and of what it is made from."""
    words = _items(problem) + 1
    return _items_at(problem, tile_q) + ITEM_BYTES * words + 4 * words


def _items(problem: AttentionProblem) -> int:
    """Rows before the first sequence, of each, behind the last, and behind what each uses."""
    return problem.requests * (2 if problem.q_lengths else 1) + OUTER_ITEMS


def _items_at(problem: AttentionProblem, tile_q: int) -> int:
    return HEADER_BYTES + ENTRY_BYTES * most_tiles(problem, tile_q)


@dataclass(frozen=True, slots=True)
class TileListLaunch(Launch):
    """The launch that writes the list, for a kernel with these tiles."""

    tile_q: int = 1
    tile_k: int = 1
    place: int = 0  # of the list in scratch memory
    of_keys: bool = False  # its problem is turned: what it calls rows are keys

    def arguments(self, call: Call) -> TileListArguments:
        """The kernel's one parameter."""
        problem = self.problem
        start = call[SCRATCH].address + self.place
        of_rows, of_keys = BOUNDARIES[::-1] if self.of_keys else BOUNDARIES
        items = start + _items_at(problem, self.tile_q)
        edges = edges_of(problem, is_listed=True)
        return TileListArguments(
            cu_seqlens_q=_address(call, of_rows),
            cu_seqlens_k=_address(call, of_keys),
            list=start,
            items=items,
            first_tiles=items + ITEM_BYTES * (_items(problem) + 1),
            sequences=problem.requests,
            q_len=problem.q_len,
            k_len=problem.k_len,
            tile_q=self.tile_q,
            tile_k=self.tile_k,
            diagonal=edges.right,
            left_diagonal=edges.left,
            position=edges.position,
            bottom_right=int(problem.diagonal is None),
            section_bits=section_bits(problem),
            q_lengths=_address(call, "q_lengths"),
            k_lengths=_address(call, "k_lengths"),
            k_starts=_address(call, "k_starts"),
        )


def _address(call: Call, name: str) -> int:
    """Where a table lies; nowhere where a call brings none."""
    return call[name].address if name in call else 0


def list_launch(
    problem: AttentionProblem,
    needs: Needs,
    *,
    tile_q: int,
    tile_k: int,
    place: int = 0,
    of_keys: bool = False,
    numbered: bool = False,
) -> TileListLaunch:
    """The launch for a kernel that is compiled with `needs`: its masks decide what is long.

    With `of_keys` the problem is a turned one, and the list is one of kv blocks. With `numbered`
    entries hold the number of their sequence: 0 is what lies before the first. They do in any case
    where packed sequences have slopes.
    """
    names = numbered or bool(problem.sequences and problem.alibi)  # slopes of each sequence
    config = TileListConfig.of(n_threads=128, numbered=names)
    masks = tuple(name for name in needs if name in ("causal", "window_left"))
    has_lengths = problem.k_lengths or problem.q_lengths or problem.k_starts
    return TileListLaunch(
        config,
        problem,
        Needs((*masks, "k_lengths") if has_lengths else masks),
        LaunchGeometry((1, 1, 1), config.threads, config.smem_bytes()),
        scratch_bytes=list_bytes(problem, tile_q),
        tile_q=tile_q,
        tile_k=tile_k,
        place=place,
        of_keys=of_keys,
    )


def section_bits(problem: AttentionProblem) -> int:
    """2 to this: heads whose K and V of all sequences fit L2 together, and that divide all."""
    head_bytes = (
        2 * problem.batch * problem.k_len * problem.d_head * problem.dtype.bytes / problem.group
    )
    bits = 0
    while problem.heads % (2 << bits) == 0 and head_bytes * (2 << bits) <= SECTION_BYTES:
        bits += 1
    return bits


@dataclass(frozen=True, slots=True)
class Edges:
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
