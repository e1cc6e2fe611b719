// The kv blocks that some row of a q tile sees, under a boolean mask of the caller's: a list in
// scratch memory.
//
// One launch writes it (attention/list_blocks.cuh), the next reads it. A line a q tile:
//
//   count | entry | entry | …    of blocks, from the first key on; count is at least 1
//
// Kernels count the entries of a line instead of all blocks: what every row of a tile is denied is
// neither loaded nor multiplied, and where every row sees every key the mask is not read. Heads,
// and sequences, that share a mask share its lines (strides of 0).
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// Whether a kernel reads such a list.
template <Needs kNeeds>
inline constexpr bool kHasBlockList = kNeeds.bias_bool;

// A block of a line. Its highest bit: the mask hides nothing of it.
struct BlockEntry {
    static constexpr u32 kWhole = 1U << 31;

    u32 word;

    static FS_DEVICE BlockEntry of(i32 block, bool is_whole) {
        return {static_cast<u32>(block) | (is_whole ? kWhole : 0)};
    }

    FS_DEVICE i32 block() const { return static_cast<i32>(word & ~kWhole); }
    FS_DEVICE bool is_whole() const { return (word & kWhole) != 0; }
};

// One line of it. Its address is that of the count.
struct BlockLine {
    u64 address;

    template <class Args>
    static FS_DEVICE BlockLine of_tile(const Args& args, i32 batch, i32 head, i32 q_tile) {
        const i64 words = batch * args.blocks.batch_stride + head * args.blocks.head_stride +
                          q_tile * args.blocks.seq_stride;
        return {args.blocks.address + words * 4};
    }

    FS_DEVICE i32 count() const { return static_cast<i32>(word(0)); }

    // The one that `n` others of the line come before.
    FS_DEVICE BlockEntry entry(i32 n) const { return {word(n + 1)}; }
    FS_DEVICE i32 block(i32 n) const { return entry(n).block(); }

  private:
    FS_DEVICE u32 word(i32 n) const {
        return *static_cast<const u32*>(
            __cvta_global_to_generic(address + static_cast<i64>(n) * 4));
    }
};

}  // namespace flashsmith
