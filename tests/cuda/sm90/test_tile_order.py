"""The order of a launch's q tiles: each once; short ones of late heads at the end."""

import numpy as np
import pytest

from flashsmith.kernels import parse_config
from flashsmith.problem.needs import Needs

CONFIG = parse_config(
    "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+tiles_DYNAMIC+sections+o_smem+regs_232_40"
)


def tiles(run_lines, heads, q_tiles, section_heads, short_tiles, early_heads, needs=("causal",)):
    """Head and tile of each number that is drawn, under a causal mask."""
    count = heads * q_tiles
    body = f"""
    constexpr {CONFIG.CPP_TYPE} kConfig = {CONFIG.to_cpp_struct()};
    constexpr Needs kNeeds = {Needs(needs).to_cpp()};
    using Kernel = sm90::ForwardKernel<kConfig, kNeeds>;
    Sm90ForwardArgs args{{}};
    args.heads = args.batch_heads = {heads};
    args.q_len = args.k_len = {q_tiles * CONFIG.tile_q};
    args.q_tiles = {q_tiles};
    args.section_heads = {section_heads};
    args.short_tiles = {short_tiles};
    args.early_heads = {early_heads};
    if (thread == 0) {{
        for (int n = 0; n < {count}; ++n) {{
            const sm90::QTile tile = sm90::decode_tile<Kernel>(args, n, 0);
            reinterpret_cast<i32*>(out)[2 * n] = tile.head;
            reinterpret_cast<i32*>(out)[2 * n + 1] = tile.row / kConfig.tile_q();
        }}
    }}
    """
    got = run_lines(
        body,
        np.zeros(1),
        headers=["sm90/tile_order.cuh"],
        out_bytes=8 * count,
        dtype=np.int32,
        kernel=type(CONFIG),
    )
    return [(int(head), int(tile)) for head, tile in got.reshape(-1, 2)]


ORDERS = [(7, 4, 3, 1, 0), (7, 4, 3, 1, 4), (7, 4, 2, 3, 7), (5, 3, 8, 0, 2), (6, 1, 2, 0, 3)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_tile_is_drawn_once(run_lines, order):
    got = tiles(run_lines, *order)
    assert sorted(got) == [(head, tile) for head in range(order[0]) for tile in range(order[1])]


def test_early_heads_have_their_short_tiles_in_their_sections_and_late_ones_at_the_end(run_lines):
    got = tiles(run_lines, heads=5, q_tiles=3, section_heads=2, short_tiles=1, early_heads=2)
    early = [(head, tile) for tile in (2, 1, 0) for head in (0, 1)]
    long = [(2, 2), (3, 2), (2, 1), (3, 1), (4, 2), (4, 1)]
    assert got == early + long + [(2, 0), (3, 0), (4, 0)]


def test_in_a_window_the_tiles_of_the_first_rows_are_drawn_last(run_lines):
    got = tiles(run_lines, 3, 4, 1, 2, 0, needs=("causal", "window_left"))
    long = [(head, tile) for head in range(3) for tile in (3, 2)]
    assert got == long + [(head, tile) for tile in (1, 0) for head in range(3)]
