// Online softmax of one warp, in the exp2 domain: row references, row sums, and P from S.
//
// A thread owns two rows of every 16-row tile (lane / 4 and 8 below) and a quarter of their
// columns; the four lanes of a quad share their rows. With c = scale * log2(e) and x a logit before
// scaling, P = 2^(c x - c m), where m is the row's reference: a maximum of the logits so far.
#pragma once

#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/sm80/static_config.cuh"

namespace flashsmith::sm80 {

FS_DEVICE float quad_max(float x) {
    x = ptx::max(x, ptx::shfl_bfly(x, 1));
    return ptx::max(x, ptx::shfl_bfly(x, 2));
}

FS_DEVICE float quad_sum(float x) {
    x = ptx::add_rn(x, ptx::shfl_bfly(x, 1));
    return ptx::add_rn(x, ptx::shfl_bfly(x, 2));
}

// With optimized_softmax, the power of two that a row's largest P may reach before sums and O are
// rescaled: 2^8 loses nothing in either element type, and fp32 sums have room for far more.
inline constexpr float kRescaleThreshold = 8.0f;

template <class Kernel>
struct RowState {
    // -c m: what is added in the exponent. kUnseen for a row that has seen no key.
    float shift[Kernel::kRowTiles][2];
    static constexpr float kUnseen =
        Kernel::Bias::kExists ? -Kernel::Bias::kLeastMaximum : -kNegativeInfinity;
    // Of P. By mma: the row's sum, twice a row, as mma lays results out. Else one a row: over this
    // thread's columns if optimized, over all if not.
    static constexpr int kSums = Kernel::kSumByMma ? 4 : 2;
    float sum[Kernel::kRowTiles][kSums];

    FS_DEVICE void clear() {
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            shift[i][0] = shift[i][1] = kUnseen;
            FS_UNROLL
            for (int e = 0; e < kSums; ++e) sum[i][e] = 0.0f;
        }
    }

    // The sum of a row, once all of its blocks are in.
    FS_DEVICE float total(int i, int half) const {
        if constexpr (Kernel::kSumByMma) return sum[i][2 * half];
        return Kernel::kOptimizedSoftmax ? quad_sum(sum[i][half]) : sum[i][half];
    }
};

// The largest logit of a row in this step, of this thread's columns; NaN is passed over here and
// caught by the exponential.
template <class Kernel>
FS_DEVICE float thread_max(const typename Kernel::S& s, int i, int half) {
    float x = ptx::max(s.at[i][0][2 * half], s.at[i][0][2 * half + 1]);
    FS_UNROLL
    for (int n = 1; n < 2 * Kernel::kStepSpans; ++n) {
        x = ptx::max(x, ptx::max(s.at[i][n][2 * half], s.at[i][n][2 * half + 1]));
    }
    return x;
}

// Where masks can leave a row without any key, its shift counts as 0: -inf + inf would be NaN.
template <bool kMasked>
FS_DEVICE float finite_shift(float shift) {
    return kMasked && shift == -kNegativeInfinity ? 0.0f : shift;
}

// Moves a row to a new shift: what was summed up under the old one shrinks by a factor.
template <class Kernel, bool kMasked>
FS_DEVICE void rescale_row(RowState<Kernel>& rows, typename Kernel::O& o, float new_shift, int i,
                           int half) {
    const float change = ptx::sub_rn(finite_shift<kMasked>(new_shift), rows.shift[i][half]);
    const float factor = ptx::ex2(change);
    rows.shift[i][half] = new_shift;
    constexpr int kSums = RowState<Kernel>::kSums;
    FS_UNROLL
    for (int e = half * kSums / 2; e < (half + 1) * kSums / 2; ++e) {
        rows.sum[i][e] = ptx::mul_rn(rows.sum[i][e], factor);
    }
    FS_UNROLL
    for (int n = 0; n < 2 * Kernel::kVSpans; ++n) {
        o.at[i][n][2 * half] = ptx::mul_rn(o.at[i][n][2 * half], factor);
        o.at[i][n][2 * half + 1] = ptx::mul_rn(o.at[i][n][2 * half + 1], factor);
    }
}

// Optimized: moves a row to a new shift when it has outgrown its own, which is seldom after the
// first block; else nothing changes, and lanes need not tell each other maxima. The warp votes on
// whether one has; the others keep their shifts, so that no row depends on another.
template <class Kernel, bool kMasked>
FS_DEVICE void rescale_when_outgrown(RowState<Kernel>& rows, typename Kernel::O& o,
                                     const typename Kernel::S& s, float factor) {
    float largest[Kernel::kRowTiles][2];
    bool outgrown = false;
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            largest[i][half] = thread_max<Kernel>(s, i, half);
            outgrown |=
                ptx::fma_rn(largest[i][half], factor, rows.shift[i][half]) > kRescaleThreshold;
        }
    }
    if (!ptx::vote_any(outgrown)) return;
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float shift = rows.shift[i][half];
            const float most = quad_max(largest[i][half]);
            const bool outgrew = ptx::fma_rn(most, factor, shift) > kRescaleThreshold;
            const float candidate = outgrew ? ptx::mul_rn(-most, factor) : shift;
            rescale_row<Kernel, kMasked>(rows, o, ptx::min(shift, candidate), i, half);
        }
    }
}

// Plain: scales S, then moves every row to its new maximum in every step.
template <class Kernel, bool kMasked>
FS_DEVICE void scale_and_rescale(RowState<Kernel>& rows, typename Kernel::O& o,
                                 typename Kernel::S& s, float factor) {
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        FS_UNROLL
        for (int n = 0; n < 2 * Kernel::kStepSpans; ++n) {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) s.at[i][n][e] = ptx::mul_rn(s.at[i][n][e], factor);
        }
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float candidate = -quad_max(thread_max<Kernel>(s, i, half));
            rescale_row<Kernel, kMasked>(rows, o, ptx::min(rows.shift[i][half], candidate), i,
                                         half);
        }
    }
}

// P of row tile `i` and the 16 columns of a span, as operand A of mma; adds it to the sums of the
// two rows unless mma does.
template <class Kernel, bool kMasked>
FS_DEVICE void exponentiate(u32 (&p)[4], float (&sum)[RowState<Kernel>::kSums],
                            const RowState<Kernel>& rows, const typename Kernel::S& s, float factor,
                            int i, int span) {
    FS_UNROLL
    for (int half = 0; half < 2; ++half) {
        const float shift = finite_shift<kMasked>(rows.shift[i][half]);
        FS_UNROLL
        for (int n = 0; n < 2; ++n) {
            float value[2];
            FS_UNROLL
            for (int e = 0; e < 2; ++e) {
                const float x = s.at[i][2 * span + n][2 * half + e];
                value[e] = ptx::ex2(Kernel::kOptimizedSoftmax ? ptx::fma_rn(x, factor, shift)
                                                              : ptx::add_rn(x, shift));
                if constexpr (!Kernel::kSumByMma) sum[half] = ptx::add_rn(sum[half], value[e]);
            }
            p[2 * n + half] = ptx::pack2<Kernel::kDType>(value[0], value[1]);
        }
    }
}

}  // namespace flashsmith::sm80
