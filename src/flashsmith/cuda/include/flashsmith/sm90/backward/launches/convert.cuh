// A launch that rounds dQ, a warpgroup a piece.
#pragma once

#include "flashsmith/ptx/grid_dependency.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm90/backward/rounding.cuh"

namespace flashsmith::sm90 {

template <Sm90ConvertConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_convert(const Sm90BackwardArgs& args) {
    using Mask = flashsmith::Mask<kNeeds.causal, false, kNeeds.window_left>;
    using Rows = DqRows<kConfig.dtype, kConfig.d_head, kNeeds>;
    constexpr i32 kKeys = kConfig.keys();
    constexpr u32 kPieces = kConfig.pieces();
    if constexpr (kConfig.early_start) ptx::wait_for_launch_before();  // sums are complete
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
        Rows::load(dq, Rows::place(args, held_at, warp, lane));
    } else {  // no kv block has added anything
        Rows::clear(dq);
    }
    TensorArg out = args.dq;
    if constexpr (kListed<kNeeds>) out.address += own.q_begin * out.seq_stride * kElementBytes;
    Rows::store(args, out, of.q_len, first_row, piece,
                static_cast<i32>(batch_head - batch * args.heads), static_cast<i32>(batch), warp,
                lane, dq);
}

}  // namespace flashsmith::sm90
