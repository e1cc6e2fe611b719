// How rows of K and V come to their stages where pages are too small for boxes: by cp.async.
//
// A box takes about as long to issue as 32 lanes take for its bytes (H200, 2026-11), and one thread
// issues all of them. Here a warp copies K, another one V; the producer tells them what:
//
//   producer ──► order_full ──► warp of K, or of V: where do rows lie? is the stage free? ──► full
//            ◄── order_empty ◄──┘
//
// Orders come before their stages are free, so that the table is read meanwhile. The slot of the
// tile that an order names is kept until consumers have read the tile's last block.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/producer.cuh"

namespace flashsmith::sm90 {

template <class Kernel, bool kIsV>
class RowCopies {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    static constexpr int kChunks = kPanelRowBytes / kChunkBytes;
    static constexpr int kRowsAtOnce =
        kWarpLanes / kChunks;  // of a panel, by one copy of all lanes
    // Lane i knows where rows i, 32 + i, … lie: how many chunks behind the pool's first.
    static constexpr int kHeld = (kConfig.B_c + kWarpLanes - 1) / kWarpLanes;
    // Columns behind the last one become zeros.
    static constexpr bool kEndsInPanel = Kernel::kNeeds.narrow_d || (kIsV && Kernel::kNeeds.d_v) ||
                                         kConfig.d_head % kPanelColumns != 0;

    static_assert(kConfig.B_c % kRowsAtOnce == 0, "a kv block must be whole copies.");

    struct Places {
        u32 of_row[kHeld];
    };

  public:
    FS_DEVICE RowCopies(const Args& args, Plan smem)
        : args_(args),
          tensor_(kIsV ? args.v_rows : args.k_rows),
          smem_(smem),
          lane_(threadIdx.x % kWarpLanes) {}

    // What the producer tells, stage by stage.
    FS_DEVICE void run() const {
        int stage = 0;
        u32 parity = 0;
        while (true) {
            ptx::mbarrier_wait(smem_.order_full(kIsV, stage), parity);
            const u32 order = ptx::ld_shared_b32(smem_.order(kIsV, stage));
            ptx::bar_warp_sync();  // all lanes have read it
            ptx::mbarrier_arrive_if(lane_ == 0, smem_.order_empty(kIsV, stage));
            if (order == kNoOrder) return;
            const int slot = order % kTileSlots;
            const i32 first = order / kTileSlots * kConfig.B_c;
            const auto keys = typename Kernel::Listed{smem_.base}.keys(slot);
            const Places places = look_up(slot, keys.head, first);
            ptx::mbarrier_wait(kIsV ? smem_.v_empty(stage) : smem_.k_empty(stage), parity ^ 1);
            copy(places, keys.length - first, kIsV ? smem_.v(stage) : smem_.k(stage));
            ptx::cp_async_commit();
            ptx::cp_async_wait<0>();
            ptx::fence_proxy_async();  // wgmma reads them
            ptx::bar_warp_sync();      // those of all lanes have landed
            ptx::mbarrier_arrive_if(lane_ == 0, kIsV ? smem_.v_full(stage) : smem_.k_full(stage));
            if (++stage == kConfig.kv_stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }

  private:
    // Rows from key `first` on, of the sequence of the tile in `slot`.
    FS_DEVICE Places look_up(int slot, i32 head, i32 first) const {
        const i32 batch = QTile::get(smem_.tile(slot)).batch;
        Places found;
        FS_UNROLL
        for (int i = 0; i < kHeld; ++i) {
            found.of_row[i] = place(batch, head, first + i * kWarpLanes + lane_);
        }
        return found;
    }

    // Where a key of a sequence lies. An entry that names no page is clamped: nothing outside the
    // pool is read.
    FS_DEVICE u32 place(i32 batch, i32 head, i32 key) const {
        const i32* const entries = args_.block_table + static_cast<i64>(batch) * args_.table_pages;
        const i32 number = min(page_of(args_, key), args_.table_pages - 1);
        const i32 page = min(max(ptx::ld_global_i32(entries + number), 0), args_.pages - 1);
        const i64 element = page * tensor_.batch_stride + head * tensor_.head_stride +
                            static_cast<i64>(key - number * args_.page) * tensor_.seq_stride;
        return static_cast<u32>(element / kChunkElements);
    }

    // Rows from row `end` on become zeros.
    FS_DEVICE void copy(const Places& places, i32 end, SmemAddr stage) const {
        const int own_row = lane_ / kChunks, chunk = lane_ % kChunks;
        FS_UNROLL
        for (int i = 0; i < kHeld; ++i) {
            const int behind = min((i + 1) * kWarpLanes, kConfig.B_c) - i * kWarpLanes;
            i32 next = ptx::shfl_idx(places.of_row[i], own_row);
            // Unrolled, it would take registers that the producer's warpgroup does not have.
            _Pragma("unroll 1") for (int of_lane = 0; of_lane < behind; of_lane += kRowsAtOnce) {
                const u64 from = static_cast<u32>(next) + static_cast<u64>(chunk);
                // The last one's is a row that has been: lanes are counted round and round.
                next = ptx::shfl_idx(places.of_row[i], of_lane + kRowsAtOnce + own_row);
                const int row = i * kWarpLanes + of_lane + own_row;
                copy_row(stage + PanelTile<kConfig.B_c, kPanelColumns>::offset(row, chunk),
                         tensor_.address + from * kChunkBytes, chunk, row < end);
            }
        }
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
