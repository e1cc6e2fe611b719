// How pages of K and V come to their stages: by a warp each, which the producer tells what is next.
//
//   producer ── order ──► warp of K, or of V: where do pages lie? is the stage free? ──► full
//
// Its lanes look up a page each, so that the table is read once a kv block and not once a page; and
// while the stage is still read. Pages that are whole boxes come by TMA, a lane a page. Others, and
// the last rows of V of a sequence, come row by row through cp.async, which writes zeros behind.
//
// The slot of the tile that an order names is kept until consumers have read the tile's last block.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/kernel.cuh"
#include "flashsmith/sm90/tile_order.cuh"

namespace flashsmith::sm90 {

template <class Kernel, bool kIsV>
class PageCopies {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    static constexpr u64 kPolicy = kConfig.l2_hints ? ptx::kEvictLast : ptx::kEvictNormal;
    static constexpr int kChunks = kPanelRowBytes / kChunkBytes;
    static constexpr int kRowsAtOnce = kWarpLanes / kChunks;  // of a panel, by a copy of all lanes
    static constexpr int kHeld = (kConfig.B_c + kWarpLanes - 1) / kWarpLanes;  // rows a lane
    // Columns behind the last one become zeros.
    static constexpr bool kEndsInPanel = Kernel::kNeeds.narrow_d || (kIsV && Kernel::kNeeds.d_v) ||
                                         kConfig.d_head % kPanelColumns != 0;

    static_assert(kConfig.B_c % kRowsAtOnce == 0, "a kv block must be whole copies.");
    static_assert(kConfig.cluster == 1, "the warps copy to their own cta's memory.");

    // The kv block that is to come.
    struct Block {
        i32 batch, head, first, left;  // keys of the sequence from `first` on
    };

  public:
    FS_DEVICE PageCopies(const Args& args, Plan smem)
        : args_(args),
          tensor_(kIsV ? args.v_rows : args.k_rows),
          smem_(smem),
          lane_(threadIdx.x % kWarpLanes) {}

    // What the producer tells, stage by stage.
    FS_DEVICE void run() const {
        const typename Kernel::Orders orders{smem_.base};
        int stage = 0;
        u32 parity = 0;
        while (true) {
            const u32 order = orders.take(kIsV, stage, parity, lane_);
            if (order == Kernel::Orders::kNone) return;
            const Block block = block_of(order);
            // What K holds behind the last key is hidden; V there would be multiplied by zeros.
            if (args_.page_box > 0 && (!kIsV || block.left >= kConfig.B_c)) {
                copy_boxes(block, stage, parity);
            } else {
                copy_rows(block, stage, parity);
            }
            if (++stage == kConfig.kv_stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }

  private:
    FS_DEVICE Block block_of(u32 order) const {
        const int slot = order % kTileSlots;
        const i32 first = order / kTileSlots * kConfig.B_c;
        const auto keys = typename Kernel::Listed{smem_.base}.keys(slot);
        return {QTile::get(smem_.tile(slot)).batch, keys.head, first, keys.length - first};
    }

    FS_DEVICE void wait_until_free(int stage, u32 parity) const {
        ptx::mbarrier_wait(kIsV ? smem_.v_empty(stage) : smem_.k_empty(stage), parity ^ 1);
    }
    FS_DEVICE SmemAddr room(int stage) const { return kIsV ? smem_.v(stage) : smem_.k(stage); }
    FS_DEVICE SmemAddr full(int stage) const {
        return kIsV ? smem_.v_full(stage) : smem_.k_full(stage);
    }

    // Which page of its sequence a key is in.
    FS_DEVICE i32 number_of(i32 key) const {
        const i32 number =
            args_.page_shift >= 0 ? key >> args_.page_shift : Division(key, args_.page).quotient;
        return min(number, args_.table_pages - 1);
    }

    // An entry that names no page is clamped: nothing outside the pool is read.
    FS_DEVICE i32 entry(i32 batch, i32 number) const {
        const i32* const entries = args_.block_table + static_cast<i64>(batch) * args_.table_pages;
        return min(max(ptx::ld_global_i32(entries + number), 0), args_.pages - 1);
    }

    // A box is a page, or a kv block where that has fewer rows. Behind the last row of a page a box
    // brings zeros.
    FS_DEVICE void copy_boxes(const Block& block, int stage, u32 parity) const {
        const i32 row = lane_ * args_.page_box;
        const i32 number = number_of(block.first + row);
        const i32 page = row < kConfig.B_c ? entry(block.batch, number) : 0;
        wait_until_free(stage, parity);
        if (lane_ == 0) ptx::mbarrier_arrive_expect_tx(full(stage), kConfig.kv_bytes());
        ptx::bar_warp_sync();  // the bytes are expected
        if (row >= kConfig.B_c) return;
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            ptx::tma_load_4d<kPolicy>(
                room(stage) + (panel * kConfig.B_c + row) * kPanelRowBytes,
                kIsV ? args_.v : args_.k,
                {panel * kPanelColumns, block.first + row - number * args_.page, block.head, page},
                full(stage));
        }
    }

    FS_DEVICE void copy_rows(const Block& block, int stage, u32 parity) const {
        // Lane i looks up rows i, 32 + i, …: how many chunks behind the pool's first one they lie.
        u32 rows[kHeld];
        FS_UNROLL
        for (int i = 0; i < kHeld; ++i) {
            rows[i] = chunks_before(block, block.first + i * kWarpLanes + lane_);
        }
        wait_until_free(stage, parity);
        const int own_row = lane_ / kChunks, chunk = lane_ % kChunks;
        FS_UNROLL
        for (int i = 0; i < kHeld; ++i) {
            i32 next = ptx::shfl_idx(rows[i], own_row);
            const int behind = min((i + 1) * kWarpLanes, kConfig.B_c) - i * kWarpLanes;
            // Unrolled, it would take registers that the warps do not have.
            _Pragma("unroll 1") for (int of_lane = 0; of_lane < behind; of_lane += kRowsAtOnce) {
                const u32 of_row = next;
                // The last one's is a row that has been: lanes are counted round and round.
                next = ptx::shfl_idx(rows[i], of_lane + kRowsAtOnce + own_row);
                const int row = i * kWarpLanes + of_lane + own_row;
                copy_row(room(stage) + PanelTile<kConfig.B_c, kPanelColumns>::offset(row, chunk),
                         tensor_.address + (static_cast<u64>(of_row) + chunk) * kChunkBytes, chunk,
                         row < block.left);
            }
        }
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();  // wgmma reads them
        ptx::bar_warp_sync();      // those of all lanes have landed
        ptx::mbarrier_arrive_if(lane_ == 0, full(stage));
    }

    FS_DEVICE u32 chunks_before(const Block& block, i32 key) const {
        const i32 number = number_of(key);
        const i64 element = entry(block.batch, number) * tensor_.batch_stride +
                            block.head * tensor_.head_stride +
                            static_cast<i64>(key - number * args_.page) * tensor_.seq_stride;
        return static_cast<u32>(element / kChunkElements);
    }

    // A chunk of a row in every panel.
    FS_DEVICE void copy_row(SmemAddr to, u64 from, int chunk, bool exists) const {
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            const int column = panel * kPanelColumns + chunk * kChunkElements;
            ptx::cp_async_16b_or_zero(to + panel * kConfig.B_c * kPanelRowBytes,
                                      from + panel * kPanelRowBytes,
                                      exists && (!kEndsInPanel || column < columns()));
        }
    }

    FS_DEVICE i32 columns() const { return kIsV ? v_columns<Kernel::kNeeds>(args_) : args_.d_head; }

    const Args& args_;
    const TensorArg& tensor_;
    const Plan smem_;
    const int lane_;
};

}  // namespace flashsmith::sm90
