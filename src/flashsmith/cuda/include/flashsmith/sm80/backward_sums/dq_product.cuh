// A warp's part in dQ: 32 rows and some columns of each q tile, multiplied from dS in shared memory
// and added to float32 sums in scratch memory.
#pragma once

#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/sm80/backward_sums/dq_piece.cuh"
#include "flashsmith/sm80/backward_sums/plan.cuh"

namespace flashsmith::sm80 {

template <class Kernel>
class DqProduct {
    static constexpr Sm80BlocksConfig kConfig = Kernel::kConfig;
    static constexpr int kRowTiles = kConfig.dq_rows() / kMatrixSpan;
    static constexpr int kCols = kConfig.dq_part_columns();  // multiplied at a time
    static constexpr u32 kColumnsOfWarps = kConfig.d_head / kConfig.dq_columns();
    using Dq = Accumulator<kRowTiles, kCols / 8>;
    using DsTile = typename Kernel::DsTile;
    using DsTransposed = FragmentReader<DsTile, MatrixOrder::kColsFirst>;
    using KeysTransposed = FragmentReader<typename Kernel::KeyTile, MatrixOrder::kRowsFirst>;

  public:
    FS_DEVICE DqProduct(const BackwardArgs& args, SmemAddr smem, u32 warp)
        : args_(args),
          smem_(smem),
          row_(warp / kColumnsOfWarps * kConfig.dq_rows()),
          column_(warp % kColumnsOfWarps * kConfig.dq_columns()) {}

    // What the kv block gives to the q tile at `row` of scratch memory, from dS in stage `stage`.
    // `wait` returns when it may be added. The first kv block stores it; the last one takes the
    // sums of the others and rounds them, into rows of dQ from `to` on.
    template <class Wait>
    FS_DEVICE void add(i64 row, const RowsPosition& to, int stage, bool is_first, bool is_last,
                       const Wait& wait) const {
        FS_UNROLL
        for (int part = 0; part < kConfig.dq_columns(); part += kCols) {
            Dq dq;
            multiply(dq, stage, column_ + part);
            if (part == 0) wait();
            const DqPiece first = DqPiece::at_row(args_.dq_sums, row + row_, kConfig.d_head)
                                      .behind((column_ + part) / DqPiece::kCols);
            if (is_last) {
                if (!is_first) {
                    for_pieces(first, dq, [](const DqPiece& piece, float (&x)[4]) {
                        float sum[4];
                        piece.load(sum);
                        FS_UNROLL
                        for (int e = 0; e < 4; ++e) x[e] = ptx::add_rn(sum[e], x[e]);
                    });
                }
                store_rows(dq, to, column_ + part);
            } else if (is_first) {
                for_pieces(first, dq,
                           [](const DqPiece& piece, const float (&x)[4]) { piece.store(x); });
            } else {
                for_pieces(first, dq,
                           [](const DqPiece& piece, const float (&x)[4]) { piece.add(x); });
            }
        }
    }

  private:
    // dQ = dS K over all keys of the block.
    FS_DEVICE void multiply(Dq& dq, int stage, u32 column) const {
        const DsTransposed ds(smem_ + Kernel::kDs + stage * DsTile::kBytes, 0, row_ / 8);
        const KeysTransposed k(smem_ + Kernel::kK, 0, column / 8);
        dq.clear();
        FS_UNROLL
        for (int span = 0; span < Kernel::kBc / kMatrixSpan; ++span) {
            if (span > 0) ptx::bar_warp_sync();
            Fragments<kRowTiles> a[1];
            FS_UNROLL
            for (int i = 0; i < kRowTiles; ++i) ds.read_transposed(a[0].at[i], span, i);
            add_product<Kernel::kDType>(dq, a, k.below(span * kMatrixSpan));
        }
    }

    // Lanes of a quad change places so that each has 16 bytes of a row.
    FS_DEVICE void store_rows(const Dq& dq, const RowsPosition& to, u32 column) const {
        const u32 lane = threadIdx.x % kWarpLanes;
        const float factor = Kernel::Score::slope(args_);
        FS_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const i32 row = to.first_row + row_ + i * kMatrixSpan + half * 8 + lane / 4;
                FS_UNROLL
                for (int n = 0; n < kCols / 8; n += 4) {
                    Chunk held;
                    FS_UNROLL
                    for (int j = 0; j < 4; ++j) {
                        const float (&x)[4] = dq.at[i][n + j];
                        held.word[j] = ptx::pack2<Kernel::kDType>(
                            ptx::mul_rn(x[2 * half], factor), ptx::mul_rn(x[2 * half + 1], factor));
                    }
                    ptx::transpose_quad(held.word, lane % 4);
                    const i32 first = column + (n + lane % 4) * 8;
                    const i64 element = to.batch * args_.dq.batch_stride +
                                        to.head * args_.dq.head_stride + row * args_.dq.seq_stride +
                                        first;
                    const bool exists = (!Kernel::kNeeds.ragged_q || row < to.end_row) &&
                                        (!Kernel::kNeeds.narrow_d || first < args_.d_head);
                    ptx::st_global_16b_if(args_.dq.address + element * kElementBytes, held, exists);
                }
            }
        }
    }

    template <class Use, class Pieces>
    FS_DEVICE static void for_pieces(const DqPiece& first, Pieces& dq, const Use& use) {
        constexpr int kOfRows = kConfig.d_head / DqPiece::kCols;  // pieces of 16 rows
        FS_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
            FS_UNROLL
            for (int n = 0; n < kCols / DqPiece::kCols; ++n) {
                use(first.behind(i * kOfRows + n), dq.at[i][n]);
            }
        }
    }

    const BackwardArgs& args_;
    const SmemAddr smem_;
    const u32 row_;
    const u32 column_;
};

}  // namespace flashsmith::sm80
