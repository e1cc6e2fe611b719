// The forward kernel's configuration and needs as types: what its parts are made of.
#pragma once

#include "flashsmith/attention/bias.cuh"
#include "flashsmith/attention/block_list.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/ptx/cache_policy.cuh"
#include "flashsmith/sm90/lazy_softmax.cuh"
#include "flashsmith/sm90/listed.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/page_orders.cuh"
#include "flashsmith/sm90/products.cuh"
#include "flashsmith/sm90/shared_plan.cuh"
#include "flashsmith/sm90/slices.cuh"
#include "flashsmith/sm90/turns.cuh"
#include "flashsmith/tile/ring.cuh"

namespace flashsmith::sm90 {

template <Sm90ForwardConfig kConfigArg, Needs kNeedsArg>
struct ForwardKernel {
    static constexpr Sm90ForwardConfig kConfig = kConfigArg;
    static constexpr Needs kNeeds = kNeedsArg;
    using Args = Sm90ForwardArgs;
    using Plan = SharedPlan<kConfig>;
    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using Bias = flashsmith::Bias<kNeeds, kConfig.dtype>;
    // SUM needs no scores but in their exponents, so that distances can be added there.
    static constexpr bool kLines = Score::kHasLines && kConfig.statistics == Statistics::kSUM;

    // Tiles come from a list: sequences have lengths of their own.
    static constexpr bool kListed = flashsmith::kListed<kNeeds>;
    using Listed = ListedPlan<kConfig>;
    // Pages come by warps of their own, as they are told.
    static constexpr bool kPaged = kNeeds.page;
    using Orders = PageOrders<kConfig>;

    // Blocks that a boolean mask hides from a whole tile are passed over: n counts those of a line.
    static constexpr bool kSkips = kHasBlockList<kNeeds>;

    // Sums of rounded P are what O needs, and too coarse for a log-sum-exp; they are known when the
    // row maxima, which a sink is compared with, are already those of the next tile.
    static constexpr bool kMmaSums = kConfig.l_by_mma && !kNeeds.lse && !kNeeds.sinks;
    // Every tile is cut along its own span, under any mask, where the launch asks for it.
    static constexpr bool kSliced = kConfig.split_last && kNeeds.sliced && !kSkips;
    // With distances on both sides of a row the nearest keys weigh most. A tile begins with the
    // block that its rows stand in, so that maxima seldom grow: then down to the first key, and
    // from the last one down to where it began.
    static constexpr bool kBeginsNear =
        kLines && kConfig.overlap && !kNeeds.causal && !Mask::kHasLeft && !kListed && !kSliced;
    // Only masks leave half a block unseen; here at the end of a tile's first blocks. Where tiles
    // of a list are cut, ptxas has no registers left for it.
    static constexpr bool kHalves =
        kConfig.half_blocks && Mask::kHides && !kBeginsNear && !(kListed && kSliced);
    static constexpr int kHalf = kHalves ? kConfig.B_c / 2 : kConfig.B_c;
    // A left edge leaves the second half; the ones behind V have no rows to pass by.
    static constexpr bool kUpperHalves = kHalves && Mask::kHasLeft && !kMmaSums;
    // With a left edge, rows see none of a tile's first blocks, or of its last. A warpgroup leaves
    // them to the others and ends its tiles by itself: until its next one begins it would keep V.
    static constexpr bool kEndsAlone = kConfig.own_spans && Mask::kHasLeft && !kSliced && !kSkips;
    // Q of a tile that ends by itself has no reader left when O is there.
    static constexpr bool kOInQ = kConfig.o_in_q && kEndsAlone && !kListed;
    // A causal mask makes tiles unequal, which evens out when ctas end; for heads narrower than the
    // kernel ptxas has no registers left. Where tiles are not split, all of them are whole,
    // whatever the launch asks for.
    static constexpr bool kSplits =
        kSliced || (kConfig.split_last && !Mask::kHasLeft && !kNeeds.causal && !kNeeds.narrow_d &&
                    !kListed && !kSkips && !kBeginsNear);
    // Under a mask, tiles of a head that begin at the same time read the same K and V where blocks
    // come from the first on; from the diagonal on each would begin with its own.
    static constexpr Ascending kAscends = kNeeds.causal && !Mask::kHasLeft && !kSliced && !kSkips
                                              ? kConfig.ascending
                                              : Ascending::kNONE;

    using KRing = OperandRing<kConfig.kv_stages, kConfig.kv_bytes(), kConfig.early_tests>;
    using VRing = OperandRing<kConfig.kv_stages, kConfig.kv_bytes(), kConfig.early_tests, kMmaSums>;
    using Products = AttentionProducts<kConfig.dtype, kConfig.B_c, kConfig.d_head, kMmaSums>;
    using Softmax = LazySoftmax<kConfig.dtype, kConfig.B_c, kConfig.statistics,
                                kConfig.rescale_threshold, kMmaSums>;
    using Turns = WarpgroupTurns<kConfig.pingpong, kConfig.n_warpgroups>;
    using Output =
        RowsOutput<kConfig.dtype, kConfig.d_head, kOInQ ? kConfig.panels() : kConfig.o_panels(),
                   kConfig.l2_hints ? ptx::kEvictFirst : ptx::kEvictNormal, kNeeds.ragged_q,
                   kNeeds.narrow_d || kNeeds.d_v>;
    using Exchange = SliceExchange<kConfig.d_head, kConfig.n_warpgroups, kConfig.cluster, kSliced>;
};

// With a left edge: the first kv block of the q tile that begins at `row`. Ctas of a cluster share
// the keys that they load, so it is that of all of them.
template <class Kernel, class Sequence>
FS_DEVICE i32 first_block_of(const Sequence& of, i32 row, u32 rank) {
    constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    using Mask = typename Kernel::Mask;
    const i32 first_row = row - static_cast<i32>(rank) * kConfig.tile_q();
    const i32 row_end = first_row + kConfig.cluster * kConfig.tile_q();
    return min(Mask::template first_block<kConfig.B_c>(of, first_row),
               Mask::template blocks_seen<kConfig.B_c>(of, row_end) - 1);
}

// Of the q tile that begins at `row`, where tiles begin near their rows: the number of the block
// that it begins with, less that of its last one; ctas of a cluster share the keys that they load.
template <class Kernel>
FS_DEVICE i32 begins_near(const typename Kernel::Args& args, i32 row, i32 n_blocks, u32 rank) {
    constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    const i32 middle = row - static_cast<i32>(rank) * kConfig.tile_q() +
                       kConfig.cluster * kConfig.tile_q() / 2 + args.position;
    return min(max(middle, 0) / kConfig.B_c, n_blocks - 1) - (n_blocks - 1);
}

// The block that `n` others come before, of a tile of `n_blocks` that begins near its rows.
FS_DEVICE i32 block_near(i32 begin, i32 n, i32 n_blocks) {
    return begin + n < 0 ? begin + n + n_blocks : begin + n;
}

// Under a boolean mask: the line of the q tile that begins at `row`; one for all ctas of a cluster.
template <class Kernel>
FS_DEVICE BlockLine line_of_tile(const typename Kernel::Args& args, i32 batch, i32 head, i32 row) {
    constexpr u32 kRows = Kernel::kConfig.cluster * Kernel::kConfig.tile_q();
    return BlockLine::of_tile(args, batch, head, static_cast<u32>(row) / kRows);
}

}  // namespace flashsmith::sm90
