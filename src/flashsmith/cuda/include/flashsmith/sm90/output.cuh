// How O leaves a warpgroup: through shared memory and TMA, or straight from registers.
#pragma once

#include "flashsmith/attention/needs.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/stmatrix.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/args.cuh"
#include "flashsmith/sm90/config.cuh"
#include "flashsmith/sm90/tiles.cuh"

namespace flashsmith {

// The address that lane l of a warp gives to stmatrix for columns 16i..16i+15 of its 16 rows:
// lanes 0-15 its rows' even chunk, lanes 16-31 the odd one. `block` has 64 rows a panel.
FS_DEVICE SmemAddr swizzled_rows(SmemAddr block, int thread, int i) {
    const int lane = thread % kWarpLanes;
    const int row = thread / kWarpLanes * 16 + lane % 16;
    const int chunk = i % 4 * 2 + lane / 16;
    return block + ((i / 4) * kWarpgroupRows * kPanelRowBytes + row * kPanelRowBytes +
                    ((chunk ^ (row & 7)) << 4));
}

template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
struct HopperOutput {
    static constexpr int kD = kConfig.d_head;
    static constexpr u64 kPolicy = kConfig.l2_hints ? ptx::kEvictFirst : ptx::kEvictNormal;

    // Scales rows by `inverse`, rounds them and stages as many panels at a time as there is room
    // for; one thread stores them.
    template <int kCount>
    static FS_DEVICE void store_staged(const HopperForwardArgs& args, const HopperTile& tile,
                                       SmemAddr staging, int warpgroup, int thread,
                                       const float (&o)[kCount], const float (&inverse)[2]) {
        constexpr int kPanels = kConfig.panels(), kRoom = kConfig.o_panels();
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
                    chunk[j] = ptx::pack2<kConfig.dtype>(o[8 * i + 2 * j] * factor,
                                                         o[8 * i + 2 * j + 1] * factor);
                }
                ptx::stmatrix_x4(swizzled_rows(staging, thread, i - 4 * begin), chunk);
            }
            ptx::fence_proxy_async();
            ptx::bar_sync_named(barrier, kWarpgroupThreads);  // all is staged, for TMA to read
            FS_UNROLL
            for (int panel = begin; panel < end; ++panel) {
                ptx::tma_store_4d_if<kPolicy>(
                    thread == 0, args.o, {panel * kPanelColumns, row, tile.head, tile.batch},
                    staging + (panel - begin) * kWarpgroupRows * kPanelRowBytes);
            }
            ptx::bulk_commit_if(thread == 0);
        }
    }

    // A 4x4 transposition inside each quad gives every lane 8 consecutive columns: 16-byte stores.
    template <int kCount>
    static FS_DEVICE void store_direct(const HopperForwardArgs& args, const HopperTile& tile,
                                       int row_in_tile, int lane, const float (&o)[kCount],
                                       const float (&inverse)[2]) {
        const i32 row = tile.row + row_in_tile;
        const int column = (lane % 4) * kChunkElements;
        const TensorArg& out = args.o_direct;
        u64 dst = out.address + (tile.batch * out.batch_stride + tile.head * out.head_stride +
                                 row * out.seq_stride + column) *
                                    kElementBytes;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const bool inside = !kTraits.ragged_q || row + 8 * half < args.q_len;
            FS_UNROLL
            for (int group = 0; group < kD / 32; ++group) {
                u32 word[4];
                FS_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const int at = group * 16 + 4 * j + 2 * half;
                    word[j] =
                        ptx::pack2<kConfig.dtype>(o[at] * inverse[half], o[at + 1] * inverse[half]);
                }
                transpose_quad(word, lane);
                const bool kept = !kTraits.narrow_d || group * 32 + column < args.d_head;
                ptx::st_global_16b_if<kPolicy>(
                    dst + group * 64, {{word[0], word[1], word[2], word[3]}}, inside && kept);
            }
            dst += 8 * out.seq_stride * kElementBytes;
        }
    }

  private:
    // Word j of lane i of a quad becomes word i of lane j.
    static FS_DEVICE void transpose_quad(u32 (&word)[4], int lane) {
        FS_UNROLL
        for (int bit = 1; bit <= 2; bit *= 2) {
            const bool upper = lane & bit;
            FS_UNROLL
            for (int pair = 0; pair < 2; ++pair) {
                const int low = bit == 1 ? 2 * pair : pair, high = low + bit;
                const u32 other = ptx::shfl_bfly_b32(upper ? word[low] : word[high], bit);
                word[low] = upper ? other : word[low];
                word[high] = upper ? word[high] : other;
            }
        }
    }
};

}  // namespace flashsmith
