// Which q tile, or which slice of one, a cta works on next.
#pragma once

#include "flashsmith/sm90/kernel.cuh"
#include "flashsmith/sm90/q_tile.cuh"

namespace flashsmith::sm90 {

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
// the last section the short tiles, which even out when ctas finish: in a window those of the first
// rows. Those of the first heads come with their sections where reading K and V again would cost
// more.
template <class Kernel>
FS_DEVICE QTile decode_tile(const typename Kernel::Args& args, i32 index, u32 rank) {
    constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    i32 q_tile, batch_head;
    if constexpr (Kernel::kNeeds.causal && kConfig.l2_sections) {
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
            Kernel::Mask::template blocks_seen<kConfig.B_c>(args, row_end), head.rest,
            head.quotient};
}

// kv blocks slice.first .. slice.first + tile.n_blocks - 1 of a q tile.
struct Segment {
    QTile tile;
    Slice slice;
    bool goes_on;  // in another tile, before the next number is drawn
};

// Slice `number` of a tile whose slices have `length` kv blocks, counted from its first one; what
// is left at its end is a slice if it has a quarter of that, or else belongs to the one before.
// n_blocks 0: the tile has no such slice. `range` is what was drawn for it.
FS_DEVICE void take_slice(Segment& tile, i32 number, i32 length, i32 range) {
    const i32 least = (length + 3) / 4;
    const i32 before = number * length;
    const i32 left = tile.tile.n_blocks - before;
    const bool is_last = left - length < least;
    tile.tile.n_blocks = is_last ? left : length;
    if (number > 0 && left < least) tile.tile.n_blocks = 0;
    tile.slice = {tile.slice.first + before, range, is_last ? number : Slice::kIsGiven};
}

// kv blocks of a slice, of a sequence whose length is in memory: by that and the kernel alone, as
// invariant_slices of kernels/sm90_forward/slices.py reckons it for a length that the host knows.
template <class Kernel>
FS_DEVICE i32 slice_of_sequence(const typename Kernel::Args& args, const ListedSequence& of) {
    constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    const i32 rows = args.q_tiles * kConfig.cluster * kConfig.tile_q();
    const i32 span = Kernel::Mask::template blocks_seen<kConfig.B_c>(of, rows);
    if (of.k_len < args.least_keys || span < args.least_span) return span;
    i32 length = args.split_blocks;
    while (span + length - (length + 3) / 4 >= (args.most_slices + 1) * length) length *= 2;
    return length;
}

// Tile number `index` of a launch whose tiles come from a list. The tile and its sequence go to the
// next slot of shared memory at once: the producer has few registers. It is told the kv blocks, and
// where to look the rest up: in `batch` stands the slot.
template <class Kernel>
FS_DEVICE Segment listed_segment(const typename Kernel::Args& args, i32 index, u32 rank,
                                 const typename Kernel::Plan& smem, const RingCursor& place) {
    [[maybe_unused]] const i32 drawn = index;
    if constexpr (Kernel::kSliced) index = Division(index, args.tiles).rest;
    constexpr bool kAlike = !Kernel::kNeeds.causal && !Kernel::Mask::kHasLeft;
    constexpr i32 kRows = Kernel::kConfig.tile_q(), kAllRows = Kernel::kConfig.cluster * kRows;
    i32 head;
    const ListedTile found =
        TileList(args.scratch).template at<kAlike>(index, args.heads, kAllRows, head);
    const ListedSequence of = listed_sequence(args, found);
    const i32 kv_head = Division(head, args.kv_group).quotient;
    const i32 row = found.row + static_cast<i32>(rank) * kRows;
    const i32 end =
        Kernel::Mask::template blocks_seen<Kernel::kConfig.B_c>(of, found.row + kAllRows);
    const i32 first = Kernel::Mask::kHasLeft ? first_block_of<Kernel>(of, row, rank) : 0;
    ptx::mbarrier_wait(smem.tile_empty(place.stage), place.parity);  // consumers have left the slot
    typename Kernel::Listed{smem.base}.put(place.stage, of, kv_head);
    const i32 batch = kNumbered<Kernel::kNeeds> ? found.table_row() : found.batch;
    Segment found_segment{{0, end - first, 0, place.stage}, {first, 0, Slice::kWhole}, false};
    if constexpr (Kernel::kSliced) {
        const i32 length = slice_of_sequence<Kernel>(args, of);
        take_slice(found_segment, Division(drawn, args.tiles).quotient, length, drawn);
    }
    QTile{row, found_segment.tile.n_blocks, head, batch}.put(smem.tile(place.stage));
    return found_segment;
}

// Behind the last one.
template <class Kernel>
FS_DEVICE Segment no_listed_segment(const typename Kernel::Plan& smem, const RingCursor& place) {
    const QTile none{0, 0, 0, 0};
    ptx::mbarrier_wait(smem.tile_empty(place.stage), place.parity);  // consumers have left the slot
    none.put(smem.tile(place.stage));
    return {none, {0, 0, Slice::kWhole}, false};
}

// The tiles that would not fill a last wave, all equally long, are one row of kv blocks that is cut
// into ranges of equal length, at most that of a tile. A range that reaches into two tiles takes
// the second first: who holds a tile's last block ends it, and waits only for ranges before its
// own, which were drawn earlier, and for the first thing that they did.
template <class Args>
struct SplitRange {
    const Args& args;
    i32 range, tile_blocks;
    i32 begin, end;
    i32 tile;  // that its end lies in

    FS_DEVICE SplitRange(const Args& args, i32 index, i32 tile_blocks)
        : args(args),
          range(index - args.whole_tiles),
          tile_blocks(tile_blocks),
          begin(Division(range * args.split_blocks, args.split_ranges).quotient),
          end(Division((range + 1) * args.split_blocks, args.split_ranges).quotient),
          tile(Division(end - 1, tile_blocks).quotient) {}

    // Its blocks of tile `at`: the lowest, how many, and who else has some.
    FS_DEVICE Segment blocks_of(i32 at, QTile whole) const {
        const i32 low = max(begin - at * tile_blocks, 0);
        const i32 high = min(end - at * tile_blocks, tile_blocks);
        whole.n_blocks = high - low;
        // The range that block 0 of the tile lies in.
        const i32 opens =
            Division((at * tile_blocks + 1) * args.split_ranges - 1, args.split_blocks).quotient;
        return {whole,
                {low, range, high < tile_blocks ? Slice::kIsGiven : range - opens},
                begin < at * tile_blocks};
    }
};

template <class Kernel>
FS_DEVICE Segment whole_segment(const typename Kernel::Args& args, i32 index, u32 rank) {
    Segment whole{decode_tile<Kernel>(args, index, rank), {0, 0, Slice::kWhole}, false};
    if constexpr (Kernel::Mask::kHasLeft) {
        whole.slice.first = first_block_of<Kernel>(args, whole.tile.row, rank);
        whole.tile.n_blocks -= whole.slice.first;
    }
    if constexpr (Kernel::kSkips) {
        const QTile& tile = whole.tile;
        whole.tile.n_blocks = line_of_tile<Kernel>(args, tile.batch, tile.head, tile.row).count();
    }
    return whole;
}

// Every tile is cut into slices of `split_blocks` kv blocks. Numbers are drawn slice by slice, of
// all tiles the first, then of all the second: who has a tile's last slice ends it, and waits only
// for numbers before its own.
//
//   tile 0   | 0 | 2 | 4 |        tile 1   | 1 | 3 |      number 5 stands for nothing
template <class Kernel>
FS_DEVICE Segment sliced_segment(const typename Kernel::Args& args, i32 index, u32 rank) {
    const Division number(index, args.tiles);  // the slice, and the tile
    Segment segment = whole_segment<Kernel>(args, number.rest, rank);
    take_slice(segment, number.quotient, args.split_blocks, index);
    return segment;
}

// What a cta does next: number `index`, of a range that has two segments first 0, then 1.
template <class Kernel>
FS_DEVICE Segment decode_segment(const typename Kernel::Args& args, i32 index, i32 second,
                                 u32 rank) {
    if (!Kernel::kSplits || index < args.whole_tiles) {
        return whole_segment<Kernel>(args, index, rank);
    }
    if constexpr (Kernel::kSliced) {
        return sliced_segment<Kernel>(args, index, rank);
    } else {
        const SplitRange split(
            args, index, Kernel::Mask::template blocks_seen<Kernel::kConfig.B_c>(args, args.q_len));
        const i32 at = split.tile - second;
        return split.blocks_of(at, decode_tile<Kernel>(args, args.whole_tiles + at, rank));
    }
}

}  // namespace flashsmith::sm90
