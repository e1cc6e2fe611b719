// Orders of kv blocks under a causal mask in which a launch ends with short blocks.
//
//   short_last (sums in any order): of each head the last `short_blocks` blocks, the short ones,
//   are drawn behind everything else
//
//     section of heads | section | … | short blocks of all heads, the longest of them first
//
//   rising (sums in order): the last `rising_heads` heads add from the first block to the last,
//   and their blocks are drawn in that order; all other heads add from the last to the first
//
//     section of heads that fall | … | heads that rise, the longest blocks first
//
// In a head that falls nobody waits: a block meets its own first q tiles before the longer block
// behind it gets there. One that rises follows the block before it at a distance, so those heads
// are few and drawn together. Both are functions of the problem alone.
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/sm90/backward/parts.cuh"

namespace flashsmith::sm90 {

struct DrawnBlock {
    u32 head;   // of K and V, of all sequences
    u32 block;  // of the head
};

// Whether blocks of a head of K and V, or of a part of its group, among those of all sequences, add
// to dQ from the first to the last.
template <class Kernel>
FS_DEVICE bool rises(const typename Kernel::Args& args, i32 head) {
    if constexpr (!Kernel::kConfig.rising) return false;
    if constexpr (Kernel::kConfig.in_parts) head = drawn_at<Kernel>(args, head);
    return head >= args.all_kv_blocks / args.kv_blocks - args.rising_heads;
}

// Number `index` of `heads` heads with `blocks` blocks each, by sections.
FS_DEVICE DrawnBlock block_of_section(u32 index, u32 heads, u32 blocks, u32 section_heads) {
    const u32 section = index / (section_heads * blocks);
    const u32 rest = index - section * section_heads * blocks;
    const u32 first = section * section_heads;
    const u32 together = min(section_heads, heads - first);
    const u32 turn = rest / together;
    return {first + rest - turn * together, turn};
}

template <class Kernel>
FS_DEVICE DrawnBlock draw_short_last(const typename Kernel::Args& args, u32 index) {
    const u32 heads = args.all_kv_blocks / args.kv_blocks;
    if constexpr (Kernel::kConfig.in_any_order()) {
        const u32 long_blocks = args.kv_blocks - args.short_blocks;
        if (index < long_blocks * heads) {
            return block_of_section(index, heads, long_blocks, args.section_heads);
        }
        const DrawnBlock at =
            block_of_section(index - long_blocks * heads, heads, args.short_blocks, heads);
        return {at.head, long_blocks + at.block};
    } else {
        const u32 falling = heads - args.rising_heads;
        const u32 of_falling = falling * args.kv_blocks;
        if (index < of_falling) {
            const DrawnBlock at =
                block_of_section(index, falling, args.kv_blocks, args.section_heads);
            return {at.head, args.kv_blocks - 1 - at.block};
        }
        const DrawnBlock at = block_of_section(index - of_falling, args.rising_heads,
                                               args.kv_blocks, args.rising_heads);
        return {falling + at.head, at.block};
    }
}

}  // namespace flashsmith::sm90
