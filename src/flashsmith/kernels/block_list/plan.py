"""The launch that lists kv blocks, and how much memory the list takes."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.arguments import NO_TENSOR, ScoresArg, TensorArg
from flashsmith.kernels.block_list.arguments import BlockListArguments
from flashsmith.kernels.block_list.config import BlockListConfig
from flashsmith.kernels.launch import SCRATCH, Call, Launch, LaunchGeometry
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.signature import BIAS

WORD_BYTES = 4
MAX_GRID = 2**31 - 1  # CTAs along x, on every architecture


@dataclass(frozen=True, slots=True)
class BlockLists:
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

    def launch(self, needs: Needs) -> BlockListLaunch:
        """What writes it, for a kernel that is compiled with `needs`: its masks come first."""
        config = BlockListConfig.of(n_threads=512)
        if self.lines > MAX_GRID:
            raise ArgumentError(
                f"bias is a bool for {self.lines:,} tiles of {self.tile_q} query rows, one launch "
                f"takes {MAX_GRID:,}; split the batch."
            )
        return BlockListLaunch(
            config,
            self.problem,
            Needs(tuple(name for name in needs if name in ("causal", "window_left"))),
            LaunchGeometry((self.lines, 1, 1), config.threads, config.smem_bytes()),
            scratch_bytes=self.n_bytes,
            tile_q=self.tile_q,
            tile_k=self.tile_k,
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


@dataclass(frozen=True, slots=True)
class BlockListLaunch(Launch):
    """The launch that writes the list, for a kernel with these tiles."""

    tile_q: int = 1
    tile_k: int = 1

    def arguments(self, call: Call) -> BlockListArguments:
        """The kernel's one parameter."""
        problem, bias = self.problem, call[BIAS]
        assert isinstance(bias, ScoresArg)
        lists = BlockLists(problem, self.tile_q, self.tile_k)
        mask = problem.mask
        _require_shared(problem, bias)
        return BlockListArguments(
            bias=bias,
            blocks=lists.arg(call),
            mask_heads=lists.heads,
            q_tiles=lists.q_tiles,
            tile_q=self.tile_q,
            tile_k=self.tile_k,
            diagonal=mask.diagonal,
            left_diagonal=mask.left_diagonal,
        )


def _require_shared(problem: AttentionProblem, bias: ScoresArg) -> None:
    """Raises where a mask that is said to be one of all has a stride."""
    of_batch = problem.bias_shared in ("batch", "both") and problem.batch > 1
    of_heads = problem.bias_shared in ("heads", "both") and problem.heads > 1
    if (of_batch and bias.batch_stride) or (of_heads and bias.head_stride):
        raise ArgumentError(
            f"bias has strides {bias.batch_stride} and {bias.head_stride} of sequences and heads, "
            f"and bias_shared is {problem.bias_shared!r}; what is shared must have stride 0; "
            f"leave bias_shared out."
        )
