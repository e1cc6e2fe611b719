// Which tile a block works on: heads in sections that fit L2, long tiles first.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/tile_list.cuh"
#include "flashsmith/sm80/store_output.cuh"

namespace flashsmith::sm80 {

// K and V of the heads that are worked on at the same time should stay in L2 (40 MB on sm_80 and
// more on later data-centre parts; what is a few heads too many only costs bandwidth).
inline constexpr u32 kSectionBytes = 32u << 20;

// Full mask: all tiles of a head, then the next head, so that few heads share L2.
// Causal: in sections of heads, the lowest tiles of all heads first: they see the most keys, and
// what starts last should end soon.
template <class Kernel>
FS_DEVICE TilePosition tile_of_block(const ForwardArgs& args, u32 block) {
    const u32 tiles = (args.q_len + Kernel::kBr - 1) / Kernel::kBr;
    const u32 heads = args.batch * args.heads;
    u32 head;
    u32 tile;
    if constexpr (Kernel::kNeeds.causal) {
        const u32 head_kib = (static_cast<u32>(args.k_len) * (args.d_head / 8) >> 5) + 1;
        const u32 group = args.heads / args.kv_heads;  // heads that share K and V
        const u32 wanted = ((kSectionBytes >> 10) / head_kib + 1) * group;
        const u32 section_heads = wanted < heads ? wanted : heads;
        const u32 section = block / (section_heads * tiles);
        const u32 rest = block - section * section_heads * tiles;
        const u32 left = heads - section * section_heads;
        const u32 here = left < section_heads ? left : section_heads;
        head = section * section_heads + rest % here;
        tile = tiles - 1 - rest / here;
    } else {
        head = block / tiles;
        tile = block - head * tiles;
    }
    const u32 batch = head / args.heads;
    return {static_cast<int>(batch), static_cast<int>(head - batch * args.heads),
            static_cast<int>(tile) * Kernel::kBr};
}

// The same from the tile list, which may be shorter than the grid: the host only knows how long it
// is at most. A tile that does not exist is of a sequence without rows.
template <class Kernel>
FS_DEVICE ListedPosition listed_tile(const ForwardArgs& args, u32 block) {
    constexpr bool kAlike = !Kernel::kNeeds.causal && !Kernel::kNeeds.window_left;
    const TileList list(args.tile_list);
    if (block >= static_cast<u32>(list.entries) * args.heads) return {};
    i32 head;
    const ListedTile found =
        list.template at<kAlike>(static_cast<i32>(block), args.heads, Kernel::kBr, head);
    if constexpr (kNumbered<Kernel::kNeeds>) {
        return {0, head, found.row, listed_sequence(args, found), found.table_row()};
    }
    return {found.batch, head, found.row, listed_sequence(args, found), found.batch};
}

// Where the tile of this block lies.
template <class Kernel>
FS_DEVICE auto position_of_block(const ForwardArgs& args) {
    if constexpr (kListed<Kernel::kNeeds>) {
        return listed_tile<Kernel>(args, ptx::ctaid_x());
    } else {
        return tile_of_block<Kernel>(args, ptx::ctaid_x());
    }
}

}  // namespace flashsmith::sm80
