// In which order kv blocks add to dQ: from the first that a q tile sees to the last. A turn is of
// some q tiles of a head, one after the other; each has a counter for every warp, with roles for
// every two, since the same warps of the next kv block have the same rows and columns:
//
//   1. ld.acquire polls the counter until all kv blocks before have had this turn;
//   2. red adds, or st stores where the kv block is the first that the tile sees;
//   3. behind the next products, st.release counts the turn.
//
// Kv blocks draw their numbers in the order of the turns: who waits, waits for one that runs.
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm80/backward_sums/plan.cuh"

namespace flashsmith::sm80 {

template <class Kernel>
class DqTurns {
    static constexpr Sm80BlocksConfig kConfig = Kernel::kConfig;
    static constexpr i32 kTiles = kConfig.turn;
    static constexpr i32 kRows = kTiles * Kernel::kBr;
    static constexpr i32 kBc = Kernel::kBc;
    using Mask = typename Kernel::Mask;

  public:
    FS_DEVICE DqTurns(const BackwardArgs& args, u32 batch, i32 first_key, u32 warp)
        : args_(args), batch_(batch), first_key_(first_key), warp_(warp) {}

    // Whether the kv block is the first that adds to a q tile.
    FS_DEVICE bool is_first(const RisingCursor& at) const {
        return kConfig.unordered ? false : blocks_before(at.tile * Kernel::kBr) == 0;
    }

    // Whether it is the last one.
    FS_DEVICE bool is_last(const RisingCursor& at) const {
        if constexpr (!kConfig.rounds) return false;
        const i32 seen = Mask::seen_before(args_, (at.tile + 1) * Kernel::kBr);
        return first_key_ / kBc == (seen - 1) / kBc;
    }

    // Whether the sum of a q tile has to wait, in a walk of the tiles of `span`.
    FS_DEVICE bool waits(const RisingCursor& at, const Span& span) const {
        if constexpr (kConfig.unordered) return false;
        if (kTiles > 1 && at.tile != span.first && at.tile % kTiles != 0) return false;
        return blocks_before(at.tile / kTiles * kRows) > 0;
    }

    FS_DEVICE void wait(const RisingCursor& at) const {
        ptx::wait_acquire_gpu(args_.counters + counter_of(at), blocks_before(turn_row(at)));
        ptx::bar_warp_sync();  // all sums before are complete, for every lane
    }

    // All warps' sums of a q tile have been made: after its last tile, a turn can be counted.
    FS_DEVICE void made(const RisingCursor& at, const Span& span) {
        if constexpr (kConfig.unordered) return;
        const bool is_last =
            at.tile % kTiles == kTiles - 1 || at.tile == span.first + span.count - 1;
        if (!is_last) return;
        counter_ = counter_of(at);
        turns_ = blocks_before(turn_row(at)) + 1;
    }

    // Who waits for the turn is told of it.
    FS_DEVICE void count() {
        if (kConfig.unordered || turns_ == 0) return;
        ptx::bar_warp_sync();  // all lanes have added, or met those that have
        ptx::st_release_gpu_if(threadIdx.x % kWarpLanes == 0, args_.counters + counter_, turns_);
        turns_ = 0;
    }

  private:
    FS_DEVICE static i32 turn_row(const RisingCursor& at) { return at.tile / kTiles * kRows; }

    // Kv blocks that see rows from `row` on, a tile's or a turn's, before this one.
    FS_DEVICE u32 blocks_before(i32 row) const {
        return first_key_ / kBc - Mask::template blocks_before<kBc>(args_, row);
    }
    FS_DEVICE u32 counter_of(const RisingCursor& at) const {
        const u32 turns = (args_.padded_rows + kRows - 1) / kRows;  // of a head
        const u32 turn = (batch_ * args_.heads + at.head) * turns + at.tile / kTiles;
        return 1 + turn * kConfig.owners() + warp_;
    }

    const BackwardArgs& args_;
    const u32 batch_;
    const i32 first_key_;
    const u32 warp_;   // with roles: the two that have the same keys
    u32 counter_ = 0;  // of the turn that was had last,
    u32 turns_ = 0;    // and how many have had it; 0: that has been counted
};

}  // namespace flashsmith::sm80
