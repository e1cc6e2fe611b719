// How K and V come to a decode kernel's rings by TMA: a kv block is a few boxes, which complete on
// the barrier of its stage.
#pragma once

#include "flashsmith/decode/kernel.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/tile/panel.cuh"
#include "flashsmith/tile/ring.cuh"

namespace flashsmith::sm90 {

// Blocks that have passed through a team's ring: stage and parity of the next one.
struct DecodeRing {
    u32 blocks = 0;
};

// The copies of one team. Lanes of its first warp start a box each: a panel of K or of V, of the
// whole kv block or, where pages have fewer rows than that, of one page.
//
//   lane   0        1        2        3        4        …     with two panels
//          K, 0     K, 1     V, 0     V, 1     K, 0 of the next page
template <class Kernel>
class BoxCopies {
    using Tile = typename Kernel::KVTile;
    using Args = typename Kernel::Args;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr u32 kStages = Kernel::kStages;
    static constexpr int kFirst = Kernel::kStages - 1;  // kv blocks that are copied at the start
    static constexpr u32 kBoxes = 2 * Tile::kPanels;    // of a page, or of a block

  public:
    FS_DEVICE BoxCopies(SmemAddr smem, i32 team, const Args& args, const decode::DecodeWork& work,
                        const DecodeRing& ring)
        : args_(args),
          ring_(smem + Kernel::kRings + team * Kernel::kTeamBytes),
          barriers_(smem + Kernel::kBarriers + team * kStages * kBarrierBytes),
          blocks_(ring.blocks),
          batch_(work.batch),
          kv_head_(work.kv_head),
          end_key_(work.k_len),
          parity_(ring.blocks / kStages % 2) {
        const u32 thread = threadIdx.x % Kernel::kTeamThreads;
        const u32 panel = thread % Tile::kPanels;
        is_v_ = thread / Tile::kPanels % 2 != 0;
        row_ = static_cast<i32>(thread / kBoxes) * args.box_rows;
        column_ = panel * kPanelColumns;
        place_ = (is_v_ ? Kernel::kVRing : 0) + panel * Tile::kPanelBytes + row_ * kPanelRowBytes;
        starts_ = row_ < Kernel::kBc && thread < kWarpLanes;
        is_first_ = thread == 0;
    }

    FS_DEVICE int first_stage() const { return blocks_ % kStages; }
    FS_DEVICE int stage_of(int block) const { return (blocks_ + block) % kStages; }
    FS_DEVICE DecodeRing ring_behind(i32 blocks) const { return {blocks_ + blocks}; }

    // Copies are not grouped: each stage has its barrier.
    FS_DEVICE static void close() {}

    // Looks up the page of this lane's box: of number `set` of the first kv blocks, or, as number
    // kFirst, of any that comes later.
    FS_DEVICE void look_up([[maybe_unused]] i32 first_key, [[maybe_unused]] int set = kFirst) {
        if constexpr (kNeeds.page) {
            const i64 first = static_cast<i64>(batch_) * args_.table_pages;
            const i32 key = min(first_key + row_, args_.k_len - 1);
            page_[set] = ptx::ld_global_i32(args_.block_table + first + page_of(key));
        }
    }

    // Starts the copies of the keys from `first_key` on into a stage that the team has read.
    FS_DEVICE void copy(int stage, i32 first_key, [[maybe_unused]] int set = kFirst) const {
        const SmemAddr full = barriers_ + stage * kBarrierBytes;
        // A copy may complete before its bytes are expected: the phase lasts until both are done.
        if (is_first_) ptx::mbarrier_arrive_expect_tx(full, 2 * Tile::kBytes);
        if (!starts_) return;
        ptx::TmaCoordinates from{column_, first_key + row_, kv_head_, batch_};
        if constexpr (kNeeds.page) {
            // An entry that names no page is clamped: nothing outside the pool is read.
            from.batch = min(max(page_[set], 0), args_.pages - 1);
            from.row -= page_of(from.row) * args_.page;
        }
        const SmemAddr to = ring_ + (stage * Tile::kBytes + place_);
        constexpr u64 kPolicy = Kernel::kConfig.evict_first ? ptx::kEvictFirst : ptx::kEvictNormal;
        if (is_v_) {
            ptx::tma_load_4d<kPolicy>(to, args_.v_map, from, full);
        } else {
            ptx::tma_load_4d<kPolicy>(to, args_.k_map, from, full);
        }
    }

    // The block of a stage, from `first_key` on, has landed. Behind the last key of its sequence
    // memory may hold anything: V of such keys, whose weight is 0, becomes 0. A barrier of the team
    // must follow.
    FS_DEVICE void await(int stage, i32 first_key) {
        ptx::mbarrier_wait(barriers_ + stage * kBarrierBytes, parity_);
        if (stage == kStages - 1) parity_ ^= 1;
        if (kNeeds.ragged_k && first_key + Kernel::kBc > end_key_) clear(stage, first_key);
    }

  private:
    FS_DEVICE i32 page_of(i32 key) const {
        return args_.page_shift >= 0 ? key >> args_.page_shift
                                     : static_cast<u32>(key) / static_cast<u32>(args_.page);
    }

    FS_DEVICE void clear(int stage, i32 first_key) const {
        const SmemAddr rows = ring_ + (Kernel::kVRing + stage * Tile::kBytes);
        const u32 thread = threadIdx.x % Kernel::kTeamThreads;
        const u32 first = max(end_key_ - first_key, 0) * kPanelRowBytes + thread * kChunkBytes;
        FS_UNROLL
        for (int panel = 0; panel < Tile::kPanels; ++panel) {
            // The swizzle moves chunks inside their row.
            for (u32 at = first; at < Tile::kPanelBytes; at += Kernel::kTeamThreads * kChunkBytes) {
                ptx::st_shared_16b(rows + (panel * Tile::kPanelBytes + at), {{0, 0, 0, 0}});
            }
        }
    }

    const Args& args_;
    const SmemAddr ring_;
    const SmemAddr barriers_;  // of the team's stages
    const u32 blocks_;         // that passed through the ring in works before this one
    const i32 batch_;
    const i32 kv_head_;
    const i32 end_key_;
    u32 parity_;  // of the stage that is waited for next
    // This lane's box:
    u32 place_;   // in a stage
    i32 row_;     // its first one, in the kv block
    i32 column_;  // its first one
    bool is_v_;
    bool starts_;  // it has one
    bool is_first_;
    i32 page_[kFirst + 1];  // entries of the table, as they were read
};

// How K and V come to shared memory.
struct ByBoxes {
    template <int kRows, int kCols>
    using Tile = PanelTile<kRows, kCols>;
    template <class Kernel>
    using Copies = BoxCopies<Kernel>;
    using Ring = DecodeRing;

    // Q has landed: it is the only copy by cp.async.
    template <int kAhead>
    FS_DEVICE static void await_q() {
        ptx::cp_async_wait<0>();
    }
    // Threads wrote to the rings' memory, and TMA will. A barrier of the cta must follow.
    FS_DEVICE static void end_work() { ptx::fence_proxy_async(); }
};

}  // namespace flashsmith::sm90
