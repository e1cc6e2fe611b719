// dQ: a cta owns a q tile of one head and walks the kv blocks that it sees.
//
//   owned, for the whole kernel:  Q, dO, statistics in registers   walked, in one stage or two:  K,
//   V S = Q Kᵀ,  dP = dO Vᵀ         P = 2^(c S + shift),  dS = P ∘ (dP - delta) dQ += dS K nobody
//   else adds to these rows: no atomics, and the same bits
#pragma once

#include "flashsmith/attention/bias.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/sm80/backward_products.cuh"
#include "flashsmith/sm80/backward_tile.cuh"

namespace flashsmith::sm80 {

template <Sm80QueryGradientsConfig kConfig, Needs kNeedsArg>
struct QueriesKernel {
    static constexpr Needs kNeeds = kNeedsArg;
    static constexpr DType kDType = kConfig.dtype;
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kBr = kConfig.B_r;
    static constexpr int kBc = kConfig.B_c;
    static constexpr int kWarpRows = kConfig.rows_per_warp();
    static constexpr int kRowTiles = kWarpRows / kMatrixSpan;
    static constexpr int kStep = kConfig.step_rows(flashsmith::Score<kNeeds>::kHasBias);
    static constexpr int kDSpans = kConfig.d_head / kMatrixSpan;
    static constexpr int kStages = kConfig.stages();

    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using Bias = flashsmith::Bias<kNeeds, kDType>;
    using QueryTile = SmemTile<kBr, kConfig.d_head, true>;
    using KeyTile = SmemTile<kBc, kConfig.d_head, true>;
    using Scores = Accumulator<kRowTiles, kStep / 8>;
    using Gradient = Accumulator<kRowTiles, 2 * kDSpans>;
    using Owned = OwnedBy<kNeeds>;

    // In the order of shared memory.
    static constexpr u32 kQ = 0;
    static constexpr u32 kDO = kQ + QueryTile::kBytes;
    static constexpr u32 kK = kDO + QueryTile::kBytes;
    static constexpr u32 kV = kK + kStages * KeyTile::kBytes;
    static constexpr int kBytes = kV + kStages * KeyTile::kBytes;

    static constexpr CopyChecks kKeyChecks{kNeeds.ragged_k, kNeeds.narrow_d};
    static constexpr CopyChecks kQueryChecks{kNeeds.ragged_q, kNeeds.narrow_d};

    static constexpr bool valid() {
        static_assert(kWarpRows % kMatrixSpan == 0, "a warp must own a multiple of 16 rows.");
        static_assert(kConfig.gradient_registers() <= 128,
                      "the gradient of a warp must fit 128 registers.");
        static_assert(kBytes == kConfig.smem_bytes(), "the plan must have the size of the launch.");
        return true;
    }
};

template <class Kernel>
class QueryTileGradient {
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kBc = Kernel::kBc;
    using Owned = typename Kernel::Owned;

  public:
    FS_DEVICE QueryTileGradient(const BackwardArgs& args, const Owned& own, SmemAddr smem)
        : args_(args),
          batch_(own.batch),
          head_(own.head),
          first_row_(own.block * Kernel::kBr),
          smem_(smem),
          warp_row_(threadIdx.x / kWarpLanes * Kernel::kWarpRows),
          sequence_(own.sequence),
          table_row_(table_row_of(own)) {
        dq_.clear();
        const i64 head = static_cast<i64>(batch_) * args.heads + head_;
        const i64 row = head * args.padded_rows + warp_row() + threadIdx.x % kWarpLanes / 4;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                RowStatistics& one = rows_[i][half];
                const i32 below = i * kMatrixSpan + half * 8;
                if constexpr (kListed<kNeeds>) {
                    const i32 own_row = warp_row() + threadIdx.x % kWarpLanes / 4 + below;
                    one.read(args.statistics, row + rows_before(sequence()) + below,
                             own_row < sequence().q_len);
                } else {  // rows that do not exist are padded
                    ptx::ld_global_f32x2(one.shift, one.delta, args.statistics + 2 * (row + below));
                }
            }
        }
    }

    FS_DEVICE void walk() {
        const i32 last_row = min(first_row_ + Kernel::kBr, sequence().q_len) - 1;
        const Span span = Kernel::Mask::template span<kBc>(sequence(), first_row_, last_row);
        if (span.count <= 0) return;
        copy_owned();
        const i32 first = kNeeds.window_left ? span.first : 0;
        if constexpr (Kernel::kStages == 2) copy_walked(first + span.count - 1, 0);
        _Pragma("unroll 1") for (i32 block = first + span.count - 1; block >= first; --block) {
            const int stage = Kernel::kStages == 2 ? (first + span.count - 1 - block) & 1 : 0;
            if constexpr (Kernel::kStages == 1) {
                // The block before has been read.
                if (block < first + span.count - 1) ptx::bar_sync();
                copy_walked(block, 0);
            }
            ptx::cp_async_wait<0>();
            ptx::bar_sync();  // this block is in, and the other stage has been read
            if constexpr (Kernel::kStages == 2) {
                if (block > first) copy_walked(block - 1, stage ^ 1);
            }
            bool masked = block >= span.whole;
            if constexpr (kNeeds.window_left) masked |= block < span.cut;
            add_block(block * kBc, stage, masked);
        }
    }

    FS_DEVICE void end() {
        const i32 before = rows_before(sequence());
        const RowsPosition at{batch_, head_, first_row_ + before, sequence().q_len + before};
        store_gradient<typename Kernel::QueryTile, Kernel::kDType, Kernel::kQueryChecks>(
            dq_, Kernel::Score::slope(args_), smem_ + Kernel::kQ, args_.dq, at, args_.d_head);
    }

  private:
    using KeyTile = typename Kernel::KeyTile;
    using OwnedReader = FragmentReader<typename Kernel::QueryTile, MatrixOrder::kRowsFirst>;
    using WalkedReader = FragmentReader<KeyTile, MatrixOrder::kColsFirst>;
    using WalkedTransposed = FragmentReader<KeyTile, MatrixOrder::kRowsFirst>;

    FS_DEVICE const auto& sequence() const { return sequence_of(args_, sequence_); }

    FS_DEVICE i32 warp_row() const { return first_row_ + warp_row_; }

    FS_DEVICE void copy_owned() const {
        copy_queries(Kernel::kQ, args_.q);
        copy_queries(Kernel::kDO, args_.d_o);
        if constexpr (Kernel::kStages == 1) ptx::cp_async_commit();
    }
    FS_DEVICE void copy_queries(u32 place, const TensorArg& tensor) const {
        const i32 before = rows_before(sequence());
        copy_tile<typename Kernel::QueryTile, Kernel::kThreads, Kernel::kQueryChecks>(
            smem_ + place, tensor, batch_, head_, first_row_ + before, sequence().q_len + before,
            args_.d_head);
    }

    FS_DEVICE void copy_walked(i32 block, int stage) const {
        copy_keys(Kernel::kK + stage * KeyTile::kBytes, args_.k, block);
        copy_keys(Kernel::kV + stage * KeyTile::kBytes, args_.v, block);
        ptx::cp_async_commit();
    }
    FS_DEVICE void copy_keys(u32 place, const TensorArg& tensor, i32 block) const {
        const u32 kv_head = head_ / static_cast<u32>(args_.heads / args_.kv_heads);
        const i32 before = keys_before(sequence());
        copy_tile<KeyTile, Kernel::kThreads, Kernel::kKeyChecks>(
            smem_ + place, tensor, batch_, kv_head, block * kBc + before, sequence().k_len + before,
            args_.d_head);
    }

    // One kv block, in steps of keys whose scores fit the registers.
    FS_DEVICE void add_block(i32 first_key, int stage, bool masked) {
        _Pragma("unroll 1") for (int step = 0; step < kBc; step += Kernel::kStep) {
            if constexpr (Kernel::Mask::kHides) {
                if (masked && !sees(first_key + step)) continue;
            }
            add_step(first_key + step, stage * kBc + step, masked);
        }
    }

    // Between where this thread's first row stands and its first key of a step.
    FS_DEVICE i32 distance_to(i32 first_key) const {
        const i32 lane = threadIdx.x % kWarpLanes;
        return warp_row() + lane / 4 + sequence().position - (first_key + lane % 4 * 2);
    }

    // Whether some row of this warp sees a key of the step from `first_key` on.
    FS_DEVICE bool sees(i32 first_key) const {
        const i32 last_row = warp_row() + Kernel::kWarpRows - 1;
        if (Kernel::Mask::seen_by(sequence(), last_row) <= first_key) return false;
        if constexpr (!kNeeds.window_left) return true;
        return Kernel::Mask::first_seen(sequence(), warp_row()) < first_key + Kernel::kStep;
    }

    // Keys from `first_key` on, which lie at row `place` of the stages.
    FS_DEVICE void add_step(i32 first_key, u32 place, bool masked) {
        [[maybe_unused]] Seen seen[Kernel::kRowTiles];
        if constexpr (Kernel::Bias::kIsBool) {
            if (!ptx::vote_any(read_seen(seen, first_key))) return;
        }
        typename Kernel::Scores s;
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            s, OwnedReader(smem_ + Kernel::kQ, warp_row_),
            WalkedReader(smem_ + Kernel::kK, 0).below(place));
        [[maybe_unused]] typename Kernel::Scores bends;
        if constexpr (Kernel::Score::kChanges) {
            change_scores<typename Kernel::Score>(args_, table_row_, head_, s, bends,
                                                  distance_to(first_key));
        }
        if constexpr (Kernel::Bias::kExists) apply_bias(s, seen, first_key);
        if constexpr (Kernel::Mask::kHides) {
            if (masked)
                hide_keys<typename Kernel::Mask>(s, sequence(), first_row_, warp_row_, first_key);
        }
        typename Kernel::Scores dp;
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            dp, OwnedReader(smem_ + Kernel::kDO, warp_row_),
            WalkedReader(smem_ + Kernel::kV, 0).below(place));
        to_gradients(dp, s, rows_, Kernel::Score::factor(args_));
        if constexpr (Kernel::Score::kBends) multiply_elements(dp, bends);
        Fragments<Kernel::kRowTiles> ds[Kernel::kStep / kMatrixSpan];
        pack<Kernel::kDType>(ds, dp);
        add_product<Kernel::kDType>(dq_, ds, WalkedTransposed(smem_ + Kernel::kK, 0).below(place));
    }

    using Seen = typename Kernel::Bias::template Seen<Kernel::kStep / 2>;  // of a row tile

    // What a bool leaves of a step, before it is computed; whether this thread has any of it.
    FS_DEVICE bool read_seen(Seen (&seen)[Kernel::kRowTiles], i32 first_key) const {
        const auto bias = Kernel::Bias::of_head(args_, batch_, head_);
        const i32 lane = threadIdx.x % kWarpLanes;
        bool any = false;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            const i32 row = warp_row() + i * kMatrixSpan + lane / 4;
            any |= bias.template read_seen<false>(args_, seen[i], row, first_key + lane % 4 * 2);
        }
        return any;
    }

    FS_DEVICE void apply_bias(typename Kernel::Scores& s,
                              [[maybe_unused]] const Seen (&seen)[Kernel::kRowTiles],
                              i32 first_key) const {
        const auto bias = Kernel::Bias::of_head(args_, batch_, head_);
        const i32 lane = threadIdx.x % kWarpLanes;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            if constexpr (Kernel::Bias::kIsBool) {
                seen[i].apply(s.row_tile(i));
            } else {
                bias.apply(args_, s.row_tile(i), warp_row() + i * kMatrixSpan + lane / 4,
                           first_key + lane % 4 * 2);
            }
        }
    }

    const BackwardArgs& args_;
    const u32 batch_;
    const u32 head_;
    const i32 first_row_;
    const SmemAddr smem_;
    const i32 warp_row_;
    RowStatistics rows_[Kernel::kRowTiles][2];
    typename Kernel::Gradient dq_;
    const typename Owned::Sequence sequence_;
    const u32 table_row_;
};

// Which q tile this cta owns.
template <class Kernel>
FS_DEVICE auto q_tile_of(const BackwardArgs& args) {
    constexpr Needs kNeeds = Kernel::kNeeds;
    if constexpr (kListed<kNeeds>) {
        constexpr bool kAlike = !kNeeds.causal && !kNeeds.window_left;
        return listed_q_tile<kAlike, Kernel::kBr>(args, ptx::ctaid_x());
    } else {
        const u32 blocks = (args.q_len + Kernel::kBr - 1) / Kernel::kBr;
        constexpr bool kUneven = kNeeds.causal && !kNeeds.window_left;  // work of blocks
        return owned_block<kUneven, true>(ptx::ctaid_x(), blocks, args.heads, args.batch);
    }
}

template <Sm80QueryGradientsConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_queries(const BackwardArgs& args) {
    using Kernel = QueriesKernel<kConfig, kNeeds>;
    static_assert(Kernel::valid());
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    const auto own = q_tile_of<Kernel>(args);
    if constexpr (kListed<kNeeds>) {
        if (!own.exists) return;
    }
    QueryTileGradient<Kernel> tile(args, own, start);
    tile.walk();
    tile.end();
}

}  // namespace flashsmith::sm80
