"""What one forward kernel on wgmma and TMA is: every choice a template argument in C++."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.rules import Refusal, Rule
from flashsmith.kernels.sm90_forward.arguments import ForwardArguments
from flashsmith.problem.attention import AttentionProblem

if TYPE_CHECKING:
    from flashsmith.kernels.launch import Plan

WARPGROUP_ROWS = 64  # of the A operand of wgmma m64nNk16
WARPGROUP_THREADS = 128
PANEL_COLUMNS = 64  # 16-bit elements in a row of 128 bytes, the widest swizzle of TMA and wgmma
PANEL_ROW_BYTES = 128
TILE_SLOTS = 4  # tiles that the producer may have published and consumers not yet left
TILE_SLOT_BYTES = 16  # and as many again where a tile may be a part of one
BARRIER_BYTES = 8
MAX_SMEM_BYTES = 232_448  # a cta of sm_90: 227 KB
REGISTERS_PER_SM = 65_536
MOST_WITH_LEFT_EDGE = 160  # live registers beside which ptxas has room for a left edge
# Registers ptxas needs beside S, P and O (H200 builds, 2026-11: largest sums without a spill are
# 212 of 240 with two warpgroups, 128 of 160 with three; 192 and 120 without overlap).
SPARE_REGISTERS = {1: 28, 2: 28, 3: 32}
SPARE_REGISTERS_NO_OVERLAP = 40
# What ptxas calls a potential performance loss: wgmma instructions are serialized due to …
SERIALISED = re.compile(r"\(C751[0-5]\)")


class Statistics(IntEnum):
    """How the row maxima of a kv block are found."""

    MAX = 0  # over the whole row: shuffles in every kv block
    VOTE = 1  # over a thread's part; the warp votes whether any row outgrew its threshold
    BITS = 2  # as VOTE, three bit patterns an instruction: exact wherever a row's maximum matters
    SUM = 3  # not at all: exponentials first, and a vote whether their sums outgrew the threshold


class Ascending(IntEnum):
    """Under a causal mask, which tiles take their keys from the first on, the masked ones last."""

    NONE = 0
    FIRST = 1  # a cta's first: where tiles of a head start together, they read the same K and V
    ALL = 2


class Scheduler(IntEnum):
    """How a cta comes to its next q tile."""

    SINGLE = 0  # one q tile a cta
    STATIC = 1  # every gridDim-th tile
    DYNAMIC = 2  # from a counter in global memory, one tile ahead


@dataclass(frozen=True, slots=True, order=True)
class Sm90ForwardConfig(KernelConfig):
    """One forward kernel built on wgmma and TMA for sm_90a.

    A field or legal value is added here and nowhere else: C++ is written from these lines.
    """

    NAME: ClassVar[str] = "sm90_forward"
    FORMER_NAMES: ClassVar[tuple[str, ...]] = ("hopper",)
    PREFIX: ClassVar[str] = "hopper"
    HEADER: ClassVar[str] = "flashsmith/sm90/forward.cuh"
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
        "flashsmith/tile/panel.cuh",
        "flashsmith/tile/ring.cuh",
    )
    CONSTANTS: ClassVar[Mapping[str, int]] = {"kTileSlots": TILE_SLOTS}
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90ForwardConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm90/config_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm90::forward"
    ARGUMENTS: ClassVar[type[Arguments]] = ForwardArguments
    FIXES_REGISTERS: ClassVar[bool] = True
    BUILD_RULES: ClassVar[tuple[Rule, ...]]
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of Q, K, V and O")
    d_head: int = knob((64, 96, 128, 192, 256), "head dimension the kernel is built for")
    n_warpgroups: int = knob((1, 2, 3), "consumer warpgroups; each owns 64 rows of Q")
    B_c: int = knob((64, 80, 96, 112, 128, 144, 160, 176, 192), "rows of K and V of one step")
    kv_stages: int = knob((2, 3, 4), "kv blocks, of K and of V, that may be in flight", "kv_{}")
    q_slots: int = knob(
        (1, 2, 3, 4, 5, 6), "ring of 64-row slots of Q: one a warpgroup, or up to two", "q_{}"
    )
    overlap: bool = flag("overlap", "Q Kᵀ of the next kv block runs during this one's softmax")
    pingpong: bool = flag("pingpong", "warpgroups take turns on the tensor cores")
    early_rescale: bool = flag("early_rescale", "O is rescaled behind the next Q Kᵀ, not after P V")
    early_tests: bool = flag(
        "early_tests", "barriers of the next K and V are tested before they are waited for"
    )
    statistics: Statistics = knob(
        tuple(Statistics), "how row maxima are found", "stats_{}", absent=Statistics.MAX
    )
    rescale_threshold: int = knob(
        (0, 8),
        "powers of two that a row may outgrow its maximum before O is rescaled; 0: always rescale",
        "lazy_{}",
        absent=0,
    )
    half_blocks: bool = flag(
        "halves", "a kv block at the mask's edge by halves: what no row sees is not multiplied"
    )
    own_spans: bool = flag(
        "own_spans",
        "windows: a warpgroup leaves out kv blocks before its own rows' window",
    )
    ascending: Ascending = knob(
        tuple(Ascending),
        "causal: tiles whose keys come from the first on, not from the diagonal",
        "up_{}",
        absent=Ascending.NONE,
    )
    l_by_mma: bool = flag("l_mma", "row sums are a column of P V where no log-sum-exp is asked for")
    cluster: int = knob((1, 2), "ctas that share K and V by multicast", "cluster_{}", absent=1)
    scheduler: Scheduler = knob(
        tuple(Scheduler), "how q tiles come to ctas", "tiles_{}", absent=Scheduler.SINGLE
    )
    late_draw: bool = flag(
        "late_draw", "a tile is drawn when the one before is nearly loaded, not when that begins"
    )
    early_tiles: bool = flag(
        "early_tiles", "the next tile is known and told before the last loads of this one"
    )
    early_q: bool = flag(
        "early_q", "with early_tiles, the next tile's Q is loaded too as far as slots are free"
    )
    told_ahead: int = knob(
        (0, 2, 6),
        "kv blocks of a tile still to be loaded when the next is told and its Q loaded; 0: none",
        "ahead_{}",
        absent=0,
    )
    split_last: bool = flag(
        "split", "tiles that would not fill the last wave, or of few rows, are cut along the keys"
    )
    l2_sections: bool = flag(
        "sections", "causal: the longest tiles of as many heads as L2 holds come first"
    )
    o_staged: bool = flag("o_smem", "O leaves through shared memory and TMA")
    o_halves: bool = flag("o_halves", "O is staged in two rounds, through half the room")
    o_in_q: bool = flag("o_q", "with own_spans, O leaves through the slot of its Q and TMA")
    late_store: bool = flag("late_store", "O leaves behind the next tile's Q Kᵀ")
    l2_hints: bool = flag("hints", "L2 keeps K and V, and lets Q and O go first")
    consumer_registers: int = knob(
        (160, 216, 224, 232, 240), "registers of a consumer thread", "regs_{}_{}"
    )
    producer_registers: int = knob((24, 32, 40, 56), "registers of a producer thread", "regs_{}_{}")

    @property
    def tile_q(self) -> int:
        """Rows of Q that one cta owns."""
        return WARPGROUP_ROWS * self.n_warpgroups

    @property
    def tile_k(self) -> int:
        """Rows of K and V of one step."""
        return self.B_c

    @property
    def threads(self) -> int:
        """The producer is a warpgroup too: registers move between warpgroups only."""
        return WARPGROUP_THREADS * (self.n_warpgroups + 1)

    @property
    def panels(self) -> int:
        """Panels of 64 columns that a row of Q, K, V or O takes in shared memory."""
        return -(-self.d_head // PANEL_COLUMNS)

    @property
    def o_panels(self) -> int:
        """Panels of O that a warpgroup has room to stage at a time."""
        if not self.o_staged:
            return 0
        return -(-self.panels // 2) if self.o_halves else self.panels

    @property
    def barriers(self) -> int:
        """Full and empty of Q, K, V, the tile ring and the tiles drawn for a cluster."""
        return 2 * (self.q_slots + 2 * self.kv_stages + TILE_SLOTS + 1)

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Q ring, K ring, V ring, O of each warpgroup where staged, barriers, tile slots."""
        row = PANEL_ROW_BYTES * self.panels * elem_size // self.dtype.bytes
        q = self.q_slots * WARPGROUP_ROWS * row
        kv = 2 * self.kv_stages * self.B_c * row
        o = self.tile_q * row // self.panels * self.o_panels
        ones = self.B_c * PANEL_ROW_BYTES if self.l_by_mma else 0
        return (
            q
            + kv
            + o
            + ones
            + self.barriers * BARRIER_BYTES
            + (TILE_SLOTS + 1) * TILE_SLOT_BYTES * (2 if self.split_last else 1)
        )

    @property
    def live_registers(self) -> int:
        """Registers a consumer thread holds through the loop: S, P where it is apart, and O."""
        return self.B_c // 2 + (self.B_c // 4 if self.overlap else 0) + self.d_head // 2

    @property
    def register_pool(self) -> int:
        """Registers a thread at launch, times warpgroups: what setmaxnreg may redistribute."""
        at_launch = REGISTERS_PER_SM // self.threads // 8 * 8
        return min(at_launch, 255 // 8 * 8 + 8) * (self.n_warpgroups + 1)

    def refused_build(self, spill_bytes: int, remarks: Sequence[str]) -> Refusal | None:
        """Spills, or products that ptxas runs one after the other, cost a third of the speed."""
        serialised = next((remark for remark in remarks if SERIALISED.search(remark)), None)
        if serialised is not None:
            return Refusal("wgmma_serialised", f"ptxas says {serialised!r}", "lower B_c")
        if spill_bytes:
            return Refusal("spills", f"ptxas spills {spill_bytes} bytes", "lower B_c")
        return None

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """wgmma and setmaxnreg exist on sm_90a alone."""
        return arch_name == "sm_90a"

    def drawback(self, problem: AttentionProblem) -> str:
        """Left edges, scores that change and lengths in memory take registers.

        Lengths in memory are not known beforehand, either.
        """
        if problem.mask.hides_left and self.live_registers > MOST_WITH_LEFT_EDGE:
            return "ptxas spills where wide tiles have a left edge"
        bends = problem.softcap is not None or (problem.alibi and not problem.mask.hides)
        if self.l_by_mma and bends and not (problem.lse or problem.sinks):
            return "ptxas spills where scores change and products add them up"
        if not problem.is_listed:
            return ""
        if self.scheduler is Scheduler.STATIC:
            return "its tiles are dealt out before lengths are known"
        if self.ascending is Ascending.ALL and problem.mask.hides:
            return "ptxas spills where tiles that ascend are listed and masked"
        if self.n_warpgroups > 2 and (problem.mask.hides or problem.page):
            return "ptxas spills where tiles of three warpgroups are listed and masked, or on pages"
        is_full = self.live_registers >= MOST_WITH_LEFT_EDGE
        if problem.mask.hides and is_full and self.early_tests and not self.late_store:
            return "ptxas spills where listed and masked tiles test early and store at once"
        if problem.mask.hides and self.cluster > 1:
            return "ptxas spills where ctas of a cluster have listed and masked tiles"
        return ""

    def depends_on_batch(self, problem: AttentionProblem) -> str:
        """The first tiles of a launch are another part of a larger one."""
        some_ascend = self.ascending is Ascending.FIRST and problem.mask.right is not None
        return "only the first tiles of a launch take their keys from the first on" * some_ascend

    def refused_problem(self, problem: AttentionProblem) -> str:
        """Pages are of sequences that have their lengths in memory, and copied by one cta."""
        if not problem.page:
            return ""
        if problem.sequences or not problem.k_lengths or problem.bias:
            return (
                "these kernels read pages of sequences that have k_lengths, are not packed and "
                "have no bias"
            )
        if self.cluster > 1:
            return "ctas of a cluster do not share pages; take a configuration without cluster"
        return ""

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm90_forward.plan import plan_forward

        return plan_forward(self, problem, sm_count)

    @classmethod
    def autotuning_grid(cls) -> Sequence[KernelConfig]:
        """What is measured by tuning: the named set, which is chosen by hand."""
        from flashsmith.kernels.sm90_forward import sets

        return sets.get_hopper_tuning_configs()

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first."""
        from flashsmith.kernels.sm90_forward import rule

        return rule.candidates(problem, arch)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm90_forward import sets

        return sets.NAMED_SETS


def _blocks_behind(config: Sm90ForwardConfig) -> int:
    """Blocks of keys that the last warpgroup of a tile sees and the first does not, at most."""
    return -(-(config.tile_q - WARPGROUP_ROWS) // config.B_c)


def _spare_registers(config: Sm90ForwardConfig) -> int:
    if not config.overlap:
        return SPARE_REGISTERS_NO_OVERLAP
    return SPARE_REGISTERS[config.n_warpgroups]


Sm90ForwardConfig.BUILD_RULES = (
    Rule(
        "fits_shared_memory",
        lambda c: c.smem_bytes() > MAX_SMEM_BYTES,
        f"the rings take more than the {MAX_SMEM_BYTES:,} bytes of shared memory of a cta",
        "lower B_c, q_slots or kv_stages, or drop o_smem",
    ),
    Rule(
        "fits_registers",
        lambda c: c.live_registers > c.consumer_registers - _spare_registers(c),
        "S, P and O leave ptxas too few of a consumer's registers",
        "lower B_c or raise the first number of regs",
    ),
    Rule(
        "fits_register_pool",
        lambda c: c.n_warpgroups * c.consumer_registers + c.producer_registers > c.register_pool,
        "the warpgroups ask for more registers than the cta was launched with",
        "lower the numbers of regs",
    ),
    Rule(
        "q_slots_hold_a_tile",
        lambda c: not c.n_warpgroups <= c.q_slots <= 2 * c.n_warpgroups,
        "a tile of Q takes one slot a warpgroup, and more than two are never filled",
        "choose q_slots between n_warpgroups and twice that",
    ),
    Rule(
        "pingpong_needs_two",
        lambda c: c.pingpong and c.n_warpgroups < 2,
        "one warpgroup has nobody to take turns with",
        "add a warpgroup or drop pingpong",
    ),
    Rule(
        "cluster_with_pingpong",
        lambda c: c.cluster > 1 and c.pingpong,
        "a warpgroup that waits for its turn keeps K from the other cta of the cluster, which may"
        " have to go first: with a causal mask they can wait for each other for ever",
        "drop pingpong or cluster",
    ),
    Rule(
        "placement_needs_overlap",
        lambda c: (c.early_rescale or c.late_store or c.early_tests) and not c.overlap,
        "without overlap nothing runs behind a Q Kᵀ",
        "add overlap or drop early_rescale, early_tests and late_store",
    ),
    Rule(
        "lazy_needs_threshold",
        lambda c: c.statistics != Statistics.MAX and c.rescale_threshold == 0,
        "VOTE and SUM do not know the row maxima of most kv blocks, so rows need room to grow",
        "add lazy_8 or use MAX",
    ),
    Rule(
        "early_q_needs_a_slot",
        lambda c: c.early_q and (not c.early_tiles or c.q_slots <= c.n_warpgroups),
        "the next tile's Q can only be loaded early where that tile is known and a slot is free",
        "add early_tiles and raise q_slots, or drop early_q",
    ),
    Rule(
        "ahead_needs_slots",
        lambda c: (
            c.told_ahead > 0
            and (
                c.q_slots < 2 * c.n_warpgroups
                or c.early_tiles
                or c.cluster > 1
                or c.scheduler == Scheduler.SINGLE
            )
        ),
        "Q of a whole tile is loaded beside that of the one before, by a cta that draws for itself",
        "use two q_slots a warpgroup and STATIC or DYNAMIC without cluster and early_tiles",
    ),
    Rule(
        "split_needs_ctas_that_stay",
        lambda c: c.split_last and c.scheduler == Scheduler.SINGLE,
        "a cta that has one tile leaves its SM to the next, and waves do not end together",
        "use tiles_STATIC or tiles_DYNAMIC, or drop split",
    ),
    Rule(
        "split_adds_its_own_sums",
        lambda c: c.split_last and c.l_by_mma,
        "parts of a tile bring their row sums, and with those in O ptxas serialises the products",
        "drop l_mma or split",
    ),
    Rule(
        "halves_have_instructions",
        lambda c: c.half_blocks and c.B_c not in (128, 160, 192),
        "half of B_c has to be a width that products are written for: 64, 80 or 96",
        "use B_c 128, 160 or 192, or drop halves",
    ),
    Rule(
        "ascending_leaves_a_stage",
        lambda c: (
            c.ascending != Ascending.NONE
            and (not c.overlap or c.cluster > 1 or c.kv_stages <= _blocks_behind(c))
        ),
        "the first warpgroup to end a tile would wait for the next one while it keeps the stages"
        " that others need for it to come",
        "drop up, or use overlap without cluster and raise kv_stages or B_c",
    ),
    Rule(
        "own_spans_need_overlap",
        lambda c: c.own_spans and (not c.overlap or c.cluster > 1),
        "only the loop with overlap leaves kv blocks to other warpgroups, and ctas of a cluster"
        " wait for each other's",
        "add overlap and drop cluster, or drop own_spans",
    ),
    Rule(
        "o_in_q_needs_own_spans",
        lambda c: c.o_in_q and (not c.own_spans or c.o_staged),
        "only a tile that ends by itself has done with its Q when O is there",
        "add own_spans and drop o_smem, or drop o_q",
    ),
    Rule(
        "mma_sums_need_room",
        lambda c: c.l_by_mma and (c.d_head != 64 or c.statistics != Statistics.SUM),
        "sums by the tensor cores take the place of SUM's, beside the only panel of V",
        "drop l_mma, or use d_head 64 and SUM",
    ),
    Rule(
        "late_draw_needs_a_draw",
        lambda c: c.late_draw and c.scheduler != Scheduler.DYNAMIC,
        "only DYNAMIC draws its tiles",
        "use DYNAMIC or drop late_draw",
    ),
    Rule(
        "o_halves_are_staged",
        lambda c: c.o_halves and (not c.o_staged or c.panels < 2),
        "only an O of two panels or more that is staged can be staged by halves",
        "add o_smem or drop o_halves",
    ),
    Rule(
        "sections_need_order",
        lambda c: c.l2_sections and c.scheduler == Scheduler.STATIC,
        "a static round-robin undoes the order of the sections",
        "use DYNAMIC or SINGLE, or drop sections",
    ),
)
Sm90ForwardConfig.AUTOTUNE_RULES = (
    *Sm90ForwardConfig.BUILD_RULES,
    Rule(
        "wide_head_rescales_early",
        lambda c: c.d_head > 128 and c.overlap and not c.early_rescale,
        "rescaling 96 or more registers of O on the critical path cost 8 % (H200, 2026-11)",
        "add early_rescale",
    ),
    Rule(
        "early_tiles_for_clusters",
        lambda c: c.early_tiles and c.cluster == 1 and not c.early_q,
        "a cta alone has the counter's answer in time (H200, 2026-11: 0 to -1 %; cluster_2 +1 %)",
        "add early_q, drop early_tiles or use cluster_2",
    ),
)
