"""What a decode kernel on mma.sync is: tiles, slices of keys, and how much it keeps in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm80_decode.arguments import DecodeArguments
from flashsmith.problem.attention import AttentionProblem

LANES = 32
MMA_ROWS = 16  # of the A operand of mma.sync m16n8k16
CHUNK = 8  # elements of 16 bytes
ROW_PADDING = 8  # floats behind a row of O in shared memory: rows begin at other banks
WIDTHS = (64, 128, 256)


@dataclass(frozen=True, slots=True, order=True)
class Sm80DecodeConfig(KernelConfig):
    """Few query rows on many keys: one launch, ctas that take a slice of the keys each.

    Query rows of all heads that share a head of K and V are one tile. The warps of a cta are teams:
    a team takes every n-th kv block of the slice through a ring of its own, and holds O of all rows
    of the tile. The length of slices follows from that of their sequence, and they are added up in
    order, so that the bits of a row follow from its own sequence alone.
    """

    NAME: ClassVar[str] = "sm80_decode"
    PREFIX: ClassVar[str] = "decode"
    HEADER: ClassVar[str] = "flashsmith/sm80/decode/decode.cuh"
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
    )
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80DecodeConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/decode/methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::decode"
    ARGUMENTS: ClassVar[type[Arguments]] = DecodeArguments
    SLICES_KEYS: ClassVar[bool] = True
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = ("bias", "q_lengths", "k_starts", "d_v")
    BUILD_RULES: ClassVar[tuple[Rule, ...]]
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]] = ()

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    B_r: int = knob((16, 32, 64), "query rows of a tile: of all heads that share one of K and V")
    B_c: int = knob((16, 32, 64), "keys that a team takes at a time")
    n_warps: int = knob((2, 4, 8), "warps of a cta; B_r / 16 of them are a team")
    slice_keys: int = knob(
        (128, 256, 512, 1024, 2048), "keys of a slice, a cta's work, at least", "slice_{}"
    )
    most_slices: int = knob(
        (8, 16, 32, 64), "of a sequence; those of longer ones double", "most_{}"
    )
    stages: int = knob((2, 3, 4, 5, 6, 8), "kv blocks of a team's ring, K and V each", "stages_{}")
    ctas: int = knob((1, 2, 3, 4), "ctas that an SM's registers must hold", "ctas_{}")
    persistent: bool = flag("persistent", "as many ctas as run at once, which take slices in turn")
    runs: bool = flag(
        "runs", "as many ctas as run at once, which take slices in a row and let no ring run empty"
    )
    evict_first: bool = flag(
        "evict_first", "K and V, which are read once, leave L2 before what it held"
    )
    kept_parts: bool = flag(
        "kept_parts", "parts of slices stay in L2 until they are added up, and are dropped there"
    )
    whole_pages: bool = flag(
        "whole_pages", "pages are whole kv blocks: one is looked up, and its rows follow each other"
    )
    quick_start: bool = flag(
        "quick_start",
        "a cta's place in the grid names its slice; copies begin after few instructions",
    )
    quick_end: bool = flag(
        "quick_end", "results are weighed by their largest maximum, and added with one factor each"
    )

    @property
    def tile_q(self) -> int:
        """Query rows of one tile."""
        return self.B_r

    @property
    def tile_k(self) -> int:
        """Keys of one slice."""
        return self.slice_keys

    @property
    def threads(self) -> int:
        """Threads of one cta."""
        return self.n_warps * LANES

    @property
    def team_warps(self) -> int:
        """Warps that share a ring: 16 query rows each."""
        return self.B_r // MMA_ROWS

    @property
    def teams(self) -> int:
        """Teams of a cta: each takes every `teams`-th kv block of a slice."""
        return self.n_warps // self.team_warps

    @property
    def numeric_class(self) -> str:
        """What a row's bits follow from beside its own sequence."""
        tiles = (self.dtype.name, self.d_head, self.B_r, self.B_c, self.n_warps)
        words = f"slice_{self.slice_keys}+most_{self.most_slices}"
        weighed = "+quick_end" if self.quick_end else ""
        return f"decode({', '.join(map(str, tiles))}): {words}{weighed}"

    @property
    def rows_at_once(self) -> int:
        """Rows of K that a team copies with one instruction a lane."""
        return self.team_warps * LANES * CHUNK // self.d_head

    def ring_bytes(self, elem_size: int = 2) -> int:
        """Shared memory of all teams' rings."""
        return self.teams * self.stages * 2 * self.B_c * self.d_head * elem_size

    def exchange_bytes(self) -> int:
        """Shared memory in which teams add up O, maxima and sums."""
        return self.teams * self.B_r * 4 * (self.d_head + ROW_PADDING + 2)

    def handed_bytes(self) -> int:
        """Shared memory beside rings that go on: maxima, sums and a stage of each team.

        In whole chunks, so that what lies behind them is aligned.
        """
        return -(-self.teams * (self.B_r * 8 + 4) // 16) * 16 if self.runs else 0

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Q, then the rings, whose room teams exchange results in, then a word for all threads."""
        q = self.B_r * self.d_head * elem_size
        room = max(self.ring_bytes(elem_size), self.exchange_bytes())
        return q + room + self.handed_bytes() + 16

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """mma.sync, ldmatrix and cp.async exist from sm_80 on."""
        return arch_name.startswith("sm_")

    def refused_problem(self, problem: AttentionProblem) -> str:
        """Packed query rows have their keys in a pool of pages."""
        if problem.sequences and not problem.page:
            return "these kernels compute packed sequences on pages of keys only (page, k_lengths)"
        if self.whole_pages and problem.page % self.B_c:
            return f"these kernels are for pages of a multiple of {self.B_c} rows (whole_pages)"
        if problem.sequences and self.runs:
            return "ctas that take slices one behind the other do not look for packed sequences"
        return ""

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm80_decode.plan import plan_decode

        return plan_decode(self, problem, sm_count)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm80_decode import sets

        return sets.NAMED_SETS

    @classmethod
    def is_last_resort(cls, problem: AttentionProblem) -> bool:
        """Several q tiles of a sequence read its keys as often; and tensor cores decide."""
        from flashsmith.kernels.sm80_decode import rule

        return not problem.sequences and problem.q_len * problem.group > rule.MOST_ROWS

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first; none where rows are many."""
        from flashsmith.kernels.sm80_decode import rule

        return rule.candidates(problem, arch)


Sm80DecodeConfig.BUILD_RULES = (
    Rule(
        "team_divides_warps",
        lambda c: c.n_warps % c.team_warps != 0,
        "a team has a warp for every 16 query rows and the cta has fewer warps than that",
        "use more warps or a smaller query tile",
    ),
    Rule(
        "block_is_whole_passes",
        lambda c: c.B_c % c.rows_at_once != 0,
        "a team copies more rows at once than a kv block has",
        "use a larger kv block or a smaller query tile",
    ),
    Rule(
        "slice_has_a_block_for_every_team",
        lambda c: c.slice_keys < c.teams * c.B_c,
        "a slice has fewer kv blocks than there are teams",
        "use a longer slice, a smaller kv block or fewer warps",
    ),
    Rule(
        "results_fit_a_stage",
        lambda c: c.runs and c.B_r > c.B_c,
        "a cta that takes several slices hands over a team's results in a stage of its ring, and "
        "the query tile has more rows than a kv block",
        "use a larger kv block, a smaller query tile or no runs",
    ),
    Rule(
        "runs_or_persistent",
        lambda c: c.runs and c.persistent,
        "ctas take slices that follow each other, or slices in turn",
        "drop one of runs and persistent",
    ),
)
