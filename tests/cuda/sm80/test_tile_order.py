"""The order of tiles: each once; causal ones from the bottom, in sections that fit L2."""

import numpy as np
import pytest

from flashsmith.kernels.parse import parse_config
from flashsmith.problem.needs import Needs

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles")
HEADERS = ["sm80/static_config.cuh", "sm80/tile_order.cuh", "ptx/special_register.cuh"]


def positions(run_lines, *, causal, batch, heads, kv_heads, q_len, k_len):
    blocks = -(-q_len // CONFIG.tile_q) * heads * batch
    body = f"""
    constexpr {CONFIG.CPP_TYPE} kConfig = {CONFIG.to_cpp_struct()};
    constexpr Needs kNeeds = {Needs(("causal",) if causal else ()).to_cpp()};
    using Kernel = sm80::ForwardKernel<kConfig, kNeeds>;
    ForwardArgs args{{}};
    args.batch = {batch};
    args.heads = {heads};
    args.kv_heads = {kv_heads};
    args.q_len = {q_len};
    args.k_len = {k_len};
    args.d_head = 64;
    const sm80::TilePosition tile = sm80::tile_of_block<Kernel>(args, ptx::ctaid_x());
    i32* place = reinterpret_cast<i32*>(out) + ptx::ctaid_x() * 3;
    if (thread == 0) place[0] = tile.batch, place[1] = tile.head, place[2] = tile.first_row;
    """
    got = run_lines(
        body,
        np.zeros(1),
        headers=HEADERS,
        out_bytes=12 * blocks,
        dtype=np.int32,
        blocks=blocks,
        kernel=type(CONFIG),
    )
    return [tuple(int(n) for n in row) for row in got.reshape(-1, 3)]


SHAPES = [
    {"batch": 2, "heads": 3, "kv_heads": 1, "q_len": 300, "k_len": 500},
    {"batch": 1, "heads": 5, "kv_heads": 5, "q_len": 64, "k_len": 1},
    {"batch": 3, "heads": 30, "kv_heads": 15, "q_len": 130, "k_len": 8192},
    {"batch": 1, "heads": 7, "kv_heads": 7, "q_len": 200, "k_len": 1 << 20},
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_is_taken_once(run_lines, shape, causal):
    got = positions(run_lines, causal=causal, **shape)
    rows = range(0, shape["q_len"], CONFIG.tile_q)
    expected = {
        (b, h, row) for b in range(shape["batch"]) for h in range(shape["heads"]) for row in rows
    }
    assert len(got) == len(expected)
    assert set(got) == expected


def test_causal_tiles_that_see_the_most_keys_come_first(run_lines):
    rows = [row for _, _, row in positions(run_lines, causal=True, **SHAPES[0])]
    assert rows == sorted(rows, reverse=True)


def test_causal_heads_whose_keys_exceed_l2_come_in_sections(run_lines):
    """8,192 keys of d_head 64 are 2 MiB a head and tensor pair: 16 and a few heads at a time."""
    got = positions(run_lines, causal=True, **SHAPES[2])
    heads = [30 * batch + head for batch, head, _ in got]
    begins = [
        i for i, (_, _, row) in enumerate(got) if row == 128 and (i == 0 or got[i - 1][2] == 0)
    ]
    assert len(begins) > 1
    ends = [*begins[1:], len(got)]
    sections = [sorted(set(heads[a:b])) for a, b in zip(begins, ends, strict=True)]
    assert [head for section in sections for head in section] == list(range(90))
    assert all(len(section) <= 2 * 17 for section in sections)


def test_tiles_of_a_full_mask_keep_to_one_head_at_a_time(run_lines):
    got = positions(run_lines, causal=False, **SHAPES[0])
    assert got == sorted(got)
