// The end of a block: O divided by the row sums, staged in Q's room, stored 16 bytes a lane; LSE.
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm80/softmax.cuh"

namespace flashsmith::sm80 {

// The position of a block's tile: which rows of which head.
struct TilePosition {
    int batch;
    int head;
    int first_row;
};

// The same of a sequence with lengths of its own; rows are counted from its first.
struct ListedPosition {
    int batch;
    int head;
    int first_row;
    ListedSequence sequence;
    int table_row;  // of tables that have one for each sequence
};

// The row of a tile's sequence in tables that have one for each.
FS_DEVICE int table_row_of(const TilePosition& tile) { return tile.batch; }
FS_DEVICE int table_row_of(const ListedPosition& tile) { return tile.table_row; }

template <class Args>
FS_DEVICE const Args& sequence_of(const Args& args, const TilePosition&) {
    return args;
}
template <class Args>
FS_DEVICE const ListedSequence& sequence_of(const Args&, const ListedPosition& tile) {
    return tile.sequence;
}

// The first column of V and O that this block of threads computes, where they are shared out.
template <class Kernel>
FS_DEVICE int first_v_column() {
    return static_cast<int>(blockIdx.y) * Kernel::kVCols;
}

// The row sums over all keys.
template <class Kernel>
struct RowTotals {
    float at[Kernel::kRowTiles][2];

    FS_DEVICE explicit RowTotals(const RowState<Kernel>& rows) {
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            at[i][0] = rows.total(i, 0);
            at[i][1] = rows.total(i, 1);
        }
    }

    FS_DEVICE void add_sink(const RowState<Kernel>& rows, float sink_log2) {
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                at[i][half] = sum_with_sink(at[i][half], -rows.shift[i][half], sink_log2);
            }
        }
    }
};

// ln(sum of exp(scaled logits)); -inf for a row that sees no key. A null address takes nothing, so
// that a kernel built ahead of time serves calls with and without it.
template <class Kernel, class Position>
FS_DEVICE void store_lse(const RowTotals<Kernel>& totals, const RowState<Kernel>& rows,
                         const ForwardArgs& args, const Position& tile, int warp_row,
                         [[maybe_unused]] float sink_log2) {
    const int lane = threadIdx.x % kWarpLanes;
    if (lane % 4 != 0 || args.lse == nullptr) return;
    const auto& sequence = sequence_of(args, tile);
    float* head = args.lse + (static_cast<i64>(tile.batch) * args.heads + tile.head) * args.q_len +
                  rows_before(sequence);
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = tile.first_row + warp_row + i * kMatrixSpan + half * 8 + lane / 4;
            float log2_sum = ptx::sub_rn(ptx::lg2(totals.at[i][half]), rows.shift[i][half]);
            if constexpr (Kernel::kNeeds.sinks) {
                log2_sum = lse_with_sink(totals.at[i][half], -rows.shift[i][half], sink_log2);
            }
            ptx::st_global_f32_if(head + row, ptx::mul_rn(log2_sum, kLn2),
                                  lane % 4 == 0 && row < sequence.q_len);
        }
    }
}

// A warp touches only its own rows of the staging room, whose Q it alone has read.
template <class Kernel>
FS_DEVICE void stage_output(const typename Kernel::O& o, const RowTotals<Kernel>& totals,
                            SmemAddr room, int warp_row) {
    using Tile = typename Kernel::QTile;
    const int lane = threadIdx.x % kWarpLanes;
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float sum = totals.at[i][half];
            const float reciprocal = ptx::rcp(sum);
            const float inverse = sum == 0.0f ? 0.0f : reciprocal;
            const int row = warp_row + i * kMatrixSpan + half * 8 + lane / 4;
            FS_UNROLL
            for (int n = 0; n < 2 * Kernel::kVSpans; ++n) {
                const u32 pair =
                    ptx::pack2<Kernel::kDType>(ptx::mul_rn(o.at[i][n][2 * half], inverse),
                                               ptx::mul_rn(o.at[i][n][2 * half + 1], inverse));
                ptx::st_shared_b32(room + Tile::offset(row, n) + lane % 4 * 4, pair);
            }
        }
    }
}

template <class Kernel, class Position>
FS_DEVICE void store_output(const typename Kernel::O& o, const RowState<Kernel>& rows,
                            SmemAddr room, const ForwardArgs& args, const Position& tile) {
    constexpr Needs kNeeds = Kernel::kNeeds;
    using Tile = typename Kernel::QTile;
    constexpr int kChunks = Kernel::kVCols / kChunkElements;  // of a row of O, staged in one of Q
    constexpr int kRowsAtOnce = kWarpLanes / kChunks > 1 ? kWarpLanes / kChunks : 1;
    const int lane = threadIdx.x % kWarpLanes;
    const int warp_row = threadIdx.x / kWarpLanes * Kernel::kWarpRows;
    const int chunk = lane % kChunks;

    RowTotals<Kernel> totals(rows);
    float sink_log2 = kNegativeInfinity;
    if constexpr (kNeeds.sinks) sink_log2 = args.sinks[tile.head] * kLog2E;
    if constexpr (kNeeds.lse && Kernel::kVSlices == 1) {
        store_lse<Kernel>(totals, rows, args, tile, warp_row, sink_log2);
    } else if constexpr (kNeeds.lse) {
        if (blockIdx.y == 0) store_lse<Kernel>(totals, rows, args, tile, warp_row, sink_log2);
    }
    if constexpr (kNeeds.sinks) totals.add_sink(rows, sink_log2);
    stage_output<Kernel>(o, totals, room, warp_row);
    ptx::bar_warp_sync();  // the warp's rows are staged

    const auto& sequence = sequence_of(args, tile);
    const int first = warp_row + lane / kChunks;
    const int first_row = rows_before(sequence) + tile.first_row + first;
    const i64 element = tile.batch * args.o.batch_stride + tile.head * args.o.head_stride +
                        static_cast<i64>(first_row) * args.o.seq_stride + chunk * kChunkElements;
    u64 destination = args.o.address + element * kElementBytes;
    if constexpr (Kernel::kVSlices > 1) destination += first_v_column<Kernel>() * kElementBytes;
    const i64 step_bytes = args.o.seq_stride * (kRowsAtOnce * kElementBytes);
    constexpr bool kNarrow = kNeeds.narrow_d || kNeeds.d_v;
    bool column = !kNarrow || chunk * kChunkElements < v_columns<kNeeds>(args);
    if constexpr (kNarrow && Kernel::kVSlices > 1) {
        column = chunk * kChunkElements < v_columns<kNeeds>(args) - first_v_column<Kernel>();
    }
    FS_UNROLL
    for (int done = 0; done < Kernel::kWarpRows; done += kRowsAtOnce) {
        const Chunk held = ptx::ld_shared_16b(room + Tile::offset(first + done, chunk));
        const bool row = !kNeeds.ragged_q || tile.first_row + first + done < sequence.q_len;
        if constexpr (kNeeds.ragged_q || kNarrow) {
            ptx::st_global_16b_if(destination, held, row && column);
        } else {
            ptx::st_global_16b(destination, held);
        }
        destination += step_bytes;
    }
}

}  // namespace flashsmith::sm80
