"""The lists of kv blocks that q tiles see under a boolean mask: where they lie, how long."""

from __future__ import annotations

from typing import NamedTuple

from flashsmith.kernels.arguments import NO_TENSOR, TensorArg
from flashsmith.kernels.launch import SCRATCH, Call
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import WORD_BYTES


class BlockLists(NamedTuple):
    """The list of a problem on a kernel with these tiles; nothing where no mask is a bool."""

    problem: AttentionProblem
    tile_q: int
    tile_k: int

    @property
    def exist(self) -> bool:
        """Whether there is one."""
        return self.problem.bias == "bool"

    @property
    def n_bytes(self) -> int:
        """Scratch memory that it takes."""
        return WORD_BYTES * self.lines * self._line if self.exist else 0

    @property
    def lines(self) -> int:
        """One for each q tile of each mask: sequences and heads that share one share its lines."""
        return self.problem.bias_sequences * self.heads * self.q_tiles

    def arg(self, call: Call) -> TensorArg:
        """Where a kernel finds it."""
        if not self.exist:
            return NO_TENSOR
        matrix = self.q_tiles * self._line
        return TensorArg(
            call[SCRATCH].address,
            self.heads * matrix if self.problem.bias_sequences > 1 else 0,
            self._line,
            matrix if self.heads > 1 else 0,
        )

    @property
    def heads(self) -> int:
        """That have a mask of their own."""
        return self.problem.bias_heads

    @property
    def q_tiles(self) -> int:
        """Of one head."""
        return -(-self.problem.q_len // self.tile_q)

    @property
    def _line(self) -> int:
        """Words: as many blocks as there may be, and before them how many there are."""
        return -(-self.problem.k_len // self.tile_k) + 1
