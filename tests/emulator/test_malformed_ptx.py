"""Text that is not PTX: always a fault of the emulator's own with a line, never a Python error."""

import random

import numpy as np
import pytest
from hopper_kernels import ClusterPair, kernel_ptx
from lanes import launch, text
from malformed import MUTATIONS, mutated

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.machine import scheduler
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load

TEXTS = 120


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fence.evil;", "fence.evil: there is no .evil"),
        ("fence.async;", "this form of fence"),
        ("membar.gpu;", "this form of membar"),
        ("add.evil.u32 %r1, %r1, 1;", "there is no .evil"),
        ("cp.async.wait_group -1;", "a constant from 0"),
        ("cp.async.bulk.wait_group -1;", "a constant from 0"),
        ("wgmma.wait_group.sync.aligned 8;", "a constant from 0 to 7"),
        ("cp.async.wait_group %r1;", "a constant from 0"),
        (".shared .align 0 .b8 x[16];", r"\.align 0; it is a power of two"),
        (".shared .align 24 .b8 x[16];", r"\.align 24; it is a power of two"),
        (".shared .q8 x[16];", r"type \.q8 is not known"),
        (".reg .q32 %z<4>;", r"type \.q32 is not known"),
        (".reg .b32 %z<99999999>;", "1,048,576 are possible"),
        (".local .b8 x[99999999];", "99,999,999 bytes of local memory"),
        (".shared .b8 x[999999999999];", r"x has 999,999,999,999 bytes"),
        (".shared .b8 x[4]; .shared .b8 x[4];", "x is declared twice"),
        (".shared .b8 p0[4];", "p0 is declared twice"),
        ("L: mov.u32 %r1, 1; L: mov.u32 %r1, 2;", "label L is defined twice"),
        ("bra nowhere;", "branch to .*nowhere.*, which is not a label here"),
        ("brx.idx %r1, nowhere;", "a table of branches with no labels"),
        ('.pragma "no end;', "a string does not end"),
        ("/* no end", "a comment does not end"),
        ("{ { {", "the text ends inside the kernel's body"),
        ("mov.u32 %r1, 99999999999999999999;", "does not fit into 64 bits"),
        ("mov.u32 %r1, {%r1, {%r2;", "not understood"),
        ("@%r1 mov.u32 %r1, 1;", "guard %r1 is not a predicate"),
        ("@%p1;", "no instruction follows the guard"),
        ("mov.u32;", "operands not understood"),
        ("ld.param.u64 %rd1, [p0+-8];", "parameter bytes -8 and up"),
        ("mbarrier.init.shared::cta.b64;", "operands not understood"),
        ("vote.sync.most.pred %p1, %p2, -1;", "there is no .most"),
    ],
)
def test_a_mistake_is_refused_at_its_line(line, says):
    ptx = text(f"mov.u32 %r1, 0;\n{line}\nmov.u32 %r2, 0;", 1)
    with pytest.raises(EmulationError, match=says) as caught:
        load(ptx)
    at = 1 + ptx[: ptx.index(line)].count("\n")
    open_ended = "inside the kernel" in says or "local memory" in says
    assert caught.value.line == at or open_ended
    assert caught.value.line > 0


@pytest.mark.parametrize("ptx", ["", "no kernel", ".entry", ".visible .entry k(", ".entry k {"])
def test_texts_without_a_kernel_have_a_line_too(ptx):
    with pytest.raises(EmulationError) as caught:
        load(ptx)
    assert caught.value.line == 1


@pytest.mark.parametrize("name", ["MASK", "np", "u", "c", "m", "R", "r1", "K_pred_1", "None"])
def test_a_variable_may_have_any_name(name):
    body = f"""atom.global.add.u32 %r2, [{name}], 5; atom.global.add.u32 %r3, [{name}], 0;
        ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], %r3;"""
    ptx = text(body, 1).replace(".visible", f".global .align 4 .u32 {name};\n.visible", 1)
    out, _ = launch(ptx, [], 4, 1, 1)
    assert out.view(np.uint32)[0] == 5


def test_what_fails_while_it_runs_is_a_fault_of_its_line():
    ptx = text("mov.u32 %r1, 7;\nadd.u32 %r2, %r9, %r1;\nmov.u32 %r3, %r2;", 1)
    with pytest.raises(EmulationError, match="cannot run as it stands") as caught:
        launch(ptx, [], 4, 1, 32, EmulatorOptions(checks=False))  # %r9 was never written
    assert caught.value.line == 1 + ptx[: ptx.index("add.u32")].count("\n")


def test_changed_texts_of_a_real_kernel_run_or_are_refused_with_a_line(monkeypatch):
    # Small limits: a change may make a loop endless.
    monkeypatch.setattr(scheduler, "LIVELOCK_SEGMENTS", 5_000)
    monkeypatch.setattr(scheduler, "LIVELOCK_ROUNDS", 20)
    monkeypatch.setattr(scheduler, "MOST_SEGMENTS", 20_000)
    kernel = ClusterPair()
    ptx = kernel_ptx(kernel.name)
    kinds, faults = set(), []
    for seed in range(TEXTS):
        kind, changed = mutated(ptx, random.Random(seed))
        kinds.add(kind)
        try:
            kernel.run(changed, EmulatorOptions(processes=1))
        except EmulationError as fault:
            faults.append((seed, kind, fault))
    assert kinds == {mutation.__name__ for mutation in MUTATIONS}
    assert len(faults) >= 75
    assert not [fault for fault in faults if not fault[2].line]
