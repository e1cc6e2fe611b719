"""The launch that lists q tiles."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.kernels.edges import edges_of
from flashsmith.kernels.launch import SCRATCH, Call, Launch, LaunchGeometry
from flashsmith.kernels.tile_list.arguments import TileListArguments
from flashsmith.kernels.tile_list.config import TileListConfig
from flashsmith.kernels.tile_list.sizes import ITEM_BYTES, items_at, items_of, list_bytes
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs

BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_k")
WORD_BYTES = 4
SECTION_BYTES = 32 << 20  # of K and V that should stay in L2 while a section of heads is worked on


@dataclass(frozen=True, slots=True)
class TileListLaunch(Launch):
    """The launch that writes the list, for a kernel with these tiles."""

    tile_q: int = 1
    tile_k: int = 1
    place: int = 0  # of the list in scratch memory
    of_keys: bool = False  # its problem is turned: what it calls rows are keys
    first_batch: int = 0  # of the call, that this launch begins with

    def arguments(self, call: Call) -> TileListArguments:
        """The kernel's one parameter."""
        problem = self.problem
        start = call[SCRATCH].address + self.place
        of_rows, of_keys = BOUNDARIES[::-1] if self.of_keys else BOUNDARIES
        items = start + items_at(problem, self.tile_q)
        edges = edges_of(problem, is_listed=True)
        return TileListArguments(
            cu_seqlens_q=_address(call, of_rows),
            cu_seqlens_k=_address(call, of_keys),
            list=start,
            items=items,
            first_tiles=items + ITEM_BYTES * (items_of(problem) + 1),
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
            q_lengths=self._of_first(call, "q_lengths"),
            k_lengths=self._of_first(call, "k_lengths"),
            k_starts=self._of_first(call, "k_starts"),
        )

    def _of_first(self, call: Call, name: str) -> int:
        """A table of a word for every sequence, from this launch's first on."""
        address = _address(call, name)
        return address and address + WORD_BYTES * self.first_batch


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
