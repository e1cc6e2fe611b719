"""Faults that quick cases find and plainer ones, of one sequence and usual scores, would miss."""

import shutil
from dataclasses import replace

import pytest

from flashsmith.check.cases import quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile import compiler
from flashsmith.compile.header_closure import INCLUDE_ROOT, closure_hash
from flashsmith.kernels import parse_config
from flashsmith.runtime.emulated import EmulatedDevice

CONFIG = parse_config("(FP16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax")
# What goes wrong: header, the text that is right, and the text with the fault.
FAULTS = {
    # Several sequences.
    "rows of all tensors come from the first sequence": (
        "sm80/gmem_to_smem.cuh",
        "batch * tensor.batch_stride + head",
        "0 * batch * tensor.batch_stride + head",
    ),
    "keys come from the first sequence": (
        "sm80/forward.cuh",
        "k_stream_(args.k, tile.batch, kv_head()",
        "k_stream_(args.k, 0, kv_head()",
    ),
    "values come from the first sequence": (
        "sm80/forward.cuh",
        "v_stream_(args.v, tile.batch, kv_head()",
        "v_stream_(args.v, 0, kv_head()",
    ),
    "the output goes to the first sequence": (
        "sm80/store_output.cuh",
        "tile.batch * args.o.batch_stride +",
        "0 * tile.batch * args.o.batch_stride +",
    ),
    "the log-sum-exp goes to the first sequence": (
        "sm80/store_output.cuh",
        "static_cast<i64>(tile.batch) * args.heads + tile.head",
        "static_cast<i64>(tile.head)",
    ),
    "heads of later sequences are counted on": (
        "sm80/tile_order.cuh",
        "static_cast<int>(head - batch * args.heads)",
        "static_cast<int>(head)",
    ),
    # Rows that see no key.
    "a row without keys is divided by its sum": (
        "sm80/store_output.cuh",
        "sum == 0.0f ? 0.0f : reciprocal",
        "reciprocal",
    ),
    "a row without keys sees the first": (
        "attention/mask.cuh",
        "return seen < sequence.k_len ? seen : sequence.k_len;",
        "return seen < 1 ? 1 : seen < sequence.k_len ? seen : sequence.k_len;",
    ),
    # One key in the last block.
    "a last block of one key is left out": (
        "attention/mask.cuh",
        "Span span{0, (seen_by_last + kBlock - 1) / kBlock,",
        "Span span{0, (seen_by_last + kBlock - 2) / kBlock,",
    ),
    # Large scores.
    "a row that outgrows its reference keeps its sum": (
        "sm80/softmax.cuh",
        "rows.sum[i][e] = ptx::mul_rn(rows.sum[i][e], factor);",
        "",
    ),
    "a row that outgrows its reference keeps its output": (
        "sm80/softmax.cuh",
        "o.at[i][n][2 * half] = ptx::mul_rn(o.at[i][n][2 * half], factor);",
        "",
    ),
    "weights may outgrow their element type": (
        "sm80/softmax.cuh",
        "kRescaleThreshold = 8.0f",
        "kRescaleThreshold = 80.0f",
    ),
}


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """Puts a fault into a copy of the headers that kernels are then compiled from."""

    def plant(header, right, wrong):
        root = tmp_path / "include"
        shutil.copytree(INCLUDE_ROOT, root)
        path = root / "flashsmith" / header
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1, f"{header} has no {right!r} any more"
        path.write_text(text.replace(right, wrong), encoding="utf-8")
        monkeypatch.setattr(compiler, "INCLUDE_ROOT", root)
        monkeypatch.setattr(compiler, "closure_hash", lambda unit: closure_hash(unit, root))

    return plant


def plain_cases():
    """One sequence, tails of several keys, usual scores; every row of the causal one sees a key."""
    ragged, causal, _ = quick_cases(CONFIG)
    tail = replace(ragged.problem, k_len=3 * CONFIG.tile_k + 5)
    return replace(ragged, problem=tail), causal


def is_right(case):
    return check_case(EmulatedDevice(), CONFIG, case).ok


def test_there_are_twelve_and_without_one_all_cases_pass():
    assert len(FAULTS) == 12
    assert all(is_right(case) for case in (*quick_cases(CONFIG), *plain_cases()))


@pytest.mark.parametrize("fault", FAULTS)
def test_quick_cases_find_a_fault_that_plainer_ones_miss(planted, fault):
    planted(*FAULTS[fault])
    assert all(is_right(case) for case in plain_cases())
    assert not all(is_right(case) for case in reversed(quick_cases(CONFIG)))
