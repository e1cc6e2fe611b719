"""A bias of the caller's in both forward families: kinds, strides, and rows that see nothing."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.check import verdict
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.arguments import ScoresArg
from flashsmith.kernels.launch import scores_arg
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.kernels.sm80_forward import plan as sm80_plan
from flashsmith.kernels.sm90_forward import plan as sm90_plan
from flashsmith.kernels.sm90_forward.rule import candidates
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
WGMMA = f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40"
BOTH = pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
# Three blocks of keys and more, a ragged tail, an odd number of heads that share one of keys.
DENSE = AttentionProblem(1, 3, 1, 139, 390, 64, lse=True)
PLACED = {"bool": "packed", "same": "padded", "float32": "transposed"}


def problem_of(config, **facts):
    return replace(DENSE, dtype=config.dtype, d_head=config.d_head, **facts)


def checked(device, text, placement="contiguous", gain=1.0, **facts):
    config = parse_config(text)
    case = Case("bias", problem_of(config, **facts), placement=placement, gain=gain)
    return check_case(device, config, case)


@pytest.mark.parametrize("kind", PLACED)
@BOTH
def test_every_kind_is_computed_by_both_families(text, kind, device):
    checked(device, text, bias=kind).require_ok(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [*((MMA, kind) for kind in PLACED), (WGMMA, "same")],
    ids=["mma bool", "mma same", "mma float32", "wgmma same"],
)
def test_keys_are_read_one_by_one_at_other_strides(text, kind, device):
    placement = PLACED[kind]
    rows = 389 if placement == "packed" else 139
    checked(device, text, placement, bias=kind, q_len=rows, k_len=389).require_ok(text)


def with_bias(monkeypatch, change):
    """Gives kernels another bias than the one that the truth is computed from."""

    def inputs(case):
        made = inputs_of(case)
        return {**made, "bias": change(made["bias"])}

    monkeypatch.setattr(verdict, "inputs_of", inputs)


BIAS_FAULTS = {
    "another head's": lambda bias: np.roll(bias, 1, axis=1),
    "a row off by one": lambda bias: np.roll(bias, 1, axis=2),
    "a key off by one": lambda bias: np.roll(bias, 1, axis=3),
    "inverted": lambda bias: 1 - bias,
}


@pytest.mark.parametrize("fault", BIAS_FAULTS)
def test_a_bias_that_is_not_the_given_one_is_noticed(fault, device, monkeypatch):
    with_bias(monkeypatch, BIAS_FAULTS[fault])
    for text in (MMA, WGMMA):
        # So many keys that some blocks of a head are seen whatever is drawn.
        assert not checked(device, text, bias="bool", q_len=77, k_len=642).ok


@pytest.mark.parametrize("name", ["batch_stride", "seq_stride", "head_stride", "key_stride"])
def test_a_stride_that_is_ignored_is_noticed(name, device, monkeypatch):
    def ignoring(launch, call):
        given = scores_arg(launch, call)
        kept = {n: getattr(given, n) for n in ScoresArg.__dataclass_fields__}
        return ScoresArg(**{**kept, name: 1 if name == "key_stride" else 0})

    facts = {"bias": "same", "batch": 2, "q_len": 77, "k_len": 257}
    placement = "padded" if name in ("batch_stride", "seq_stride") else "transposed"
    assert checked(device, MMA, placement, **facts).ok
    monkeypatch.setattr(sm80_plan, "scores_arg", ignoring)
    monkeypatch.setattr(sm90_plan, "scores_arg", ignoring)
    for text in (MMA, WGMMA):
        assert not checked(device, text, placement, **facts).ok


@BOTH
def test_rows_that_see_nothing_are_zero_and_others_are_not(text, device):
    """Whether a key is hidden by False, by -inf or by the most negative number of a type."""
    config = parse_config(text)
    problem = problem_of(config, bias="same", q_len=139, k_len=390)
    made = dict(inputs_of(Case("unseen", problem)))
    numbers = np.zeros((1, 3, 139, 390), np.float32)
    numbers[:, :, 3] = -np.inf
    numbers[:, :, 4] = -3e38
    numbers[:, :, 5, ::2] = -np.inf
    numbers[:, :, 5, 1::2] = -3e38
    numbers[:, :, 6, :389] = -np.inf  # all but the last key, which comes first
    numbers[:, :, 7, 1:] = -np.inf  # all but the first
    made["bias"] = to_bits(numbers, DType.BF16)
    found = run_arrays(device, config, problem, made)
    o, lse = from_bits(found["o"], config.dtype), found["lse"].view(np.float32)
    assert not o[:, 3:6].any()
    assert np.isneginf(lse[:, :, 3:6]).all()
    v = from_bits(made["v"], config.dtype)
    np.testing.assert_array_equal(o[0, 6], np.repeat(v[0, 389], 3, axis=0))
    np.testing.assert_array_equal(o[0, 7], np.repeat(v[0, 0], 3, axis=0))
    assert np.isfinite(lse[:, :, 6:]).all()


def test_the_truth_is_torchs():
    torch = pytest.importorskip("torch")
    problem = AttentionProblem(2, 4, 2, 9, 13, 16, DType.FP16, bias="float32", layout="bhsd")
    rng = np.random.default_rng(7)
    q = rng.standard_normal((2, 4, 9, 16))
    k, v = (rng.standard_normal((2, 2, 13, 16)) for _ in range(2))
    bias = rng.standard_normal((2, 4, 9, 13))
    bias[rng.random(bias.shape) < 0.3] = -np.inf
    given = [torch.from_numpy(x) for x in (q, k, v, bias)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *given[:3], attn_mask=given[3], enable_gqa=True
    )
    found = reference(problem, {"q": q, "k": k, "v": v, "bias": bias})
    np.testing.assert_allclose(found["o"], wanted.numpy(), atol=1e-12)
    seen = reference(
        replace(problem, bias="bool"), {"q": q, "k": k, "v": v, "bias": np.isfinite(bias)}
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *given[:3], attn_mask=given[3].isfinite(), enable_gqa=True
    )
    np.testing.assert_allclose(seen["o"], wanted.numpy(), atol=1e-12)


def test_a_kernel_is_compiled_for_the_kind_that_it_reads():
    config = parse_config(MMA)
    kinds = {kind: needs_of(config, problem_of(config, bias=kind)) for kind in PLACED}
    for kind, needs in kinds.items():
        assert f"bias_{kind}" in needs
        assert not any(needs.covers(other) for name, other in kinds.items() if name != kind)
    assert not any("bias" in name for name in needs_of(config, problem_of(config)))


@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
def test_the_rule_offers_kernels_with_registers_for_a_bias(d_head):
    arch = get_arch("sm_90a")
    problem = replace(DENSE, q_len=4096, d_head=d_head, bias="same")
    offered = candidates(problem, arch)
    assert offered[0].n_warpgroups == 2
    assert all(config.consumer_registers > 160 for config in offered)
    for config in offered:
        config.require_buildable(arch)


@pytest.mark.parametrize("count", [2, 8])
def test_keys_are_read_at_once_only_where_all_of_them_are_aligned(count):
    first = 2 * count
    assert ScoresArg(first, 8, 16, 0).lie_by(count, 2, 64)
    assert not ScoresArg(first + 2, 8, 16, 0).lie_by(count, 2, 64)
    assert not ScoresArg(first, 8, 15, 0).lie_by(count, 2, 64)
    assert not ScoresArg(first, 8, 16, 0).lie_by(count, 2, 64 + count // 2)
    assert not ScoresArg(first, 8, 16, 0, 2).lie_by(count, 2, 64)


def test_a_bias_in_chunks_takes_a_quarter_of_the_requests_for_memory():
    config = parse_config(WGMMA)
    requests = {}
    for keys in ("", "chunks"):
        device = EmulatedDevice(sm_count=1, options=EmulatorOptions(counters=True))
        problem = problem_of(config, bias="same", bias_keys=keys, batch=1, q_len=130, k_len=264)
        check_case(device, config, Case("chunks", problem)).require_ok("chunks")
        requests[keys] = sum(device.report().counters.requests.values())
    lines = 12 * 3 * 3 * 2  # warps that have rows, heads, kv blocks, rows of a lane
    assert requests[""] - requests["chunks"] == lines * (16 - 4)


def test_what_does_not_lie_in_pairs_is_not_read_by_pairs(device):
    config = parse_config(MMA)
    case = Case("bias", problem_of(config, bias="same"), placement="transposed")
    with pytest.raises(ArgumentError, match="lie side by side at multiples of 2; say bias_keys"):
        check_case(device, config, case)


def test_kernels_without_a_bias_say_so():
    for text in (
        "hopper_bwd(BF16, 64): ds_2+turns+early_dv",
        "decode(BF16, 64, 16, 64, 4): slice_128+most_8+stages_2+ctas_1",
    ):
        config = parse_config(text)
        problem = replace(DENSE, lse=False, operation=config.OPERATION, bias="bool")
        with pytest.raises(Unsupported, match="do not compute bias"):
            plan(config, problem, sm_count=132)
