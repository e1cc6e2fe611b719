// The two products of attention on one warpgroup: S = Q Kᵀ and O += P V.
//
// Both are issued and committed as one group each; results are valid after wgmma_wait.
#pragma once

#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/ptx/wgmma/m64n112.cuh"
#include "flashsmith/ptx/wgmma/m64n128.cuh"
#include "flashsmith/ptx/wgmma/m64n144.cuh"
#include "flashsmith/ptx/wgmma/m64n160.cuh"
#include "flashsmith/ptx/wgmma/m64n176.cuh"
#include "flashsmith/ptx/wgmma/m64n192.cuh"
#include "flashsmith/ptx/wgmma/m64n256.cuh"
#include "flashsmith/ptx/wgmma/m64n64.cuh"
#include "flashsmith/ptx/wgmma/m64n72.cuh"
#include "flashsmith/ptx/wgmma/m64n80.cuh"
#include "flashsmith/ptx/wgmma/m64n96.cuh"
#include "flashsmith/tile/panel.cuh"

namespace flashsmith::sm90 {

// kBc keys a kv block, kD elements a row. With kSums, O has 8 more columns that hold the sum of
// each row of P.
template <DType kDType, int kBc, int kD, bool kSums>
struct AttentionProducts {
    static constexpr int kStep = 16;                              // contraction of one wgmma
    static constexpr int kPanelSteps = kPanelColumns / kStep;     // before the next panel
    static constexpr int kStepBytes = kStep * kElementBytes;      // along a row
    static constexpr int kStepRowBytes = kStep * kPanelRowBytes;  // down the rows

    template <int kKeys>
    using Scores = float[kKeys / 2];
    static constexpr int kDo = kD + (kSums ? 8 : 0);
    using O = float[kDo / 2];
    using P = u32[kBc / 4];

    // Byte offset of contraction step i in a matrix whose panels have `rows` rows.
    static constexpr int along_row(int i, int rows) {
        return (i / kPanelSteps) * rows * kPanelRowBytes + (i % kPanelSteps) * kStepBytes;
    }

    // The first kKeys of a block.
    template <int kKeys>
    static FS_DEVICE void issue_qk(Scores<kKeys>& s, ptx::MatrixDescriptor q,
                                   ptx::MatrixDescriptor k) {
        ptx::wgmma_fence();
        FS_UNROLL
        for (int i = 0; i < kD / kStep; ++i) {
            ptx::Wgmma<kDType, kKeys>::template ss<0>(s, (q + along_row(i, kWarpgroupRows)).word(),
                                                      (k + along_row(i, kBc)).word(), i > 0);
        }
        ptx::wgmma_commit();
    }

    // O = P V where not `keep`. V's rows are the contraction: its operand is transposed.
    template <int kKeys>
    static FS_DEVICE void issue_pv(O& o, const P& p, ptx::MatrixDescriptor v, bool keep) {
        ptx::wgmma_fence();
        FS_UNROLL
        for (int i = 0; i < kKeys / kStep; ++i) {
            ptx::Wgmma<kDType, kDo>::template rs<1>(o, &p[4 * i], (v + i * kStepRowBytes).word(),
                                                    i > 0 ? true : keep);
        }
        ptx::wgmma_commit();
    }
};

}  // namespace flashsmith::sm90
