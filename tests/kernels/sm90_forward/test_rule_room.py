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
