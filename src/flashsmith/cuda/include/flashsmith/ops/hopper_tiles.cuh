// Which tile of query rows a block works on next, and how its producer tells its consumers.
#pragma once

#include "flashsmith/base/hopper_args.cuh"
#include "flashsmith/base/hopper_config.cuh"
#include "flashsmith/base/traits.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/tile/hopper_smem.cuh"

namespace flashsmith {

// A tile as it lies in a slot of the tile ring; n_blocks 0 ends the work.
struct HopperTile {
    i32 row;       // first query row
    i32 n_blocks;  // blocks of K that any of its rows needs
    i32 head;
    i32 batch;
};

FS_DEVICE void put_tile(SmemAddr slot, const HopperTile& tile) {
    const Chunk words{{static_cast<u32>(tile.row), static_cast<u32>(tile.n_blocks),
                       static_cast<u32>(tile.head), static_cast<u32>(tile.batch)}};
    ptx::st_shared_16b(slot, words);
}

FS_DEVICE HopperTile get_tile(SmemAddr slot) {
    const Chunk words = ptx::ld_shared_16b(slot);
    return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
            static_cast<i32>(words.word[2]), static_cast<i32>(words.word[3])};
}

// Blocks of K that rows [.., row_end) need: at least one, so that rows that see no key are written.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
FS_DEVICE i32 needed_blocks(const HopperForwardArgs& args, i32 row_end) {
    i32 keys = args.k_len;
    if constexpr (kTraits.causal) keys = min(keys, max(row_end + args.diagonal, 1));
    return (keys + kConfig.B_c - 1) / kConfig.B_c;
}

// Quotient and rest of numbers that are not negative: unsigned, since the producer has few
// registers.
struct Division {
    i32 quotient, rest;

    FS_DEVICE Division(i32 number, i32 divisor)
        : quotient(static_cast<i32>(static_cast<u32>(number) / static_cast<u32>(divisor))),
          rest(number - quotient * divisor) {}
};

// Tile number `index` of the launch. Full mask: all tiles of a head, then the next head. Causal
// with sections: for as many heads as L2 holds, the long tiles of all of them, longest first; after
// the last section the short tiles of all heads, which even out when blocks finish.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
FS_DEVICE HopperTile decode_tile(const HopperForwardArgs& args, i32 index, u32 rank) {
    i32 q_tile, batch_head;
    if constexpr (kTraits.causal && kConfig.l2_sections) {
        const i32 long_tiles = args.q_tiles - args.short_tiles;
        const i32 n_long = long_tiles * args.batch_heads;
        if (index < n_long) {
            const Division section(index, long_tiles * args.section_heads);
            const i32 first = section.quotient * args.section_heads;
            const Division at(section.rest, min(args.section_heads, args.batch_heads - first));
            q_tile = args.q_tiles - 1 - at.quotient;
            batch_head = first + at.rest;
        } else {
            const Division at(index - n_long, args.batch_heads);
            q_tile = args.short_tiles - 1 - at.quotient;
            batch_head = at.rest;
        }
    } else {
        const Division at(index, args.q_tiles);
        q_tile = at.rest;
        batch_head = at.quotient;
    }
    constexpr i32 kRows = kConfig.tile_q();
    const i32 row_end = (q_tile + 1) * kConfig.cluster * kRows;
    const Division head(batch_head, args.heads);
    return {(q_tile * kConfig.cluster + static_cast<i32>(rank)) * kRows,
            needed_blocks<kConfig, kTraits>(args, row_end), head.rest, head.quotient};
}

}  // namespace flashsmith
