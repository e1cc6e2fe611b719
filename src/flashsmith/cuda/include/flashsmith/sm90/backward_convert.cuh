// dQ: sums in float32, which lie as wgmma accumulators do, scaled and rounded into rows.
//
//   of each q tile pieces of 64 x 64:  d_head 64: two, by rows    128, 256: two, four, by columns
//   piece: thread t of 128 has 16 bytes at t / 32 * 4096 + r * 512 + t % 32 * 16, r = 0 .. 7
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/cache_policy.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/output_bounds.cuh"
#include "flashsmith/sm90/scratch_tiles.cuh"

namespace flashsmith::sm90 {

template <Sm90ConvertConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_convert(const Sm90BackwardArgs& args) {
    using Mask = flashsmith::Mask<kNeeds.causal, false, kNeeds.window_left>;
    using Output = RowsOutput<kConfig.dtype, kPanelColumns, 0, ptx::kEvictNormal, kNeeds.ragged_q,
                              kNeeds.narrow_d>;
    constexpr bool kByRows = kConfig.d_head == kPanelColumns;
    constexpr i32 kKeys = kConfig.keys();
    constexpr u32 kPieces = kConfig.pieces();
    const u32 piece = ptx::ctaid_x() % kPieces;
    u32 tile = ptx::ctaid_x() / kPieces;  // of all heads
    if (kConfig.heads_inner && args.dq.head_stride < args.dq.seq_stride) {
        const u32 rest = tile / args.heads, batch = rest / args.q_tiles;
        const u32 of_batch = batch * args.heads + tile - rest * args.heads;
        tile = of_batch * args.q_tiles + rest - batch * args.q_tiles;
    }
    const u32 batch_head = tile / args.q_tiles;
    const u32 batch = batch_head / args.heads;
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
    constexpr i32 kRows = kConfig.q_tile_rows();
    i32 first_row = (tile - batch_head * args.q_tiles) * kRows;
    ScratchTile own{};
    if constexpr (kListed<kNeeds>) {
        own = ScratchTile::of_rows<kRows>(args, first_row / kRows);
        if (own.q_len == 0) return;  // the list is shorter than the grid
        first_row = own.row;
    }
    const auto& of = own.template sequence<kNeeds>(args);

    const i32 seen = Mask::seen_before(of, first_row + kRows);
    float dq[32];
    if (seen > Mask::template blocks_before<kKeys>(of, first_row) * kKeys) {
        u64 held_at = kConfig.heads_inner ? tile * kPieces + piece : ptx::ctaid_x();
        if constexpr (kListed<kNeeds>) {
            const u32 of_head = own.tiles_before + own.row / kRows;
            held_at = (batch_head * args.q_tiles + of_head) * kPieces + piece;
        }
        const u64 sums =
            reinterpret_cast<u64>(args.dq_sums) + held_at * 16384 + warp * 4096 + lane * 16;
        FS_UNROLL
        for (int r = 0; r < 8; ++r) {
            const Chunk held = ptx::ld_global_16b(sums + r * 512);
            FS_UNROLL
            for (int e = 0; e < 4; ++e) dq[4 * r + e] = __builtin_bit_cast(float, held.word[e]);
        }
    } else {  // no kv block has added anything
        FS_UNROLL
        for (int i = 0; i < 32; ++i) dq[i] = 0.0f;
    }
    const i32 column = kByRows ? 0 : piece * kPanelColumns;
    TensorArg out = args.dq;
    out.address += column * kElementBytes;
    if constexpr (kListed<kNeeds>) out.address += own.q_begin * out.seq_stride * kElementBytes;
    const QTile at{first_row + (kByRows ? static_cast<i32>(piece) * kWarpgroupRows : 0), 0,
                   static_cast<i32>(batch_head - batch * args.heads), static_cast<i32>(batch)};
    const float slope = Score<kNeeds>::slope(args);
    const float factors[2] = {slope, slope};
    Output::store_direct(out, OutputBounds{of.q_len, args.d_head - column}, at,
                         warp * 16 + lane / 4, lane, dq, factors);
}

}  // namespace flashsmith::sm90
