"""Chunks on wgmma: q tiles of few rows on many keys, cut along the keys, in every order of ctas."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from flashsmith import flash_attention
from flashsmith.base.errors import EmulationError
from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.compile import compiler
from flashsmith.compile.header_closure import INCLUDE_ROOT, closure_hash
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.kernels.sm90_forward import slices
from flashsmith.kernels.sm90_forward.plan import plan_forward
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

CONFIG = parse_config(
    "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+tiles_DYNAMIC+split+sections+o_smem+regs_232_40"
)
# Two tiles of a head, the second of 22 rows; 11 blocks of keys and a tail; an odd number of heads.
CHUNK = AttentionProblem(1, 3, 1, 150, 713, 64, CONFIG.dtype, causal=True, lse=True)
INVARIANT = replace(CHUNK, batch_invariant=True)
# The other diagonal leaves the tiles of a head 8 and 10 blocks: three slices, and four. With a
# window the shorter one is the first of a head, and comes first where tiles are not sorted.
UNSORTED = replace(CONFIG, l2_sections=False)
MASKS = {
    "bottom-right": {},
    "another diagonal": {"diagonal": 330},
    "window": {"diagonal": 330, "window_left": 400},
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Spans of a few blocks are worth cutting, and slices of three blocks long enough."""
    for name in ("EXCHANGE_KEYS", "TAKEN_KEYS", "GIVEN_KEYS"):
        monkeypatch.setattr(slices, name, 0)
    monkeypatch.setattr(slices, "LEAST_KEYS", 64)
    monkeypatch.setattr(slices, "INVARIANT_KEYS", 3 * CONFIG.B_c)


def require(device, problem, name="sliced"):
    check_case(device, CONFIG, Case(name, problem, gain=8.0)).require_ok(CONFIG.short_form())


def split_of(problem, sm_count):
    return plan_forward(CONFIG, problem, sm_count)[0].split


@pytest.mark.parametrize("sm_count", [1, 7, 132])
@pytest.mark.parametrize("mask", MASKS)
def test_chunks_are_right_on_any_number_of_sms(mask, sm_count):
    device = EmulatedDevice("sm_90a", sm_count=sm_count)
    problem = replace(INVARIANT, **MASKS[mask])
    assert split_of(problem, sm_count).slices == 4
    require(device, problem)
    if sm_count == 7 and mask == "bottom-right":  # flags were left zero; slices of one block each
        filling = replace(problem, batch_invariant=False)
        assert split_of(filling, sm_count).slices == 12
        require(device, filling)


@pytest.mark.gpu
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_chunks_are_right_on_a_gpu(mask, batch_invariant):
    require(default_device("cuda"), replace(CHUNK, batch_invariant=batch_invariant, **MASKS[mask]))


def emulated(sm_count, **options):
    """A device whose tensor cores add up as hardware does."""
    return EmulatedDevice(
        "sm_90a", sm_count=sm_count, options=EmulatorOptions(mma_in_order=True, **options)
    )


def bits(device, problem, inputs, config=CONFIG):
    found = run_arrays(device, config, problem, inputs)
    return [array.tobytes() for array in found.values()]


def test_no_schedule_changes_what_slices_add_up_to():
    one = replace(INVARIANT, heads=1)
    inputs = random_inputs(one)
    found = {
        tuple(bits(emulated(7, **options), one, inputs))
        for options in ({}, {"seed": 1, "delayed_landing": True})
    }
    assert len(found) == 1


def company(problem, batch):
    """Inputs of a batch whose last sequence is that of a batch of one, and those of the one."""
    inputs = random_inputs(replace(problem, batch=batch))
    last = {name: x if name == "sinks" else x[-1:] for name, x in inputs.items()}
    return inputs, {name: np.ascontiguousarray(x) for name, x in last.items()}


def test_a_row_has_the_same_bits_alone_and_in_company(monkeypatch):
    """On other numbers of SMs, and where a batch takes several launches for want of flags."""
    problem = replace(INVARIANT, alibi=True, sinks=True)
    together, alone = company(problem, 3)
    one = run_arrays(emulated(132, checks=False), CONFIG, problem, alone)
    device, batch = emulated(7, checks=False), replace(problem, batch=3)
    for flags, launches in ((slices.COUNTER_BYTES, 1), (4 * (2 + 2 * 2 * 18), 2)):
        monkeypatch.setattr(slices, "COUNTER_BYTES", flags)
        plan = plan_forward(CONFIG, batch, 7)
        assert len(plan) == launches
        assert {launch.split.blocks for launch in plan} == {3}
        found = run_arrays(device, CONFIG, batch, together)
        for name, of_one in one.items():
            np.testing.assert_array_equal(found[name][-1], of_one[0])


@pytest.mark.gpu
def test_a_row_has_the_same_bits_alone_and_in_company_on_a_gpu():
    device = default_device("cuda")
    for batch in (2, 9, 40):
        together, alone = company(INVARIANT, batch)
        one = run_arrays(device, CONFIG, INVARIANT, alone)
        found = run_arrays(device, CONFIG, replace(INVARIANT, batch=batch), together)
        for name, of_one in one.items():
            np.testing.assert_array_equal(found[name][-1], of_one[0])


# Sequences whose own lengths decide: too short to cut, two slices, as long as the room, and none.
LENGTHS = np.array([70, 590, 713, 0], np.int32)
IN_MEMORY = replace(CHUNK, batch=4, k_lengths=True)


def with_lengths(problem, lengths=LENGTHS):
    """Inputs whose lengths of keys lie in memory; what is behind them must not matter."""
    inputs = random_inputs(replace(problem, k_lengths=False))
    return {**inputs, "k_lengths": lengths.view(np.uint32)}


@pytest.mark.parametrize("is_causal", [True, False])
def test_lengths_in_memory_give_the_bits_of_lengths_that_the_host_knows(is_causal):
    """On any number of SMs."""
    problem = replace(IN_MEMORY, causal=is_causal)
    inputs, found = with_lengths(problem), []
    for sm_count in (1, 7, 132):
        launch = plan_forward(CONFIG, problem, sm_count)[-1]
        assert launch.split.slices == 4
        assert "or more for a q tile, by its own sequence" in launch.cut
        found.append(run_arrays(emulated(sm_count), CONFIG, problem, inputs))
    assert_bits_of_known_lengths(CONFIG, problem, inputs, LENGTHS[:3], found[0])
    assert not found[0]["o"][3].any()
    for name, bits in found[0].items():
        assert all(np.array_equal(bits, other[name]) for other in found[1:])


def assert_bits_of_known_lengths(config, problem, inputs, lengths, together):
    for i, length in enumerate(lengths):
        known = replace(INVARIANT, causal=problem.causal, k_len=int(length))
        own = {
            name: np.ascontiguousarray(x[i : i + 1, : length if name in "kv" else None])
            for name, x in inputs.items()
            if name != "k_lengths"
        }
        alone = run_arrays(emulated(3, checks=False), config, known, own)
        for name, of_one in alone.items():
            np.testing.assert_array_equal(together[name][i], of_one[0])


def test_halves_that_only_one_of_both_multiplies_change_no_bit(monkeypatch):
    config = parse_config(
        "hopper(BF16, 64, 2, 128): kv_3+q_4+overlap+pingpong+early_rescale+stats_SUM+lazy_8+halves"
        "+tiles_DYNAMIC+late_draw+split+sections+o_smem+regs_232_40"
    )
    monkeypatch.setattr(slices, "INVARIANT_KEYS", 2 * config.B_c)
    lengths = np.array([590, 655, 713, 700], np.int32)  # the last kv block: less than half, more
    inputs = with_lengths(IN_MEMORY, lengths)
    assert plan_forward(config, IN_MEMORY, 7)[-1].split.slices > 1
    together = run_arrays(emulated(7, checks=False), config, IN_MEMORY, inputs)
    assert_bits_of_known_lengths(config, IN_MEMORY, inputs, lengths, together)


def test_a_batch_of_lengths_in_several_launches_has_the_same_bits(monkeypatch):
    inputs = with_lengths(IN_MEMORY)
    one = run_arrays(emulated(7, checks=False), CONFIG, IN_MEMORY, inputs)
    monkeypatch.setattr(slices, "COUNTER_BYTES", 4 * (2 + 2 * 2 * 18))
    assert len(plan_forward(CONFIG, IN_MEMORY, 7)) == 4  # two lists, and a launch each
    found = run_arrays(emulated(7, checks=False), CONFIG, IN_MEMORY, inputs)
    for name, of_one in one.items():
        np.testing.assert_array_equal(found[name], of_one)


@pytest.mark.parametrize(
    "facts", [{"q_lengths": True}, {"k_starts": True}, {"window_left": 99}, {"alibi": True}]
)
def test_tiles_of_other_lists_are_not_cut(facts):
    problem = replace(IN_MEMORY, **facts)
    assert "sliced" not in plan_forward(CONFIG, problem, 132)[-1].needs


def test_kernels_without_registers_for_it_do_not_cut_tiles_of_a_list():
    config = replace(CONFIG, d_head=192)
    problem = replace(INVARIANT, d_head=192)
    assert slices.may_be_cut(config, problem)
    assert not slices.may_be_cut(config, replace(problem, k_lengths=True))


MUTANTS = {
    "a slice counted twice": (
        "tile_order.cuh",
        "before = number * length",
        "before = max(number - 1, 0) * length",
    ),
    "a border off by one": (
        "tile_order.cuh",
        "n_blocks = is_last ? left : length;",
        "n_blocks = is_last ? left : length - 1;",
    ),
    "slices that a tile does not have are not passed by": (
        "producer.cuh",
        "segment_or_none({index, 0}).tile.n_blocks == 0",
        "false",
    ),
    "added up before it was given": (
        "slices.cuh",
        "ptx::wait_acquire_gpu(flag(giver), kWarps);",
        "",
    ),
    "added up in the order of arrival": (
        "slices.cuh",
        "for (i32 giver = range - step; giver >= range - givers * step;\n"
        "                                 giver -= step) {",
        "for (i32 n = 0; n < givers; ++n) {\n"
        "const i32 giver = range - step * (1 + static_cast<i32>((n + blockIdx.x) % givers));",
    ),
}


def is_noticed(problem):
    """Whether a run stops or is wrong, or another number of SMs gives other bits."""
    inputs, found = random_inputs(problem), set()
    try:
        for sm_count in (1, 3):
            device = emulated(sm_count)
            found.add(tuple(bits(device, problem, inputs, UNSORTED)))
        return len(found) > 1 or not check_case(device, UNSORTED, Case("mutant", problem)).ok
    except EmulationError:
        return True


MUTANTS_OF_LENGTHS = {
    "by the room for keys, not by the length": (
        "tile_order.cuh",
        "if (of.k_len < args.least_keys || span < args.least_span) return span;",
        "",
    ),
    "slices do not double": (
        "tile_order.cuh",
        "(args.most_slices + 1) * length) length *= 2;",
        "(args.most_slices + 1) * length) break;",
    ),
    "parts on top of the list": ("consumer.cuh", "Kernel::kListed ? args.parts : ", ""),
    "the slice of another tile": (
        "tile_order.cuh",
        "index = Division(index, args.tiles).rest;",
        "index = Division(index, args.tiles + 1).rest;",
    ),
}


@pytest.mark.parametrize("mutant", [None, *MUTANTS_OF_LENGTHS])
def test_every_mutant_of_slices_by_lengths_is_noticed(mutant, monkeypatch, tmp_path):
    """By the bits of the same sequences, whose lengths the host knows."""
    if mutant is not None:
        plant(MUTANTS_OF_LENGTHS[mutant], monkeypatch, tmp_path)
    monkeypatch.setattr(slices, "MOST_INVARIANT", 4)  # of two tiles: two slices each
    problem = replace(IN_MEMORY, heads=1, k_len=1500)
    inputs = with_lengths(problem, np.array([190, 590, 1500, 1100], np.int32))
    try:
        found = run_arrays(emulated(3), CONFIG, problem, inputs)
        same = all(np.array_equal(found["o"][i], of_known_length(inputs, i)) for i in range(4))
    except EmulationError:
        same = False
    assert same == (mutant is None)


def of_known_length(inputs, i):
    """The output of sequence `i` alone, by the kernel for lengths that the host knows."""
    length = int(inputs["k_lengths"].view(np.int32)[i])
    problem = replace(INVARIANT, heads=1, k_len=length)
    own = {
        name: np.ascontiguousarray(x[i : i + 1, : length if name in "kv" else None])
        for name, x in inputs.items()
        if name != "k_lengths"
    }
    return run_arrays(emulated(3, checks=False), CONFIG, problem, own)["o"][0]


def plant(mutant, monkeypatch, tmp_path):
    """Compiles from headers of which one is changed."""
    header, right, wrong = mutant
    root = tmp_path / "include"
    shutil.copytree(INCLUDE_ROOT, root)
    path = root / "flashsmith" / "sm90" / header
    text = path.read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{header} has no {right!r} any more"
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(compiler, "INCLUDE_ROOT", root)
    monkeypatch.setattr(compiler, "closure_hash", lambda unit: closure_hash(unit, root))


@pytest.mark.parametrize("mutant", [None, *MUTANTS])
def test_every_mutant_of_slices_is_noticed(mutant, monkeypatch, tmp_path):
    if mutant is not None:
        plant(MUTANTS[mutant], monkeypatch, tmp_path)
    window = replace(INVARIANT, heads=1, **MASKS["window"])
    assert is_noticed(window) == (mutant is not None)


def test_a_chunk_is_explained_and_has_the_same_bits_in_company(monkeypatch):
    """By the call that users make, with the rule's own kernel and numbers."""
    monkeypatch.undo()
    random = np.random.default_rng(7)
    shapes = ((2, 70, 1, 64), (2, 5300, 1, 64), (2, 5300, 1, 64))
    q, k, v = (random.standard_normal(shape).astype(np.float16) for shape in shapes)
    asked = {"causal": True, "batch_invariant": True, "backend": "emulator"}
    together, choice = flash_attention(q, k, v, **asked, explain=True)
    says = "2 slices of 4,096 keys for a q tile, by its own sequence and the kernel alone"
    assert says in str(choice)
    alone = flash_attention(*(x[1:] for x in (q, k, v)), **asked)
    np.testing.assert_array_equal(alone[0], together[1])
