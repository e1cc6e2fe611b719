"""The named set of the backward kernels on wgmma: what the rule chooses from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashsmith.base.dtypes import DType
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig

_ALL = "turns+fold+early_dv+late_fences"
# Of dS as many tiles as shared memory holds.
_BEGINS = {64: f"ds_2+{_ALL}", 128: f"ds_3+{_ALL}", 256: "ds_2"}
FULL, HIDING, LONG = "full", "hiding", "long"  # no mask; one; no mask, many keys
FREE_FULL, FREE_HIDING = "free full", "free hiding"  # sums in any order
SECTIONS, ONE_BY_ONE = "sections", "one by one"  # also for lists of packed sequences
# The same of heads that share K and V.
GROUPS = {FULL: "full groups", LONG: "long groups", HIDING: "hiding groups"}
_QUICK = "rounds_dq+early_start"
_TWICE = "two_passes+early_release+v_halves"
_PARTS = {  # MB of a part: groups.jsonl
    64: {FULL: 80, HIDING: 10},
    128: {FULL: 20, LONG: 20, HIDING: 10},
    256: {FULL: 80, HIDING: 20},
}
# The fastest of candidates, wide, ends and loaded.jsonl in benchmarks/results/h200_backward (H200,
# 2026-11, BF16). Wide heads with sums are slower than two passes: in order they are for lists.
_ENDS = {
    64: {
        FULL: f"adders_3+early_polls+section_20+heads_inner+{_QUICK}",
        HIDING: f"masks_first+adders_3+early_polls+rising+section_20+heads_inner+{_QUICK}",
        FREE_FULL: "unordered+heads_inner+early_start+staggered",
        FREE_HIDING: "dq_red+unordered+masks_first+short_last+section_20+heads_inner+early_start",
        SECTIONS: "sections",
        ONE_BY_ONE: "",
    },
    128: {
        FULL: f"adders_3+section_20+heads_inner+{_QUICK}",
        LONG: "adders_3+section_40+heads_inner",
        HIDING: "masks_first+adders_3+early_polls+rising+section_10",
        FREE_FULL: "unordered+heads_inner+early_start+staggered",
        FREE_HIDING: "unordered+masks_first+short_last+section_40+heads_inner+early_start",
        SECTIONS: "sections",
        ONE_BY_ONE: "",
    },
    256: {
        FULL: f"{_TWICE}+heads_inner+early_start",
        HIDING: f"masks_first+{_TWICE}+short_last+section_40+heads_inner+early_start",
        FREE_FULL: "dq_red+unordered+heads_inner",
        FREE_HIDING: "dq_red+unordered+masks_first+short_last+section_40+heads_inner",
        SECTIONS: "dq_red+sections",
        ONE_BY_ONE: "dq_red",
    },
}


def configs_for(dtype: DType, width: int) -> dict[str, Sm90BackwardConfig]:
    """The configurations of one element type and width, by what they are for."""
    begin = f"hopper_bwd({dtype.name}, {width}): {_BEGINS[width]}"
    found = {
        use: parse_short_form(f"{begin}+{end}".rstrip("+"), Sm90BackwardConfig)
        for use, end in _ENDS[width].items()
    }
    for use, megabytes in _PARTS[width].items():
        of_groups = replace(found[use], part_mb=megabytes)
        if of_groups.short_last:  # all heads of a part together are faster (groups.jsonl)
            of_groups = replace(of_groups, short_last=False, section_mb=80)
        found[GROUPS[use]] = of_groups
    return found


def capped_configs_for(dtype: DType, width: int) -> dict[str, Sm90BackwardConfig]:
    """Those for scores with a cap, which take no fold; none where they are refused without it."""
    configs = {use: replace(c, fold=False) for use, c in configs_for(dtype, width).items()}
    return {use: config for use, config in configs.items() if config.refusal() is None}


def hopper_backward_configs() -> list[Sm90BackwardConfig]:
    """All of them."""
    dtypes = (DType.BF16, DType.FP16)
    return [c for dtype in dtypes for width in _ENDS for c in configs_for(dtype, width).values()]


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {
    "hopper-bwd": hopper_backward_configs
}
