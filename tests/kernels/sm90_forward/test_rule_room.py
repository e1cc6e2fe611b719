"""Where lengths are in memory, the room that sequences have does not choose the kernel."""

from dataclasses import replace

import pytest

from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose.choice import choose

ROOMS = (512, 1024, 2048, 8192, 65536)


@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize(("heads", "rows"), [((8, 1), 40), ((8, 8), 128), ((8, 8), 1024)])
def test_bits_do_not_follow_from_the_room_of_a_cache(d_head, page, heads, rows):
    pages = {"page": page, "pages": 9999} if page else {}
    facts = {"causal": True, "k_lengths": True, "batch_invariant": True, **pages}
    chosen = {
        choose(AttentionProblem(4, *heads, rows, room, d_head, **facts), "sm_90a").config
        for room in ROOMS
    }
    assert len(chosen) == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d_head", [64, 96, 128, 256])
@pytest.mark.parametrize("rows", [128, 512, 1024])
def test_lengths_in_memory_leave_a_chunk_the_kernel_of_lengths_that_are_known(d_head, rows, causal):
    """So the bits are the same; not for many rows of narrow heads that see all keys."""
    chunk = AttentionProblem(4, 8, 8, rows, 65536, d_head, causal=causal, batch_invariant=True)
    known, in_memory = (
        choose(problem, "sm_90a").config for problem in (chunk, replace(chunk, k_lengths=True))
    )
    assert (known == in_memory) is not (d_head <= 64 and rows > 512 and not causal)


WITHOUT_L_MMA = (
    "hopper(BF16, 64, 3, 128): kv_3+q_6+overlap+pingpong+early_rescale+stats_SUM+lazy_8+halves"
    "+tiles_DYNAMIC"
)
# Each was built without a spill by NVRTC 13.0 (torch's) and 13.5; others of these widths were not.
LISTED = {
    (64, None): "hopper(BF16, 64, 2, 128)",
    (64, 1000): "hopper(BF16, 64, 2, 128)",
    (192, 1000): "hopper(BF16, 192, 2, 80)",
    (256, 1000): "hopper(BF16, 256, 2, 64): kv_2+q_3+pingpong+stats_SUM",
}


@pytest.mark.parametrize(("d_head", "window"), LISTED)
@pytest.mark.parametrize(
    "facts",
    [
        {"sequences": 21, "batch_invariant": True, "lse": True},
        {"sequences": 21, "batch_invariant": True},
        {"k_lengths": True},
        {"k_lengths": True, "q_lengths": True, "lse": True},
    ],
    ids=["packed, for gradients", "packed", "lengths of keys", "lengths of both"],
)
def test_masked_tiles_of_a_list_have_registers(d_head, window, facts):
    problem = AttentionProblem(
        1, 8, 8, 4096, 4096, d_head, causal=True, window_left=window, **facts
    )
    choice = choose(problem, "sm_90a", gpu="NVIDIA H200")
    assert choice.config.short_form().startswith(LISTED[d_head, window])
    assert not choice.config.drawback(problem)


# The same of single problems: before, their first calls compiled one or two kernels that spilled.
NOT_LISTED = {
    (192, "window"): ({"causal": True, "window_left": 500}, "hopper(BF16, 192, 2, 80)"),
    (256, "window"): ({"causal": True, "window_left": 500}, LISTED[256, 1000]),
    (256, "both sides"): ({"window_left": 500, "window_right": 500}, LISTED[256, 1000]),
    (64, "cap"): ({"softcap": 30.0}, WITHOUT_L_MMA),
    (64, "slopes"): ({"alibi": True}, WITHOUT_L_MMA),
}


@pytest.mark.parametrize(("d_head", "name"), NOT_LISTED)
def test_what_takes_registers_is_given_a_kernel_that_has_them(d_head, name):
    facts, begins = NOT_LISTED[d_head, name]
    problem = AttentionProblem(2, 8, 2, 2048, 2048, d_head, **facts)
    choice = choose(problem, "sm_90a", gpu="NVIDIA H200")
    assert choice.config.short_form().startswith(begins)
    assert not choice.config.drawback(problem)
