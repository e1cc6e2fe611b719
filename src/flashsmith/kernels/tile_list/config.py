"""What the kernel that lists q tiles is: one cta, the same for every kernel that reads the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.base.fields import flag, knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.listing import ListingConfig
from flashsmith.kernels.tile_list.arguments import TileListArguments

BUCKETS = 64  # steps of length that tiles are sorted by: kBuckets of attention/list_tiles.cuh


@dataclass(frozen=True, slots=True, order=True)
class TileListConfig(ListingConfig):
    """The first launch of a plan whose sequences have lengths of their own."""

    NAME: ClassVar[str] = "tile_list"
    PREFIX: ClassVar[str] = "tile_list"
    HEADER: ClassVar[str] = "flashsmith/attention/list_tiles.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::TileListConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/attention/tile_list_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::list_tiles"
    ARGUMENTS: ClassVar[type[Arguments]] = TileListArguments
    OF: ClassVar[str] = "over packed sequences"

    n_threads: int = knob((128,), "threads of its one block")
    numbered: bool = flag("numbered", "entries say which sequence they are of, not which batch")

    def smem_bytes(self, elem_size: int = 2) -> int:
        """A count for each step of length and thread, and a word a thread to scan in."""
        del elem_size
        return 4 * (BUCKETS + 1) * self.n_threads
