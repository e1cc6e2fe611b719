"""The words that may stand behind an opcode; a word that PTX does not have is a mistake."""

from __future__ import annotations

import re
from functools import lru_cache

from flashsmith.emulator.ptx.types import SIZES

_LISTED = """
    global shared shared::cta shared::cluster local param param::entry param::func const
    v2 v4 v8 ca cg cs lu cv wb wt nc
    weak volatile relaxed acquire release acq_rel sc mmio cta cluster gpu sys gl
    rn rz rm rp rna rni rzi rmi rpi rs ftz sat satfinite approx full wide lo hi cc noftz oob
    NaN xorsign abs relu pack to
    eq ne lt le gt ge ls hs equ neu ltu leu gtu geu num nan and or xor not
    wrap clamp f4e b4e rc8 ecl ecr rc16 shiftamt l r
    sync up down bfly idx all any uni ballot add min max inc dec cas exch popc
    arrive red warp aligned wait vote result
    init inval expect_tx complete_tx arrive_drop test_wait try_wait pending_count noComplete parity
    async bulk tensor tile im2col im2col_no_offs bulk_group commit_group wait_group wait_all read
    multicast::cluster reduce prefetch cta_mask mbarrier::complete_tx::bytes mbarrier::arrive::one
    mbarrier ignore_oob
    proxy alias mbarrier_init tensormap::generic async::generic tensormap
    mma_async fence sp row col trans x1 x2 x4
    fractional range cvt evict_first evict_last launch_dependents L2
    tf32 e4m3 e5m2 e4m3x2 e5m2x2 b1 u4 s4 u16x2 s16x2
    finite infinite number notanumber normal subnormal
"""
_WORDS = frozenset(SIZES) | frozenset(_LISTED.split())
_SHAPES = re.compile(
    r"m\d+n\d+(k\d+)?$|[1-5]d$|L[12]::\w+$|sync_restrict::shared::(cta|cluster)$|level::\w+$"
)


@lru_cache(maxsize=4096)
def unknown_modifier(modifiers: tuple[str, ...]) -> str | None:
    """The first word that no instruction has, or None."""
    return next((m for m in modifiers if m not in _WORDS and not _SHAPES.match(m)), None)
