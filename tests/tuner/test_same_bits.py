"""Numeric classes are as docs/tuning.md says: which knobs change bits, and which never do."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.plans import plan, sum_order
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.kernels.sm90_forward import plan as hopper
from flashsmith.kernels.sm90_forward.config import Ascending
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.tuner.run.fingerprint import fingerprint_of, fingerprint_problem
from flashsmith.tuner.store.exchange import read_lines
from flashsmith.tuner.store.outcome import Timed

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "tune.jsonl"
SM_COUNT = 132  # of an H200
PROBLEM = AttentionProblem(1, 3, 3, 512, 512, 128, DType.BF16)
# Steps of 64 columns, for 128 do not fit into registers, but not in the order of B_c = 64.
SPLIT = "(BF16, 128, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
# Everything that only moves data: plain copies, bank conflicts, a late copy, more warps.
MOVES = (
    "(BF16, 128, 64, 64, 4): load_0_0_0_tiles+opt_softmax",
    "(BF16, 128, 64, 64, 4): async+load_2_2_2_tiles+opt_softmax",
    "(BF16, 128, 128, 64, 8): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)


def what_decides(config):
    """The knobs that docs/tuning.md lists as changing bits."""
    if isinstance(config, FlashForwardKernelConfig):
        return config.dtype, config.B_c, config.step_cols, config.optimized_softmax
    names = ("dtype", "n_warpgroups", "B_c", "statistics", "rescale_threshold", "l_by_mma")
    return tuple(getattr(config, name) for name in (*names, "ascending", "split_last"))


def classes_of(device, configs):
    """The fingerprints of configurations, by what decides about them."""
    fixed = fingerprint_problem(PROBLEM)
    traits = {c: plan(c, fixed, sm_count=device.sm_count)[0].needs for c in configs}
    if not device.runs_ptx:  # machine code takes nearly half of a compile
        compile_many([CompileJob(c, traits[c], device.arch) for c in configs])
    classes = defaultdict(set)
    for config in configs:
        classes[what_decides(config)].add(fingerprint_of(device, config, PROBLEM))
    return classes


def competing(key):
    return [c for c in resolve_key(key) if c.dtype is DType.BF16 and c.d_head == 128]


def test_the_tuning_set_has_the_classes_that_the_docs_state(device):
    configs = competing("tune")
    if device.runs_ptx:  # every second pair of a plain one and an optimised one
        configs = [config for n, config in enumerate(configs) if n // 2 % 2 == 0]
    configs += [parse_config(text) for text in (SPLIT, *MOVES)]
    classes = classes_of(device, configs)
    # B_c of 32 and 64, each plain and optimised; and SPLIT.
    assert len(classes) == 5
    assert all(len(bits) == 1 for bits in classes.values())
    assert len(set.union(*classes.values())) == 5


def test_configurations_that_agree_in_the_deciding_knobs_have_equal_bits(device):
    if not device.arch.startswith("sm_90"):
        pytest.skip("kernels of this set run on sm_90a")
    classes = classes_of(device, competing("hopper"))
    assert len(classes) > 1
    assert all(len(bits) == 1 for bits in classes.values())


def test_on_the_h200_too_the_deciding_knobs_decided():
    classes = defaultdict(set)
    for m in read_lines(RECORD):
        problem, config = m.key.problem, parse_config(m.key.config)
        if isinstance(m.outcome, Timed) and m.outcome.fingerprint:
            order = sum_order(plan(config, problem, sm_count=SM_COUNT))
            where = problem.d_head, problem.causal, what_decides(config), order
            classes[where].add(m.outcome.fingerprint)
    assert len(classes) > 20
    assert all(len(bits) == 1 for bits in classes.values())


def test_what_a_launch_does_to_the_order_of_sums_is_in_its_class(monkeypatch):
    """A small device takes more tiles than it has SMs: it splits some, or only some ascend."""
    monkeypatch.setattr(hopper, "LEAST_SAVED_KEYS", 200)  # but of the fixed problem, not one
    device = EmulatedDevice("sm_90a", sm_count=4)
    plain = parse_config(
        "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+early_rescale+stats_SUM+lazy_8+tiles_DYNAMIC"
        "+sections+o_smem+regs_232_40"
    )
    five = AttentionProblem(1, 5, 5, 128, 512, 64, DType.BF16)
    four = replace(five, heads=4, kv_heads=4)
    parts = plain.replace(split_last=True)
    bits = {(c, p): fingerprint_of(device, c, p) for c in (plain, parts) for p in (five, four)}
    assert bits[parts, five] != bits[plain, five]
    assert bits[parts, four] == bits[plain, four] == bits[plain, five]
    first = plain.replace(ascending=Ascending.FIRST)
    masked = replace(five, causal=True), replace(four, causal=True)
    assert fingerprint_of(device, first, masked[0]) != fingerprint_of(device, first, masked[1])
