// How O leaves a warpgroup: through shared memory and TMA, or straight from registers.
#pragma once

#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/stmatrix.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/q_tile.cuh"
#include "flashsmith/tile/panel.cuh"

namespace flashsmith::sm90 {

// Rows of kD elements. kRoom: panels that a warpgroup has room to stage at a time. kRaggedRows,
// kNarrow: rows, or columns, may not exist.
template <DType kDType, int kD, int kRoom, u64 kPolicy, bool kRaggedRows, bool kNarrow>
struct RowsOutput {
    // Scales rows by `inverse`, rounds them and stages as many panels at a time as there is room
    // for; one thread stores them.
    template <int kCount>
    static FS_DEVICE void store_staged(const TensorMap& map, const QTile& tile, SmemAddr staging,
                                       int warpgroup, int thread, const float (&o)[kCount],
                                       const float (&inverse)[2]) {
        constexpr int kPanels = (kD + kPanelColumns - 1) / kPanelColumns;
        const u32 barrier = kWarpgroupBarrier + warpgroup;
        const i32 row = tile.row + warpgroup * kWarpgroupRows;
        FS_UNROLL
        for (int begin = 0; begin < kPanels; begin += kRoom) {
            const int end = begin + kRoom < kPanels ? begin + kRoom : kPanels;
            ptx::bulk_wait_read_if(thread == 0);
            ptx::bar_sync_named(barrier, kWarpgroupThreads);  // what was staged here has left
            FS_UNROLL
            for (int i = 4 * begin; i < 4 * end && i < kD / 16; ++i) {
                u32 chunk[4];
                FS_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const float factor = inverse[j & 1];
                    chunk[j] = ptx::pack2<kDType>(o[8 * i + 2 * j] * factor,
                                                  o[8 * i + 2 * j + 1] * factor);
                }
                ptx::stmatrix_x4(swizzled_rows(staging, thread, i - 4 * begin), chunk);
            }
            ptx::fence_proxy_async();
            ptx::bar_sync_named(barrier, kWarpgroupThreads);  // all is staged, for TMA to read
            FS_UNROLL
            for (int panel = begin; panel < end; ++panel) {
                ptx::tma_store_4d_if<kPolicy>(
                    thread == 0, map, {panel * kPanelColumns, row, tile.head, tile.batch},
                    staging + (panel - begin) * kWarpgroupRows * kPanelRowBytes);
            }
            ptx::bulk_commit_if(thread == 0);
        }
    }

    // A 4x4 transposition inside each quad gives every lane 8 consecutive columns: 16-byte stores.
    template <class Bounds, int kCount>
    static FS_DEVICE void store_direct(const TensorArg& out, const Bounds& bounds,
                                       const QTile& tile, int row_in_tile, int lane,
                                       const float (&o)[kCount], const float (&inverse)[2]) {
        const i32 row = tile.row + row_in_tile;
        const int column = (lane % 4) * kChunkElements;
        u64 dst = out.address + (tile.batch * out.batch_stride + tile.head * out.head_stride +
                                 row * out.seq_stride + column) *
                                    kElementBytes;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const bool inside = !kRaggedRows || row + 8 * half < bounds.rows();
            FS_UNROLL
            for (int group = 0; group < kD / 32; ++group) {
                u32 word[4];
                FS_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const int at = group * 16 + 4 * j + 2 * half;
                    word[j] = ptx::pack2<kDType>(o[at] * inverse[half], o[at + 1] * inverse[half]);
                }
                ptx::transpose_quad(word, lane);
                const bool kept = !kNarrow || group * 32 + column < bounds.columns();
                ptx::st_global_16b_if<kPolicy>(
                    dst + group * 64, {{word[0], word[1], word[2], word[3]}}, inside && kept);
            }
            dst += 8 * out.seq_stride * kElementBytes;
        }
    }
};

}  // namespace flashsmith::sm90
