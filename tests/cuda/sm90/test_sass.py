"""Machine code of the Hopper kernels: no spills, no serialised wgmma, descriptors stay uniform."""

import pytest
from wgmma_loop import wgmma_faults, wgmma_loop

from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import quick_cases
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.sass import disassemble
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.problem.needs import Needs

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

# 64 x 96 at d_head 128 with three warpgroups: more live registers than the formula lets pass.
CROWDED = (
    "hopper(BF16, 128, 3, 96): kv_2+q_3+overlap+early_rescale+stats_VOTE+lazy_8+o_smem+regs_160_32"
)


def main_kernels():
    """In turn full and causal: those that the tests of results compile too."""
    found = enumerate(get_kernel_configs("hopper"))
    return [
        (config, needs_of(config, quick_cases(config)[n % 2].problem))
        for n, config in found
        if config.dtype.name == "BF16"
    ]


def narrow_backward_configurations():
    """Those of groups differ in their plans alone."""
    return [c for c in get_kernel_configs("hopper-bwd") if c.d_head <= 128 and not c.part_mb]


@pytest.mark.parametrize(("config", "needs"), main_kernels(), ids=str)
def test_the_loop_keeps_descriptors_in_uniform_registers(config, needs):
    kernel = compile_kernel(config, needs, "sm_90a")
    assert kernel.resources.spill_bytes == 0
    sass = disassemble(kernel.cubin)
    assert wgmma_faults(sass) == []
    loop = wgmma_loop(sass)
    products = sum(i.opcode.startswith("HGMMA") for i in loop)
    assert products == config.d_head // 16 + config.B_c // 16


NEEDS = [Needs(), Needs(("causal", "ragged_k"))]
# One of both each, in turn.
BACKWARD = [(c, NEEDS[n % 2]) for n, c in enumerate(narrow_backward_configurations()[:12])]


@pytest.mark.parametrize(("config", "needs"), BACKWARD, ids=str)
def test_a_backward_step_is_one_loop_of_all_products_and_does_not_spill(config, needs):
    kernel = compile_kernel(config.tiles, needs, "sm_90a")
    assert kernel.resources.spill_bytes == 0
    sass = disassemble(kernel.cubin)
    products = [i for i in wgmma_loop(sass) if i.opcode.startswith("HGMMA")]
    scores, rows = config.d_head // 16 + 1, config.tile_q // 16  # steps, one of them the fold
    assert len(products) == 2 * scores + 2 * rows + 8
    if config.d_head == 128 and not len(needs):
        assert wgmma_faults(sass) == []


SCORES, ROWS = 256 // 16, 64 // 16  # steps of S or dP, and of what is summed up over 64 rows


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("hopper_bwd_tiles(BF16, 256): ds_2+dq_red", SCORES + ROWS + 2 * ROWS),  # two pieces of dQ
        ("hopper_bwd_tiles(BF16, 256): ds_2+masks_first+two_passes+short_last", SCORES + ROWS),
        ("hopper_bwd_queries(BF16, 256)", 2 * SCORES + ROWS),
    ],
)
def test_a_step_of_wide_heads_is_one_loop_a_warpgroup_without_spills(text, steps):
    kernel = compile_kernel(parse_config(text), Needs(("causal", "ragged_k")), "sm_90a")
    assert kernel.resources.spill_bytes == 0
    sass = disassemble(kernel.cubin)
    products = [i for i in wgmma_loop(sass) if i.opcode.startswith("HGMMA")]
    assert len(products) == steps
    assert not any("BRA.DIV" in fault for fault in wgmma_faults(sass))


def test_moves_between_products_and_divergent_branches_are_found():
    sass = """
        /*0000*/                   BRA.DIV UR4, `(.L_x_9) ;
.L_x_1:
        /*0010*/                   HGMMA.64x80x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0018*/                   BRA.DIV UR4, `(.L_x_9) ;
        /*0020*/                   R2UR UR8, R4 ;
        /*0030*/                   HGMMA.64x80x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0040*/                   R2UR UR9, R4 ;
        /*0050*/              @!P0 BRA `(.L_x_1) ;
    """
    assert wgmma_faults(sass) == ["BRA.DIV at 0x18", "R2UR at 0x20 between products"]
    assert [i.address for i in wgmma_loop(sass)] == [16, 24, 32, 48, 64, 80]


def test_a_build_with_serialised_products_is_refused_by_name():
    config = parse_config(CROWDED)
    assert config.refusal() is not None
    with pytest.raises(Unsupported, match=r"96.*C7512.*lower B_c"):
        compile_kernel(config, Needs(("causal", "ragged_q", "ragged_k", "lse")), "sm_90a")


def test_a_build_that_spills_is_refused():
    config = main_kernels()[0][0]
    assert config.refused_build(0, ()) is None
    assert config.refused_build(4, ()).rule == "spills"
    assert config.refused_build(0, ("ptxas info : (C7515) …",)).rule == "wgmma_serialised"
    assert config.refused_build(0, ("ptxas info : (C7508) …",)) is None
