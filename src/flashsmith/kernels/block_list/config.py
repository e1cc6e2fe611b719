"""What the kernel that lists kv blocks is: the same for every kernel that reads the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.base.errors import Unsupported
from flashsmith.base.fields import knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.block_list.arguments import BlockListArguments
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.problem.attention import AttentionProblem

LANES = 32


@dataclass(frozen=True, slots=True, order=True)
class BlockListConfig(KernelConfig):
    """The first launch of a plan whose boolean mask may hide whole kv blocks."""

    NAME: ClassVar[str] = "block_list"
    PREFIX: ClassVar[str] = "block_list"
    HEADER: ClassVar[str] = "flashsmith/attention/list_blocks.cuh"
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
    )
    CPP_TYPE: ClassVar[str] = "flashsmith::BlockListConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/attention/block_list_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::list_blocks"
    ARGUMENTS: ClassVar[type[Arguments]] = BlockListArguments
    BUILD_RULES: ClassVar[tuple[Rule, ...]] = ()
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]] = ()

    n_threads: int = knob((128,), "threads of a block")

    @property
    def tile_q(self) -> int:
        """Those of the kernel that reads the list, which it is told."""
        return 1

    @property
    def tile_k(self) -> int:
        """The same."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.n_threads

    def smem_bytes(self, elem_size: int = 2) -> int:
        """A word a thread for what was found, and one a warp to add up."""
        del elem_size
        return 4 * (self.n_threads + self.n_threads // LANES)

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """It needs nothing that an architecture may not have."""
        return arch_name.startswith("sm_")

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """It has none of its own."""
        raise Unsupported(
            f"{self.short_form()}: this is one launch of a pass under a boolean mask; give the "
            f"configuration of the whole, as `flashsmith configs` lists them."
        )
