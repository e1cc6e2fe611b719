"""What kernels that list work for others have in common: the first launch of a plan, no tiles."""

from __future__ import annotations

from typing import ClassVar

from flashsmith.base.errors import Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.problem.attention import AttentionProblem


class ListingConfig(KernelConfig):
    """One launch before those that read its list, and nothing that runs alone."""

    __slots__ = ()
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
    )
    BUILD_RULES: ClassVar[tuple[Rule, ...]] = ()
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]] = ()
    OF: ClassVar[str]  # what a pass has that begins with it

    n_threads: int

    @property
    def tile_q(self) -> int:
        """The reader's are what counts, which it is told."""
        return 1

    @property
    def tile_k(self) -> int:
        """The same."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of one cta."""
        return self.n_threads

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """It needs nothing that an architecture may not have."""
        return arch_name.startswith("sm_")

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """It has none of its own."""
        raise Unsupported(
            f"{self.short_form()}: this is one launch of a pass {self.OF}; give the configuration "
            f"of the whole, as `flashsmith configs` lists them."
        )
