// The five products of a backward step on one warpgroup, which owns 64 keys.
//
//   Sᵀ = K Qᵀ,  dPᵀ = V dOᵀ          both operands row by row; 64 keys x the rows of a q tile
//   dV += Pᵀ dO,  dK += dSᵀ Q        A from registers; the contraction runs down the rows of B
//   dQ = dS K, a piece of 64 x 64    it runs down the rows, the keys, of both operands
//
// Nothing is committed here. With kFold, S and dP begin as a product of ones with the statistics:
// bf16 whatever the element type, since their range is that of float32.
#pragma once

#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/ptx/wgmma/m64n128.cuh"
#include "flashsmith/ptx/wgmma/m64n64.cuh"
#include "flashsmith/tile/panel.cuh"

namespace flashsmith::sm90 {

// Descriptors of operands without a swizzle, 8 columns of 16 bits: rows of 16 bytes. Both halves of
// a step's 16 columns are the same 8 (no stride between them), which is why the ones are halves.
struct PlainDescriptor {
    static constexpr u64 kGroupStride = u64{128 >> 4} << 32;  // between groups of 8 rows

    static FS_DEVICE u64 rows_of(SmemAddr address) {
        return kGroupStride | ((address.value & 0x3ffff) >> 4);
    }
    // One group of 8 rows stands for all.
    static FS_DEVICE u64 repeated(SmemAddr address) { return (address.value & 0x3ffff) >> 4; }
};

template <DType kDType, int kD, int kKeys, int kRows, bool kFold>
struct BackwardProducts {
    static constexpr int kStep = 16;                              // contraction of one wgmma
    static constexpr int kPanelSteps = kPanelColumns / kStep;     // before the next panel
    static constexpr int kStepBytes = kStep * kElementBytes;      // along a row
    static constexpr int kStepRowBytes = kStep * kPanelRowBytes;  // down the rows
    static constexpr int kHalfSteps = kPanelSteps;                // of 64 query rows

    using Scores = float[kRows / 2];
    using Gradient = float[kD / 2];
    using Piece = float[32];
    using Operand = u32[kRows / 4];

    // Byte offset of contraction step i in a matrix whose panels have `rows` rows.
    static constexpr int along_row(int i, int rows) {
        return (i / kPanelSteps) * rows * kPanelRowBytes + (i % kPanelSteps) * kStepBytes;
    }

    static FS_DEVICE ptx::MatrixDescriptor by_rows(SmemAddr at) {
        return ptx::MatrixDescriptor::of(at, 16);
    }
    // Of Q and dO where their rows are the contraction.
    static FS_DEVICE ptx::MatrixDescriptor down_rows(SmemAddr at) {
        return ptx::MatrixDescriptor::of(at, kRows * kPanelRowBytes);
    }

    // Sᵀ or dPᵀ of this warpgroup's 64 keys.
    static FS_DEVICE void issue_scores(Scores& s, ptx::MatrixDescriptor keys,
                                       ptx::MatrixDescriptor rows, SmemAddr ones,
                                       SmemAddr statistics) {
        // Descriptors are made anew for each product: kept, they would take registers.
        asm volatile("" : "+r"(keys.low));
        ptx::wgmma_fence();
        if constexpr (kFold) {
            ptx::Wgmma<DType::kBF16, kRows>::template ss<0>(
                s, PlainDescriptor::repeated(ones), PlainDescriptor::rows_of(statistics), 0);
        }
        FS_UNROLL
        for (int i = 0; i < kD / kStep; ++i) {
            ptx::Wgmma<kDType, kRows>::template ss<0>(s, (keys + along_row(i, kKeys)).word(),
                                                      (rows + along_row(i, kRows)).word(),
                                                      kFold || i > 0);
        }
    }

    // dV += Pᵀ dO or dK += dSᵀ Q, of one half of 64 query rows.
    static FS_DEVICE void issue_gradient(Gradient& gradient, const Operand& a,
                                         ptx::MatrixDescriptor rows, int half) {
        FS_UNROLL
        for (int i = half * kHalfSteps; i < (half + 1) * kHalfSteps; ++i) {
            ptx::Wgmma<kDType, kD>::template rs<1>(gradient, &a[4 * i],
                                                   (rows + i * kStepRowBytes).word(), 1);
        }
    }

    static FS_DEVICE void issue_dq(Piece& dq, ptx::MatrixDescriptor ds, ptx::MatrixDescriptor k) {
        asm volatile("" : "+r"(k.low));
        FS_UNROLL
        for (int i = 0; i < kKeys / kStep; ++i) {
            ptx::Wgmma<kDType, 64>::template ss<1, 1>(dq, (ds + i * kStepRowBytes).word(),
                                                      (k + i * kStepRowBytes).word(), i > 0);
        }
    }
};

}  // namespace flashsmith::sm90
