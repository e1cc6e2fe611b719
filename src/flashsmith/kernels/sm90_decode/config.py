"""What a decode kernel on sm_90 is: tiles and slices of the one on sm_80, rings filled by TMA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.arch import Arch
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.paging import LEAST_BOX, boxes_fit
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm80_decode.config import LANES, Sm80DecodeConfig
from flashsmith.kernels.sm90_decode.arguments import Sm90DecodeArguments
from flashsmith.problem.attention import AttentionProblem

ARCH = "sm_90a"
PANEL_COLUMNS = 64  # of a box: 128 bytes of a row
FEW_ROWS = 4  # of a request, q_len times group


@dataclass(frozen=True, slots=True, order=True)
class Sm90DecodeConfig(Sm80DecodeConfig):
    """The decode kernel whose K and V come by TMA.

    Kv blocks are multiplied and added up as the kernel on sm_80 does: configurations of the same
    tiles, warps and slices give the same bits.
    """

    NAME: ClassVar[str] = "sm90_decode"
    PREFIX: ClassVar[str] = "hopper_decode"
    HEADER: ClassVar[str] = "flashsmith/sm90/decode/decode.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90DecodeConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm90/decode/methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm90::decode"
    ARGUMENTS: ClassVar[type[Arguments]] = Sm90DecodeArguments
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = (*Sm80DecodeConfig.REFUSED_FACTS, "sequences")

    @property
    def panels(self) -> int:
        """Of a kv block, of K or of V."""
        return self.d_head // PANEL_COLUMNS

    @property
    def barrier_bytes(self) -> int:
        """A barrier for every stage of every team's ring, in whole chunks."""
        return -(-self.teams * self.stages // 2) * 16

    def smem_bytes(self, elem_size: int = 2) -> int:
        """As on sm_80, and the barriers."""
        q = self.B_r * self.d_head * elem_size
        room = max(self.ring_bytes(elem_size), self.exchange_bytes())
        return q + room + self.handed_bytes() + self.barrier_bytes + 16

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """Where TMA is."""
        return arch_name == ARCH

    def box_rows(self, problem: AttentionProblem) -> int:
        """Rows of a copy: those of a kv block, or of a page that has fewer."""
        return min(problem.page or self.B_c, self.B_c)

    def refused_problem(self, problem: AttentionProblem) -> str:
        """Pages are copied as boxes: whole ones, or whole kv blocks of one."""
        page = problem.page
        if not page:
            return ""
        is_whole = boxes_fit(page, self.B_c)
        boxes = self.B_c // self.box_rows(problem) * 2 * self.panels
        if is_whole and boxes <= LANES:
            return ""
        return (
            f"pages of {page} rows do not fit kv blocks of {self.B_c} keys; these kernels take "
            f"multiples of {self.B_c}, and divisors of it from {LEAST_BOX} on"
        )

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm90_decode.plan import plan_decode

        return plan_decode(self, problem, sm_count)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm90_decode import sets

        return sets.NAMED_SETS

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first; none where copies by lanes do better.

        Times of 12 caches at d_head 128 decide (H200, 2026-11): of pages, boxes take 12 % less than
        copies by lanes where a request has more than a few rows, and 4 % less to 9 % more where it
        has fewer; of contiguous caches they take 1 to 13 % longer. Where widths have runs, calls of
        265 to 1,056 slices are left to lanes: their runs take 5 to 7 % less than boxes. Boxes whose
        parts are kept in L2 were not measured.
        """
        from flashsmith.kernels.sm80_decode import rule
        from flashsmith.kernels.sm90_decode import sets

        rows = problem.q_len * problem.group
        if problem.sequences or not problem.page or rows <= FEW_ROWS:
            return ()
        by_lanes = rule.candidates(problem, arch)
        alike = (sets.like(replace(c, kept_parts=False)) for c in by_lanes if not c.runs)
        boxes = list(dict.fromkeys(alike))
        has_runs = any(config.runs for config in by_lanes)
        return () if has_runs and rule.suits_runs(by_lanes[0], problem) else boxes


Sm90DecodeConfig.BUILD_RULES = (
    *(rule for rule in Sm80DecodeConfig.BUILD_RULES if rule.name != "block_is_whole_passes"),
    Rule(
        "boxes_are_whole_pages",
        lambda c: c.whole_pages,
        "a box is a page, or a kv block of one, and is looked up once anyway",
        "drop whole_pages",
    ),
)
