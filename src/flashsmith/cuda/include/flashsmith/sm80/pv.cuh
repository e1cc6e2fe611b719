// O += P V of one warp: softmax of a step of S, then its product with the rows of V.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm80/softmax.cuh"

namespace flashsmith::sm80 {

// The operands of one group of spans along the keys.
template <class Kernel>
struct VOperands {
    static constexpr int kSpans = Kernel::PVGroups::kGroupSpans;
    Fragments<Kernel::kVSpans> v[kSpans];

    FS_DEVICE void read(const VReader<Kernel>& v_reader, int group) {
        FS_UNROLL
        for (int span = 0; span < kSpans; ++span) {
            FS_UNROLL
            for (int n = 0; n < Kernel::kVSpans; ++n) {
                v_reader.read_transposed(v[span].at[n], group * kSpans + span, n);
            }
        }
    }
};

template <class Kernel>
FS_DEVICE void multiply_pv_group(typename Kernel::O& o,
                                 const Fragments<Kernel::kRowTiles> (&p)[Kernel::kStepSpans],
                                 const VOperands<Kernel>& operands, int group) {
    constexpr int kSpans = VOperands<Kernel>::kSpans;
    FS_UNROLL
    for (int span = 0; span < kSpans; ++span) {
        FS_UNROLL
        for (int n = 0; n < Kernel::kVSpans; ++n) {
            const auto& v = operands.v[span].at[n];
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                const auto& a = p[group * kSpans + span].at[i];
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float (&d)[4] = o.at[i][2 * n + half];
                    ptx::mma_m16n8k16<Kernel::kDType>(d, a, v + 2 * half, d);
                }
            }
        }
    }
}

// Row sums as P times a matrix of ones: every column of the result is the sum.
template <class Kernel>
FS_DEVICE void add_row_sums(RowState<Kernel>& rows,
                            const Fragments<Kernel::kRowTiles> (&p)[Kernel::kStepSpans],
                            int group) {
    constexpr int kSpans = Kernel::PVGroups::kGroupSpans;
    constexpr u32 kOnes = Kernel::kDType == DType::kFP16 ? 0x3c003c00u : 0x3f803f80u;
    const u32 ones[2] = {kOnes, kOnes};
    FS_UNROLL
    for (int span = 0; span < kSpans; ++span) {
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            const auto& a = p[group * kSpans + span].at[i];
            ptx::mma_m16n8k16<Kernel::kDType>(rows.sum[i], a, ones, rows.sum[i]);
        }
    }
}

// P of all spans of a group, all row tiles.
template <class Kernel, bool kMasked>
FS_DEVICE void exponentiate_group(Fragments<Kernel::kRowTiles> (&p)[Kernel::kStepSpans],
                                  RowState<Kernel>& rows, const typename Kernel::S& s, float factor,
                                  int group) {
    constexpr int kSpans = Kernel::PVGroups::kGroupSpans;
    FS_UNROLL
    for (int span = group * kSpans; span < (group + 1) * kSpans; ++span) {
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            exponentiate<Kernel, kMasked>(p[span].at[i], rows.sum[i], rows, s, factor, i, span);
        }
    }
}

// Plain: all of P at once, and its sums completed across the lanes of a row in every step.
template <class Kernel, bool kMasked>
FS_DEVICE void exponentiate_step(Fragments<Kernel::kRowTiles> (&p)[Kernel::kStepSpans],
                                 RowState<Kernel>& rows, const typename Kernel::S& s,
                                 float factor) {
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        float sum[2] = {};
        FS_UNROLL
        for (int span = 0; span < Kernel::kStepSpans; ++span) {
            exponentiate<Kernel, kMasked>(p[span].at[i], sum, rows, s, factor, i, span);
        }
        rows.sum[i][0] = ptx::add_rn(rows.sum[i][0], quad_sum(sum[0]));
        rows.sum[i][1] = ptx::add_rn(rows.sum[i][1], quad_sum(sum[1]));
    }
}

// What of P is computed before products with V begin: all of it, or optimized the first group.
template <class Kernel, bool kMasked>
FS_DEVICE void begin_softmax(Fragments<Kernel::kRowTiles> (&p)[Kernel::kStepSpans],
                             typename Kernel::O& o, RowState<Kernel>& rows, typename Kernel::S& s,
                             float factor) {
    if constexpr (Kernel::kOptimizedSoftmax) {
        rescale_when_outgrown<Kernel, kMasked>(rows, o, s, factor);
        exponentiate_group<Kernel, kMasked>(p, rows, s, factor, 0);
    } else {
        scale_and_rescale<Kernel, kMasked>(rows, o, s, factor);
        exponentiate_step<Kernel, kMasked>(p, rows, s, factor);
    }
}

// Optimized, the exponentials of a group are computed beside the products of the group before, so
// that the special-function units and the tensor cores work at the same time.
template <class Kernel, bool kMasked>
FS_DEVICE void multiply_pv(typename Kernel::O& o, RowState<Kernel>& rows,
                           Fragments<Kernel::kRowTiles> (&p)[Kernel::kStepSpans],
                           const typename Kernel::S& s, const VReader<Kernel>& v_reader,
                           float factor) {
    using Groups = typename Kernel::PVGroups;
    VOperands<Kernel> operands[Groups::kStages];
    operands[0].read(v_reader, 0);
    FS_UNROLL
    for (int group = 0; group < Groups::kGroups; ++group) {
        const bool more = group + 1 < Groups::kGroups;
        if (Groups::kStages == 2 && more) operands[(group + 1) % 2].read(v_reader, group + 1);
        if constexpr (Kernel::kOptimizedSoftmax) {
            if (more) exponentiate_group<Kernel, kMasked>(p, rows, s, factor, group + 1);
        }
        if constexpr (Kernel::kSumByMma) add_row_sums<Kernel>(rows, p, group);
        multiply_pv_group<Kernel>(o, p, operands[group % Groups::kStages], group);
        if (more) ptx::bar_warp_sync();
        if (Groups::kStages == 1 && more) operands[0].read(v_reader, group + 1);
    }
}

}  // namespace flashsmith::sm80
