"""What the kernel that lists q tiles is: one CTA, the same for every kernel that reads the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.base.errors import Unsupported
from flashsmith.base.fields import knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.tile_list.arguments import TileListArguments
from flashsmith.problem.attention import AttentionProblem

BUCKETS = 64  # steps of length that tiles are sorted by: kBuckets of attention/list_tiles.cuh


@dataclass(frozen=True, slots=True, order=True)
class TileListConfig(KernelConfig):
    """The first launch of a plan whose sequences have lengths of their own."""

    NAME: ClassVar[str] = "tile_list"
    PREFIX: ClassVar[str] = "tile_list"
    HEADER: ClassVar[str] = "flashsmith/attention/list_tiles.cuh"
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
    )
    CPP_TYPE: ClassVar[str] = "flashsmith::TileListConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/attention/tile_list_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::list_tiles"
    ARGUMENTS: ClassVar[type[Arguments]] = TileListArguments
    BUILD_RULES: ClassVar[tuple[Rule, ...]] = ()
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]] = ()

    n_threads: int = knob((128,), "threads of its one block")

    @property
    def tile_q(self) -> int:
        """It looks at no row."""
        return 1

    @property
    def tile_k(self) -> int:
        """It looks at no key."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of its one block."""
        return self.n_threads

    def smem_bytes(self, elem_size: int = 2) -> int:
        """A count for each step of length and thread, and a word a thread to scan in."""
        del elem_size
        return 4 * (BUCKETS + 1) * self.n_threads

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """It needs nothing that an architecture may not have."""
        return arch_name.startswith("sm_")

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """It has none of its own."""
        raise Unsupported(
            f"{self.short_form()}: this is one launch of a pass over packed sequences; give the "
            f"configuration of the whole, as `flashsmith configs` lists them."
        )
