// dQ of every row: sums of float32 in scratch memory, scaled and rounded.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm80/backward_sums/dq_piece.cuh"
#include "flashsmith/sm80/backward_tile.cuh"

namespace flashsmith::sm80 {

// A warp has 16 rows.
template <Sm80RoundingConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_rounding(const BackwardArgs& args) {
    using Mask = flashsmith::Mask<kNeeds.causal, false, kNeeds.window_left>;
    using Tile = SmemTile<kConfig.rows(), kConfig.d_head, true>;
    constexpr int kColTiles = kConfig.d_head / DqPiece::kCols;
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr room{static_cast<u32>(__cvta_generic_to_shared(smem))};
    const u32 blocks = args.padded_rows / kConfig.rows();
    const u32 head = ptx::ctaid_x() / blocks;  // of all sequences
    const i32 first_row = (ptx::ctaid_x() - head * blocks) * kConfig.rows();
    if (first_row >= args.q_len) return;  // padding
    const u32 batch = head / args.heads;

    Accumulator<1, kColTiles> dq;
    dq.clear();
    const i32 tile = first_row / kConfig.B_r * kConfig.B_r;  // to which kv blocks added at a time
    // A tile that sees no key has no sums.
    if (Mask::seen_before(args, tile + kConfig.B_r) > max(Mask::first_seen(args, tile), 0)) {
        const i64 row = static_cast<i64>(head) * args.padded_rows + first_row +
                        threadIdx.x / kWarpLanes * DqPiece::kRows;
        const DqPiece first = DqPiece::at_row(args.dq_sums, row, kConfig.d_head);
        FS_UNROLL
        for (int n = 0; n < kColTiles; ++n) first.behind(n).load(dq.at[0][n]);
    }
    const RowsPosition at{batch, head - batch * args.heads, first_row, args.q_len};
    constexpr CopyChecks kChecks{kNeeds.ragged_q, kNeeds.narrow_d};
    store_gradient<Tile, kConfig.dtype, kChecks>(dq, Score<kNeeds>::slope(args), room, args.dq, at,
                                                 args.d_head);
}

}  // namespace flashsmith::sm80
