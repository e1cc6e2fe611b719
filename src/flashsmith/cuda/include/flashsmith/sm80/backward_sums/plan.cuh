// What the kernel of five products has where: shared memory, what a warp holds, and which q tile
// comes next.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/sm80/backward_products.cuh"
#include "flashsmith/sm80/backward_tile.cuh"

namespace flashsmith::sm80 {

template <Sm80BlocksConfig kConfigArg, Needs kNeedsArg>
struct BlocksKernel {
    static constexpr Sm80BlocksConfig kConfig = kConfigArg;
    static constexpr Needs kNeeds = kNeedsArg;
    static constexpr DType kDType = kConfig.dtype;
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kBr = kConfig.B_r;
    static constexpr int kBc = kConfig.B_c;
    static constexpr int kWarpKeys = kConfig.keys_per_warp();
    static constexpr int kRowTiles = kWarpKeys / kMatrixSpan;
    static constexpr int kStep = kConfig.step_rows();
    static constexpr int kDSpans = kConfig.d_head / kMatrixSpan;
    static constexpr int kStages = kConfig.stages();

    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using KeyTile = SmemTile<kBc, kConfig.d_head, true>;
    using QueryTile = SmemTile<kBr, kConfig.d_head, true>;
    using DsTile = SmemTile<kBc, kBr, true>;
    using Scores = Accumulator<kRowTiles, kStep / 8>;
    using Gradient = Accumulator<kRowTiles, 2 * kDSpans>;

    // In the order of shared memory.
    static constexpr int kStatisticsBytes = kBr * static_cast<int>(sizeof(RowStatistics));
    static constexpr u32 kK = 0;
    static constexpr u32 kV = kK + KeyTile::kBytes;
    static constexpr u32 kQ = kV + KeyTile::kBytes;
    static constexpr u32 kDO = kQ + kStages * QueryTile::kBytes;
    static constexpr u32 kDs = kDO + kStages * QueryTile::kBytes;
    static constexpr u32 kP = kDs + kStages * DsTile::kBytes;
    static constexpr u32 kStatistics = kP + (kConfig.roles ? 4 * kBr * kBc : 0);
    static constexpr int kBytes = kStatistics + kStages * kStatisticsBytes;

    static constexpr CopyChecks kKeyChecks{kNeeds.ragged_k, kNeeds.narrow_d};
    static constexpr CopyChecks kQueryChecks{kNeeds.ragged_q, kNeeds.narrow_d};

    static constexpr bool valid() {
        static_assert(kWarpKeys % kMatrixSpan == 0, "a warp must own a multiple of 16 keys.");
        static_assert(kConfig.gradient_registers() <= 128,
                      "the gradients of a warp must fit 128 registers.");
        static_assert(kConfig.dq_columns() % kMatrixSpan == 0, "B operands have 16 columns.");
        static_assert(!kConfig.unordered || !(kConfig.rounds || kConfig.turn > 1),
                      "without an order there is no last kv block.");
        static_assert(kBytes == kConfig.smem_bytes(), "the plan must have the size of the launch.");
        return true;
    }
};

// The q tile that is copied next, or worked on: the first one of a head first, head after head.
struct RisingCursor {
    i32 head;
    i32 tile;

    FS_DEVICE void advance(const Span& span) {
        if (++tile == span.first + span.count) {
            tile = span.first;
            ++head;
        }
    }
};

// The first row of a q tile among the rows of all heads in scratch memory.
FS_DEVICE i64 scratch_row(const BackwardArgs& args, u32 batch, const RisingCursor& at, int rows) {
    const i64 head = static_cast<i64>(batch) * args.heads + at.head;
    return head * args.padded_rows + at.tile * rows;
}

}  // namespace flashsmith::sm80
