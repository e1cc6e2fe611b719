// Which tile of query rows a block works on next, and how its producer tells its consumers.
#pragma once

#include "flashsmith/attention/needs.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/args.cuh"
#include "flashsmith/sm90/config.cuh"
#include "flashsmith/sm90/shared_plan.cuh"

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

// What a drawn tile is where the last tiles are split along the keys.
struct HopperPart {
    i32 first;   // block of keys
    i32 range;   // that it belongs to
    i32 others;  // 0: it is whole; -1: another block ends it; else it ends with those of so many
                 // ranges before
};

FS_DEVICE void put_part(SmemAddr slot, const HopperPart& part) {
    ptx::st_shared_16b(slot + 16, {{static_cast<u32>(part.first), static_cast<u32>(part.range),
                                    static_cast<u32>(part.others)}});
}

FS_DEVICE HopperPart get_part(SmemAddr slot) {
    const Chunk words = ptx::ld_shared_16b(slot + 16);
    return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
            static_cast<i32>(words.word[2])};
}

// Keys that rows [.., row_end) see; not above 0 where they see none.
template <ForwardTraits kTraits>
FS_DEVICE i32 keys_seen(const HopperForwardArgs& args, i32 row_end) {
    return kTraits.causal ? min(args.k_len, row_end + args.diagonal) : args.k_len;
}

// Blocks of K that rows [.., row_end) need: at least one, so that rows that see no key are written.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
FS_DEVICE i32 needed_blocks(const HopperForwardArgs& args, i32 row_end) {
    return (max(keys_seen<kTraits>(args, row_end), 1) + kConfig.B_c - 1) / kConfig.B_c;
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
// the last section the short tiles, which even out when blocks finish. Those of the first heads
// come with their sections where reading K and V again would cost more.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
FS_DEVICE HopperTile decode_tile(const HopperForwardArgs& args, i32 index, u32 rank) {
    i32 q_tile, batch_head;
    if constexpr (kTraits.causal && kConfig.l2_sections) {
        const bool late = index >= args.early_heads * args.q_tiles;
        const i32 base = late ? args.early_heads : 0;
        const i32 heads = late ? args.batch_heads - base : args.early_heads;
        const i32 long_tiles = args.q_tiles - (late ? args.short_tiles : 0);
        const i32 number = index - base * args.q_tiles;
        const i32 n_long = long_tiles * heads;
        if (number < n_long) {
            const Division section(number, long_tiles * args.section_heads);
            const i32 first = section.quotient * args.section_heads;
            const Division at(section.rest, min(args.section_heads, heads - first));
            q_tile = args.q_tiles - 1 - at.quotient;
            batch_head = base + first + at.rest;
        } else {
            const Division at(number - n_long, heads);
            q_tile = args.short_tiles - 1 - at.quotient;
            batch_head = base + at.rest;
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

// Whether a kernel can split tiles. A causal mask makes them unequal, which evens out when blocks
// end; for heads narrower than the kernel ptxas has no registers left. Where it cannot, all tiles
// are whole, whatever the launch asks for.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
inline constexpr bool kSplits = kConfig.split_last && !kTraits.causal && !kTraits.narrow_d;

// Which tiles take their blocks from the first on. Under a mask, tiles of a head that begin at the
// same time then read the same K and V; from the diagonal on each would begin with its own.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
inline constexpr Ascending kAscends = kTraits.causal ? kConfig.ascending : Ascending::kNONE;

// Blocks part.first .. part.first + tile.n_blocks - 1 of a tile.
struct HopperSegment {
    HopperTile tile;
    HopperPart part;
    bool goes_on;  // in another tile, before the next number is drawn
};

// The tiles that would not fill a last wave, all as long, are one row of blocks that is cut into
// ranges of equal length, at most that of a tile. A range that reaches into two tiles takes the
// second first: who holds a tile's last block ends it, and waits only for ranges before its own,
// which were drawn earlier, and for the first thing that they did.
struct SplitRange {
    const HopperForwardArgs& args;
    i32 range, tile_blocks;
    i32 begin, end;
    i32 tile;  // that its end lies in

    FS_DEVICE SplitRange(const HopperForwardArgs& args, i32 index, i32 tile_blocks)
        : args(args),
          range(index - args.whole_tiles),
          tile_blocks(tile_blocks),
          begin(Division(range * args.split_blocks, args.split_ranges).quotient),
          end(Division((range + 1) * args.split_blocks, args.split_ranges).quotient),
          tile(Division(end - 1, tile_blocks).quotient) {}

    // Its blocks of tile `at`: the lowest, how many, and who else has some.
    FS_DEVICE HopperSegment blocks_of(i32 at, HopperTile whole) const {
        const i32 low = max(begin - at * tile_blocks, 0);
        const i32 high = min(end - at * tile_blocks, tile_blocks);
        whole.n_blocks = high - low;
        // The range that block 0 of the tile lies in.
        const i32 opens =
            Division((at * tile_blocks + 1) * args.split_ranges - 1, args.split_blocks).quotient;
        return {
            whole, {low, range, high < tile_blocks ? -1 : range - opens}, begin < at * tile_blocks};
    }
};

// What a block does next: number `index`, of a range that has two segments first 0, then 1.
template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
FS_DEVICE HopperSegment decode_segment(const HopperForwardArgs& args, i32 index, i32 second,
                                       u32 rank) {
    if (!kSplits<kConfig, kTraits> || index < args.whole_tiles) {
        return {decode_tile<kConfig, kTraits>(args, index, rank), {0, 0, 0}, false};
    }
    const SplitRange split(args, index, needed_blocks<kConfig, kTraits>(args, args.q_len));
    const i32 at = split.tile - second;
    return split.blocks_of(at, decode_tile<kConfig, kTraits>(args, args.whole_tiles + at, rank));
}

}  // namespace flashsmith
