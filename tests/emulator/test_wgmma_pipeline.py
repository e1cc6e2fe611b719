"""Registers around wgmma: what may be touched when, told without running the kernel."""

from __future__ import annotations

import pytest

from flashsmith.emulator.checks.wgmma_pipeline import pipeline_problems
from flashsmith.emulator.program import load

D = "{%f0, %f1, %f2, %f3}"
WGMMA = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D}, %rd0, %rd1, %p0, 1, 1, 0, 0;"
A_WGMMA = (
    f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D}, {{%r0, %r1, %r2, %r3}}, %rd1, "
    "%p0, 1, 1, 0;"
)
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
USE = "add.f32 %f5, %f0, %f0;"
COPY, USE_COPY = "mov.f32 %f9, %f0;", "add.f32 %f5, %f9, %f9;"


def wait(groups: int) -> str:
    return f"wgmma.wait_group.sync.aligned {groups};"


def problems(*body: str) -> list[str]:
    text = (
        ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n"
        ".reg .pred %p<4>;\n.reg .f32 %f<20>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<4>;\n"
        + "\n".join(body)
        + "\nret;\n}\n"
    )
    return [problem.kind for problem in pipeline_problems(load(text).translation.segments)]


def test_a_batch_that_is_fenced_committed_and_waited_for_is_right():
    assert problems(FENCE, WGMMA, WGMMA, COMMIT, wait(0), USE) == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ((WGMMA, COMMIT, wait(0), USE), "missing wgmma.fence"),
        ((FENCE, "mul.f32 %f0, %f4, %f4;", WGMMA, COMMIT, wait(0)), "missing wgmma.fence"),
        ((FENCE, WGMMA, COMMIT, wait(0), USE, WGMMA, COMMIT, wait(0)), "missing wgmma.fence"),
        ((FENCE, "add.u32 %r0, %r1, 1;", A_WGMMA, COMMIT, wait(0)), "missing wgmma.fence"),
        ((FENCE, WGMMA, COMMIT, USE), "accumulator not waited for"),
        ((FENCE, WGMMA, wait(0), USE), "accumulator not waited for"),
        ((FENCE, WGMMA, COMMIT, wait(1), USE), "accumulator not waited for"),
        ((FENCE, WGMMA, COMMIT, "mov.f32 %f9, %f0;", "add.f32 %f5, %f9, %f9;", wait(0)),
         "accumulator not waited for"),
        ((FENCE, A_WGMMA, COMMIT, "add.u32 %r0, %r4, 1;", wait(0)),
         "register of a wgmma in flight"),
        ((FENCE, WGMMA, COMMIT, "mul.f32 %f0, %f4, %f4;", wait(0)),
         "register of a wgmma in flight"),
        ((FENCE, A_WGMMA, COMMIT, "mov.b32 %r2, %r5;", wait(0)), "register of a wgmma in flight"),
        ((FENCE, A_WGMMA, COMMIT, "@%p1 mov.b32 %r2, 0;", wait(0)),
         "register of a wgmma in flight"),
        ((FENCE, A_WGMMA, COMMIT, "mov.b32 %r2, 0;", wait(0)), "register of a wgmma in flight"),
        ((FENCE, WGMMA, COMMIT, "mov.f32 %f1, 0f00000000;", wait(0)),
         "register of a wgmma in flight"),
        ((FENCE, WGMMA, COMMIT, COPY, wait(0), USE_COPY), "copy of an accumulator in flight"),
        ((FENCE, WGMMA, COPY, COMMIT, wait(0), USE_COPY), "copy of an accumulator in flight"),
        ((FENCE, WGMMA, COMMIT, COPY, wait(0), "mov.f32 %f8, %f9;", "neg.f32 %f5, %f8;"),
         "copy of an accumulator in flight"),
        ((FENCE, WGMMA, COMMIT, COPY, wait(0), "@%p1 mov.f32 %f9, %f4;", USE_COPY),
         "copy of an accumulator in flight"),
        ((FENCE, WGMMA, COMMIT, COPY, wait(0), WGMMA.replace("%f0", "%f9"), COMMIT, wait(0)),
         "copy of an accumulator in flight"),
    ],
)  # fmt: skip
def test_misuse_is_named(body, kind):
    assert problems(*body)[0] == kind


def test_a_wait_for_all_but_one_ends_the_older_group_only():
    other = WGMMA.replace(D, "{%f10, %f11, %f12, %f13}")
    later = "add.f32 %f5, %f10, %f10;"
    assert problems(FENCE, WGMMA, COMMIT, other, COMMIT, wait(1), USE, wait(0), later) == []
    assert problems(FENCE, WGMMA, COMMIT, other, COMMIT, wait(1), later) == [
        "accumulator not waited for"
    ]


def test_constants_and_copies_do_not_need_a_fence():
    assert problems(FENCE, "mov.f32 %f0, 0f00000000;", WGMMA, COMMIT, wait(0)) == []


def test_a_copy_that_is_made_after_the_wait_or_written_again_is_right():
    assert problems(FENCE, WGMMA, COMMIT, wait(0), COPY, USE_COPY) == []
    assert problems(FENCE, WGMMA, COMMIT, COPY, wait(0), "mov.f32 %f9, %f4;", USE_COPY) == []
    assert problems(FENCE, WGMMA, COMMIT, COPY, wait(0), USE) == []


def test_a_copy_may_be_the_accumulator_of_the_next_wgmma_of_a_chain():
    chained = WGMMA.replace("%f0", "%f9")
    assert problems(FENCE, WGMMA, COPY, chained, COMMIT, wait(0), USE_COPY) == []


def test_a_copy_made_on_one_path_before_the_wait_is_a_fault():
    body = (FENCE, WGMMA, COMMIT, "@%p1 bra SKIP;", COPY, "SKIP:", wait(0), USE_COPY)
    assert problems(*body) == ["copy of an accumulator in flight"]


def test_what_holds_on_one_path_only_is_still_a_fault():
    body = (FENCE, WGMMA, COMMIT, "@%p1 bra SKIP;", wait(0), "SKIP:", USE)
    assert problems(*body) == ["accumulator not waited for"]
