"""What the kernel that lists kv blocks is: the same for every kernel that reads the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.base.fields import knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.block_list.arguments import BlockListArguments
from flashsmith.kernels.listing import ListingConfig

LANES = 32


@dataclass(frozen=True, slots=True, order=True)
class BlockListConfig(ListingConfig):
    """The first launch of a plan whose boolean mask may hide whole kv blocks."""

    NAME: ClassVar[str] = "block_list"
    PREFIX: ClassVar[str] = "block_list"
    HEADER: ClassVar[str] = "flashsmith/attention/list_blocks.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::BlockListConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/attention/block_list_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::list_blocks"
    ARGUMENTS: ClassVar[type[Arguments]] = BlockListArguments
    OF: ClassVar[str] = "under a boolean mask"

    n_threads: int = knob((512,), "threads of a cta")

    def smem_bytes(self, elem_size: int = 2) -> int:
        """A word a thread for what was found, and one a warp to add up."""
        del elem_size
        return 4 * (self.n_threads + self.n_threads // LANES)
