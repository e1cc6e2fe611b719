// A kv block as the producer tells it to the other warps, and the q tiles that it is walked with.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward_order.cuh"
#include "flashsmith/sm90/backward_plan.cuh"

namespace flashsmith::sm90 {

template <Sm90TilesConfig kConfigArg, Needs kNeedsArg>
struct BackwardKernel {
    static constexpr Sm90TilesConfig kConfig = kConfigArg;
    static constexpr Needs kNeeds = kNeedsArg;
    using Args = Sm90BackwardArgs;
    using Plan = BackwardPlan<kConfig>;
    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
};

// One block of keys of one head of K and V. steps 0 ends the work.
struct KvTile {
    i32 first_key;
    i32 steps;
    i32 kv_head;
    i32 batch;

    FS_DEVICE void put(SmemAddr slot) const {
        const Chunk words{{static_cast<u32>(first_key), static_cast<u32>(steps),
                           static_cast<u32>(kv_head), static_cast<u32>(batch)}};
        ptx::st_shared_16b(slot, words);
    }

    static FS_DEVICE KvTile get(SmemAddr slot) {
        const Chunk words = ptx::ld_shared_16b(slot);
        return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
                static_cast<i32>(words.word[2]), static_cast<i32>(words.word[3])};
    }
};

// The q tiles that a kv block is walked with: head after head of its group, of each from the first
// that sees a key of it to the last.
template <class Kernel>
struct Walk {
    static constexpr i32 kRows = Kernel::kConfig.q_tile_rows();
    // Whether it matters which q tile a step is of: for masks and distances.
    static constexpr bool kCounts = (Kernel::kNeeds.causal && !Kernel::kConfig.masks_first) ||
                                    Kernel::kNeeds.window_left || Kernel::kNeeds.alibi;

    // Whether any row sees the block. If none does, one step is made all the same, with every key
    // hidden, for gradients that are zero; nothing is added to dQ.
    static FS_DEVICE bool is_seen(const typename Kernel::Args& args, i32 first_key) {
        if (Kernel::kNeeds.window_left && last_row(args, first_key) < 0) return false;
        return Kernel::Mask::first_row_of(args, first_key) < args.q_tiles * kRows;
    }

    // The last row that sees a key of the block, were there rows and keys enough.
    static FS_DEVICE i32 last_row(const typename Kernel::Args& args, i32 first_key) {
        return Kernel::Mask::last_row_of(args, first_key + Kernel::kConfig.keys() - 1);
    }

    static FS_DEVICE i32 first_tile(const typename Kernel::Args& args, i32 first_key) {
        if constexpr (!Kernel::kNeeds.causal) return 0;
        const i32 row = max(Kernel::Mask::first_row_of(args, first_key), 0);
        return min(row / kRows, args.q_tiles - 1);
    }

    // The q tile behind the last one.
    static FS_DEVICE i32 end_tile(const typename Kernel::Args& args, i32 first_key) {
        if constexpr (!Kernel::kNeeds.window_left) return args.q_tiles;
        return min(max(last_row(args, first_key), 0) / kRows + 1, args.q_tiles);
    }

    static FS_DEVICE i32 steps(const typename Kernel::Args& args, i32 first_key) {
        if (!is_seen(args, first_key)) return 1;
        return args.kv_group * (end_tile(args, first_key) - first_tile(args, first_key));
    }

    i32 first;       // q tile of each head that sees a key
    i32 end;         // and the one behind the last
    i32 tile;        // where the walk is
    i32 batch_head;  // of Q

    FS_DEVICE Walk(const typename Kernel::Args& args, const KvTile& at)
        : first(first_tile(args, at.first_key)),
          end(end_tile(args, at.first_key)),
          tile(first),
          batch_head(at.batch * args.heads + at.kv_head * args.kv_group) {}

    FS_DEVICE void advance(const typename Kernel::Args& args) {
        const i32 behind = Kernel::kNeeds.window_left ? end : args.q_tiles;
        if (++tile == behind) {
            tile = first;
            ++batch_head;
        }
    }

    // Of all q tiles of the launch.
    FS_DEVICE u32 index(const typename Kernel::Args& args) const {
        return static_cast<u32>(batch_head * args.q_tiles + tile);
    }
};

// Number `index` of the launch: block after block of a section's heads, then the next section.
// In order, blocks that add to a q tile first come first, so that who waits for a sum waits for a
// block that was drawn before; without order, the longest under a mask do.
template <class Kernel>
FS_DEVICE KvTile decode_kv_tile(const typename Kernel::Args& args, u32 index) {
    if (index >= static_cast<u32>(args.tiles)) return {0, 0, 0, 0};
    if constexpr (Kernel::kConfig.ends_short()) {
        const DrawnBlock at = draw_short_last<Kernel>(args, index);
        const i32 first_key = at.block * Kernel::kConfig.keys();
        const u32 batch = at.head / args.kv_heads;
        return {first_key, Walk<Kernel>::steps(args, first_key),
                static_cast<i32>(at.head - batch * args.kv_heads), static_cast<i32>(batch)};
    }
    const u32 in_section = args.section_heads * args.k_tiles;
    const u32 section = index / in_section;
    const u32 rest = index - section * in_section;
    const u32 first_head = section * args.section_heads;
    const u32 all_heads = args.tiles / args.k_tiles;
    const u32 heads = min(static_cast<u32>(args.section_heads), all_heads - first_head);
    const u32 turn = rest / heads;
    const u32 batch_head = first_head + rest - turn * heads;
    const u32 block = Kernel::kConfig.unordered ? turn : args.k_tiles - 1 - turn;
    const i32 first_key = block * Kernel::kConfig.keys();
    const u32 batch = batch_head / args.kv_heads;
    return {first_key, Walk<Kernel>::steps(args, first_key),
            static_cast<i32>(batch_head - batch * args.kv_heads), static_cast<i32>(batch)};
}

}  // namespace flashsmith::sm90
