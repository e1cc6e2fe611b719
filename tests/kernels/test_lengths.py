"""Lengths of padded batches in both forward families: read on the device, used, and clamped."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.check import cases, verdict
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.verdict import check_case
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.tile_list.sizes import most_tiles
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.runtime.run import run_arrays

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
WGMMA = f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40"
BOTH = pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
# Four blocks of keys of either family, ragged tails, an odd number of heads that share one.
PADDED = AttentionProblem(3, 3, 1, 139, 390, 64, lse=True, causal=True)
ALL = {"q_lengths": True, "k_lengths": True, "k_starts": True}


def problem_of(config, **facts):
    return replace(PADDED, **{"dtype": config.dtype, "d_head": config.d_head, **facts})


def require_right(device, text, placement="padded", **facts):
    config = parse_config(text)
    found = check_case(device, config, Case("lengths", problem_of(config, **facts), 1.0, placement))
    found.require_ok(f"{text} {facts}")


@pytest.mark.parametrize("names", [*([name] for name in ALL), list(ALL)], ids=" ".join)
@BOTH
def test_each_length_is_computed_by_both_families(text, names, device):
    require_right(device, text, **dict.fromkeys(names, True))


@BOTH
def test_wild_lengths_end_inside_the_tensor(text, device, monkeypatch):
    """Between canaries: no element outside is read or written, every row inside is written."""
    wild = {
        "q_lengths": [-7, 2**31 - 1, 140],
        "k_lengths": [2**31 - 1, -(2**31), 391],
        "k_starts": [-1, 5, 2**31 - 1],
    }
    drawn = cases.drawn_table

    def table(role, problem, draw):
        if role.name in wild:
            return np.array(wild[role.name], np.int32).view(np.uint32)
        return drawn(role, problem, draw)

    monkeypatch.setattr(cases, "drawn_table", table)
    config = parse_config(text)
    case = Case("wild", problem_of(config, heads=1, **ALL), placement="padded")
    check_case(device, config, case).require_ok(text)


@BOTH
def test_what_is_padding_is_not_read(text, device):
    """NaN in K and V before and behind a sequence's keys, and in its rows behind the used ones."""
    config = parse_config(text)
    problem = problem_of(config, **ALL)
    made = dict(inputs_of(Case("padding", problem)))
    used, starts, ends = [100, 139, 64], [0, 70, 129], [390, 258, 131]
    for name, numbers in (("q_lengths", used), ("k_starts", starts), ("k_lengths", ends)):
        made[name] = np.array(numbers, np.int32).view(np.uint32)
    for name in "qkv":
        made[name] = made[name].copy()
    for sequence in range(3):
        made["q"][sequence, used[sequence] :] = 0x7FC0
        for name in "kv":
            made[name][sequence, : starts[sequence]] = 0x7FC0
            made[name][sequence, ends[sequence] :] = 0x7FC0
    found = run_arrays(device, config, problem, made)
    lse = found["lse"].view(np.float32)
    for sequence in range(3):
        rows, rest = slice(0, used[sequence]), slice(used[sequence], None)
        assert not np.isnan(lse[sequence, :, rows]).any()
        assert not ((found["o"][sequence, rows] & 0x7FFF) > 0x7F80).any()
        assert not found["o"][sequence, rest].any()
        assert np.isneginf(lse[sequence, :, rest]).all()


def off_by_one(bits):
    return (bits.view(np.int32) - 1).view(np.uint32)


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, off_by_one) for name in ALL] + [("k_starts", np.zeros_like)],
    ids=[*(f"{name} off by one" for name in ALL), "padding ignored"],
)
@BOTH
def test_wrong_lengths_are_noticed(text, name, change, device, monkeypatch):
    config = parse_config(text)
    case = Case("mutant", problem_of(config, heads=1, q_len=77, **ALL))
    # The last row and the first and last key of each sequence count, whatever else is drawn.
    tables = {"q_lengths": [40, 76, 77], "k_starts": [3, 70, 129], "k_lengths": [390, 258, 300]}
    drawn = cases.drawn_table

    def table(role, problem, draw):
        if role.name in tables:
            return np.array(tables[role.name], np.int32).view(np.uint32)
        return drawn(role, problem, draw)

    monkeypatch.setattr(cases, "drawn_table", table)

    def inputs(of):
        return {n: change(bits) if n == name else bits for n, bits in inputs_of(of).items()}

    monkeypatch.setattr(verdict, "inputs_of", inputs)
    assert not check_case(device, config, case).ok


# What a problem is


def test_the_truth_is_that_of_each_sequence_alone():
    """Keys are those from k_starts to k_lengths, as flash-attn counts leftpad_k and seqused_k."""
    problem = replace(PADDED, **ALL)
    draw = np.random.default_rng(3)
    inputs = {
        "q": draw.standard_normal((3, 139, 3, 64)),
        "k": draw.standard_normal((3, 390, 1, 64)),
        "v": draw.standard_normal((3, 390, 1, 64)),
        "q_lengths": np.array([139, 20, 0]),
        "k_lengths": np.array([390, 200, 100]),
        "k_starts": np.array([30, 0, 7]),
    }
    found = reference(problem, inputs)
    for i, (rows, first, end) in enumerate([(139, 30, 390), (20, 0, 200), (0, 7, 100)]):
        own = {
            "q": inputs["q"][i : i + 1, :rows],
            "k": inputs["k"][i : i + 1, first:end],
            "v": inputs["v"][i : i + 1, first:end],
        }
        alone = replace(PADDED, batch=1, q_len=rows, k_len=end - first)
        one = reference(alone, own)
        np.testing.assert_array_equal(found["o"][i : i + 1, :rows], one["o"])
        np.testing.assert_array_equal(found["lse"][i : i + 1, :, :rows], one["lse"])
        assert not found["o"][i, rows:].any()
        assert np.isneginf(found["lse"][i, :, rows:]).all()


def test_one_kernel_serves_every_kind_of_lengths_of_a_batch_and_no_other():
    config = parse_config(WGMMA)
    dense = needs_of(config, problem_of(config))
    (found,) = {needs_of(config, problem_of(config, **{name: True})) for name in ALL} - {dense}
    assert "k_lengths" in found
    assert not found.covers(dense)
    packed = problem_of(config, batch=1, sequences=3)
    assert needs_of(config, packed) == needs_of(config, replace(packed, **ALL))


def test_the_host_knows_how_long_the_list_is_at_most():
    for rows in (1, 63, 64, 65, 300):
        for used in range(rows + 1):
            needed = 5 * (-(-used // 64) + -(-(rows - used) // 64))
            problem = replace(PADDED, batch=5, q_len=rows, q_lengths=True)
            assert needed <= most_tiles(problem, 64)


def test_many_rows_with_lengths_are_of_forward_kernels_and_few_of_the_decode_kernel():
    many, arch = replace(PADDED, q_len=500, k_len=500, k_lengths=True), get_arch("sm_90a")
    assert not Sm80DecodeConfig.candidates(many, arch)
    assert Sm80DecodeConfig.candidates(replace(many, q_len=4), arch)


def test_what_does_not_go_together_is_refused_by_name():
    with pytest.raises(Unsupported, match="no kernel that reads pages takes either"):
        replace(PADDED, k_lengths=True, k_starts=True, page=16, pages=99)
    with pytest.raises(Unsupported, match="bias and k_starts are both given"):
        replace(PADDED, k_starts=True, bias="bool")
    config = parse_config("decode(BF16, 64, 16, 64, 4): slice_128+most_8+stages_2+ctas_1")
    with pytest.raises(Unsupported, match="do not compute k_starts"):
        plan(config, replace(PADDED, k_starts=True), sm_count=132)
    with pytest.raises(ArgumentError, match="k_lengths False and page 16"):
        replace(PADDED, batch=1, sequences=3, page=16, pages=99)
