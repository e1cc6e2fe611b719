// A configuration as compile-time shapes: tiles, fragments, groups of loads, buffers.
#pragma once

#include "flashsmith/attention/bias.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/sm80/shared_plan.cuh"
#include "flashsmith/tile/fragment.cuh"
#include "flashsmith/tile/smem_tile.cuh"

namespace flashsmith::sm80 {

// How the fragments of one operand are read along a contraction of kSpans spans of 16 elements.
template <int kSpansArg, int kTiles, bool kDoubleBuffer>
struct LoadGroups {
    static constexpr int kSpans = kSpansArg;
    static constexpr int kWanted = kTiles == 0 ? kSpans : kTiles / 2;  // a tile is 8 elements
    static constexpr int kGroupSpans = kWanted < kSpans ? kWanted : kSpans;
    static constexpr int kGroups = kSpans / kGroupSpans;
    static constexpr int kStages = kDoubleBuffer && kGroups > 1 ? 2 : 1;
};

template <FlashForwardKernelConfig kConfig>
struct StaticForwardKernelConfig {
    static constexpr DType kDType = kConfig.dtype;
    static constexpr int kDHead = kConfig.d_head;
    static constexpr int kVCols = kConfig.v_cols();
    static constexpr int kVSlices = kDHead / kVCols;  // blocks of threads that share rows of Q
    static constexpr int kBr = kConfig.B_r;
    static constexpr int kBc = kConfig.B_c;
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kWarpRows = kConfig.rows_per_warp();
    static constexpr bool kAsync = kConfig.async_copy;
    static constexpr bool kEager = kConfig.eager_load_blocks;
    static constexpr bool kOptimizedSoftmax = kConfig.optimized_softmax;
    static constexpr bool kQInRegisters = kConfig.Q_mma_load_K_tiles == 0;

    using Plan = SharedPlan<kConfig>;
    using QTile = SmemTile<kBr, kDHead, kConfig.swizzled>;
    using KTile = SmemTile<kBc, kDHead, kConfig.swizzled>;
    using VTile = SmemTile<kBc, kVCols, kConfig.swizzled>;

    // Columns of S that a warp holds at a time; K and V blocks that are wider are taken in steps.
    static constexpr int kStepCols = kConfig.step_cols();
    static constexpr int kSteps = kBc / kStepCols;

    static constexpr int kRowTiles = kWarpRows / kMatrixSpan;
    static constexpr int kDSpans = kDHead / kMatrixSpan;
    static constexpr int kVSpans = kVCols / kMatrixSpan;
    static constexpr int kStepSpans = kStepCols / kMatrixSpan;

    // Where blocks are taken in steps, V has a barrier of its own. Plain, it stands after the
    // softmax: ptxas then reads no V while all of S is held, which made it spill (NVRTC 13.4). A
    // step of one span leaves room for both.
    static constexpr bool kVAfterSoftmax =
        kEager && !kOptimizedSoftmax && kSteps > 1 && kStepSpans > 1;

    using S = Accumulator<kRowTiles, 2 * kStepSpans>;
    using O = Accumulator<kRowTiles, 2 * kVSpans>;
    using QKGroups =
        LoadGroups<kDSpans, kConfig.K_mma_load_K_tiles, kConfig.mma_double_buffer_loads>;
    using PVGroups =
        LoadGroups<kStepSpans, kConfig.V_mma_load_K_tiles, kConfig.mma_double_buffer_loads>;

    static constexpr bool power_of_two_not_one(int tiles) {
        return tiles == 0 || (tiles > 1 && (tiles & (tiles - 1)) == 0);
    }
    static constexpr bool fits(int tiles, int contraction) {
        return tiles <= (kConfig.mma_double_buffer_loads ? contraction / 2 : contraction) / 8;
    }

    static constexpr bool valid_config() {
        static_assert(kDHead == 64 || kDHead == 128 || kDHead == 256 || kDHead == 512,
                      "d_head must be 64, 128, 256 or 512.");
        static_assert(kBr == 64 || kBr == 128, "B_r must be 64 or 128.");
        static_assert(kBc == 32 || kBc == 64 || kBc == 128, "B_c must be 32, 64 or 128.");
        static_assert(kWarpRows % kMatrixSpan == 0,
                      "a warp must own a multiple of 16 query rows: lower n_warps or raise B_r.");
        static_assert(!kEager || kAsync,
                      "eager_load_blocks needs async_copy: a synchronous copy overlaps nothing.");
        static_assert(power_of_two_not_one(kConfig.Q_mma_load_K_tiles) &&
                          power_of_two_not_one(kConfig.K_mma_load_K_tiles) &&
                          power_of_two_not_one(kConfig.V_mma_load_K_tiles),
                      "the number of tiles of a load must be 0 or a power of two above 1.");
        static_assert(
            fits(kConfig.Q_mma_load_K_tiles, kDHead) && fits(kConfig.K_mma_load_K_tiles, kDHead),
            "Q and K tiles must not exceed d_head / 8, or d_head / 16 with buffer.");
        static_assert(fits(kConfig.V_mma_load_K_tiles, kBc),
                      "V tiles must not exceed B_c / 8, or B_c / 16 with buffer.");
        static_assert(kConfig.Q_mma_load_K_tiles == 0 ||
                          kConfig.Q_mma_load_K_tiles == kConfig.K_mma_load_K_tiles,
                      "Q tiles must equal K tiles or be 0: both walk d_head in the same steps.");
        static_assert(
            kConfig.O_registers() <= 128,
            "the output rows of a warp must fit 128 registers: raise n_warps or lower B_r.");
        static_assert(sizeof(Plan) == kConfig.smem_bytes(),
                      "the shared-memory plan must have the size that the launch asks for.");
        return true;
    }
};

template <class Kernel>
using QReader = FragmentReader<typename Kernel::QTile, MatrixOrder::kRowsFirst>;
template <class Kernel>
using KReader = FragmentReader<typename Kernel::KTile, MatrixOrder::kColsFirst>;
template <class Kernel>
using VReader = FragmentReader<typename Kernel::VTile, MatrixOrder::kRowsFirst>;

// A configuration and what it computes: what every operation is parametrised by.
template <FlashForwardKernelConfig kConfig, Needs kNeedsArg>
struct ForwardKernel : StaticForwardKernelConfig<kConfig> {
    static constexpr Needs kNeeds = kNeedsArg;
    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using Bias = flashsmith::Bias<kNeeds, kConfig.dtype>;

    // Optimized, the row sums come from the tensor cores as P times ones: 64 fewer additions a
    // block and thread (H200, 2026-11: 4 % at d_head 128). They then sum P as rounded to 16 bits,
    // which suits O, but an LSE has to be exact in fp32.
    static constexpr bool kSumByMma = kConfig.optimized_softmax && !kNeeds.lse;
};

}  // namespace flashsmith::sm80
