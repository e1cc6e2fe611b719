// The products of a backward kernel, and what becomes of scores between them.
//
// Both kernels own rows and walk tiles of the other side. With A the owned rows, B a tile:
//
//               owns        walks       S = A1 B1ᵀ   dP = A2 B2ᵀ   gradients
//   dK, dV      keys        queries     K Qᵀ         V dOᵀ         dV += P dO, dK += dS Q
//   dQ          queries     keys        Q Kᵀ         dO Vᵀ         dQ += dS K
//
// A row of S is in the registers of one warp, as mma leaves results, and so are P and dS: the
// layout of a result is that of operand A, and neither passes through shared memory.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/tile/fragment.cuh"

namespace flashsmith::sm80 {

// A warp barrier every so many spans: ptxas moves no ldmatrix across it, and so does not spill to
// hold operands early.
inline constexpr int kFenceSpans = 1;

// acc = A Bᵀ of rows in shared memory, along kSpans spans of 16 elements.
template <DType kDType, int kSpans, int kRowTiles, int kColTiles, class RowsA, class RowsB>
FS_DEVICE void multiply_by_rows(Accumulator<kRowTiles, kColTiles>& acc, const RowsA& rows_a,
                                const RowsB& rows_b) {
    acc.clear();
    FS_UNROLL
    for (int span = 0; span < kSpans; ++span) {
        if (span > 0 && span % kFenceSpans == 0) ptx::bar_warp_sync();
        u32 a[kRowTiles][4];
        FS_UNROLL
        for (int i = 0; i < kRowTiles; ++i) rows_a.read(a[i], i, span);
        FS_UNROLL
        for (int n = 0; n < kColTiles / 2; ++n) {
            u32 b[4];
            rows_b.read(b, n, span);
            FS_UNROLL
            for (int i = 0; i < kRowTiles; ++i) {
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float (&d)[4] = acc.at[i][2 * n + half];
                    ptx::mma_m16n8k16<kDType>(d, a[i], b + 2 * half, d);
                }
            }
        }
    }
}

// acc += A B of an A in registers and rows of B along the contraction.
template <DType kDType, int kSpans, int kRowTiles, int kColTiles, class RowsB>
FS_DEVICE void add_product(Accumulator<kRowTiles, kColTiles>& acc,
                           const Fragments<kRowTiles> (&a)[kSpans], const RowsB& rows_b) {
    FS_UNROLL
    for (int span = 0; span < kSpans; ++span) {
        if (span > 0) ptx::bar_warp_sync();
        FS_UNROLL
        for (int n = 0; n < kColTiles / 2; ++n) {
            u32 b[4];
            rows_b.read_transposed(b, span, n);
            FS_UNROLL
            for (int i = 0; i < kRowTiles; ++i) {
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float (&d)[4] = acc.at[i][2 * n + half];
                    ptx::mma_m16n8k16<kDType>(d, a[span].at[i], b + 2 * half, d);
                }
            }
        }
    }
}

// What the forward pass says of a query row, and what its gradient does: with c the score's factor,
// P = 2^(c s + shift) and dS = P (dP - delta). A row that saw no key has shift -inf, and P 0.
struct RowStatistics {
    float shift;
    float delta;

    // Of row `row` in scratch memory; one that does not exist has no weight.
    FS_DEVICE void read(const float* statistics, i64 row, bool exists) {
        shift = kNegativeInfinity;
        delta = 0.0f;
        if (exists) ptx::ld_global_f32x2(shift, delta, statistics + 2 * row);
    }
};

FS_DEVICE float weight_of(float s, float factor, const RowStatistics& row) {
    return ptx::ex2(ptx::fma_rn(s, factor, row.shift));
}

FS_DEVICE float score_gradient(float p, float dp, const RowStatistics& row) {
    return ptx::mul_rn(p, ptx::sub_rn(dp, row.delta));
}

// From dP to the gradients of scores, where rows of the tile are query rows: a thread has two of
// every row tile.
template <int kRowTiles, int kColTiles>
FS_DEVICE void to_gradients(Accumulator<kRowTiles, kColTiles>& dp,
                            const Accumulator<kRowTiles, kColTiles>& s,
                            const RowStatistics (&rows)[kRowTiles][2], const float& factor) {
    FS_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
        FS_UNROLL
        for (int n = 0; n < kColTiles; ++n) {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) {
                const RowStatistics& row = rows[i][e / 2];
                const float p = weight_of(s.at[i][n][e], factor, row);
                dp.at[i][n][e] = score_gradient(p, dp.at[i][n][e], row);
            }
        }
    }
}

// From products of one head to scores, and the slope that each has of its own. `distance`: between
// the query row and the key of this thread's first one.
template <class Score, class Args, int kRowTiles, int kColTiles>
FS_DEVICE void change_scores(const Args& args, u32 batch, u32 head,
                             Accumulator<kRowTiles, kColTiles>& s,
                             Accumulator<kRowTiles, kColTiles>& bends,
                             [[maybe_unused]] i32 distance) {
    const Score score = Score::of_head(args, batch, head);
    FS_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
        FS_UNROLL
        for (int n = 0; n < kColTiles; ++n) {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) {
                if constexpr (Score::kBends) bends.at[i][n][e] = score.bend(s.at[i][n][e]);
                s.at[i][n][e] = score.of(args, s.at[i][n][e]);
            }
        }
        if constexpr (Score::kHasDistances) {
            score.subtract_distances(s.row_tile(i), distance + i * kMatrixSpan);
        }
    }
}

template <int kRowTiles, int kColTiles>
FS_DEVICE void multiply_elements(Accumulator<kRowTiles, kColTiles>& by,
                                 const Accumulator<kRowTiles, kColTiles>& with) {
    FS_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
        FS_UNROLL
        for (int n = 0; n < kColTiles; ++n) {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) by.at[i][n][e] *= with.at[i][n][e];
        }
    }
}

// Results of kColTiles columns of 8 as operands A: two of their tiles make a span of 16.
template <DType kDType, int kRowTiles, int kColTiles>
FS_DEVICE void pack(Fragments<kRowTiles> (&dst)[kColTiles / 2],
                    const Accumulator<kRowTiles, kColTiles>& src) {
    FS_UNROLL
    for (int n = 0; n < kColTiles; ++n) {
        FS_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                dst[n / 2].at[i][n % 2 * 2 + half] =
                    ptx::pack2<kDType>(src.at[i][n][2 * half], src.at[i][n][2 * half + 1]);
            }
        }
    }
}

}  // namespace flashsmith::sm80
