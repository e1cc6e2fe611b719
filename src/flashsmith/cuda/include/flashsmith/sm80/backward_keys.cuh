// dK and dV: a cta owns a kv block of one KV head and walks the q tiles of every head of its group.
//
//   owned, for the whole kernel:  K, V             walked, in one stage or two:  Q, dO, statistics
//   Sᵀ = K Qᵀ,  dPᵀ = V dOᵀ       Pᵀ = 2^(c Sᵀ + shift),  dSᵀ = Pᵀ ∘ (dPᵀ - delta)
//   dV += Pᵀ dO,  dK += dSᵀ Q     the sum over a group is that of one accumulator: no second pass
//
// Tiles are walked from the last to the first, head after head, whatever runs where: the order of
// every sum is fixed, and the same bits come out every time.
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

template <Sm80KeyGradientsConfig kConfig, Needs kNeedsArg>
struct KeysKernel {
    static constexpr Needs kNeeds = kNeedsArg;
    static constexpr DType kDType = kConfig.dtype;
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kBr = kConfig.B_r;
    static constexpr int kBc = kConfig.B_c;
    static constexpr int kWarpRows = kConfig.rows_per_warp();
    static constexpr int kRowTiles = kWarpRows / kMatrixSpan;
    static constexpr int kStep = kConfig.step_rows(flashsmith::Score<kNeeds>::kHasBias);
    static constexpr int kDSpans = kConfig.d_head / kMatrixSpan;
    static constexpr bool kDK = kConfig.gradients != KeyGradients::kDV;
    static constexpr bool kDV = kConfig.gradients != KeyGradients::kDK;
    static constexpr int kStages = kConfig.stages();

    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using Bias = flashsmith::Bias<kNeeds, kDType>;
    using KeyTile = SmemTile<kBc, kConfig.d_head, true>;
    using QueryTile = SmemTile<kBr, kConfig.d_head, true>;
    using Scores = Accumulator<kRowTiles, kStep / 8>;
    using Gradient = Accumulator<kRowTiles, 2 * kDSpans>;
    using Owned = OwnedBy<kNeeds>;

    // In the order of shared memory.
    static constexpr int kStatisticsBytes = kBr * static_cast<int>(sizeof(RowStatistics));
    static constexpr u32 kK = 0;
    static constexpr u32 kV = kK + KeyTile::kBytes;
    static constexpr u32 kQ = kV + (kDK ? KeyTile::kBytes : 0);
    static constexpr u32 kDO = kQ + kStages * QueryTile::kBytes;
    static constexpr u32 kStatistics = kDO + kStages * QueryTile::kBytes;
    static constexpr int kBytes = kStatistics + kStages * kStatisticsBytes;

    static constexpr CopyChecks kKeyChecks{kNeeds.ragged_k, kNeeds.narrow_d};
    static constexpr CopyChecks kQueryChecks{kNeeds.ragged_q, kNeeds.narrow_d};

    static constexpr bool valid() {
        static_assert(kWarpRows % kMatrixSpan == 0, "a warp must own a multiple of 16 keys.");
        static_assert(kConfig.gradient_registers() <= 128,
                      "the gradients of a warp must fit 128 registers.");
        static_assert(kBytes == kConfig.smem_bytes(), "the plan must have the size of the launch.");
        return true;
    }
};

// The q tile that is copied next, or worked on: the last one of a head first, head after head.
struct QueryCursor {
    i32 head;
    i32 tile;

    FS_DEVICE void advance(const Span& span) {
        if (--tile < span.first) {
            tile = span.first + span.count - 1;
            ++head;
        }
    }
};

template <class Kernel>
class KeyBlock {
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr bool kMasks = kNeeds.causal || kNeeds.window_left;  // rows that exist
    static constexpr int kBr = Kernel::kBr;
    using Owned = typename Kernel::Owned;

  public:
    FS_DEVICE KeyBlock(const BackwardArgs& args, const Owned& own, SmemAddr smem)
        : args_(args),
          batch_(own.batch),
          kv_head_(own.head),
          first_key_(own.block * Kernel::kBc),
          smem_(smem),
          warp_row_(threadIdx.x / kWarpLanes * Kernel::kWarpRows),
          sequence_(own.sequence),
          table_row_(table_row_of(own)) {
        if constexpr (Kernel::kDK) dk_.clear();
        if constexpr (Kernel::kDV) dv_.clear();
    }

    FS_DEVICE void walk() {
        const i32 last_key = min(first_key_ + Kernel::kBc, sequence().k_len) - 1;
        const Span span =
            Kernel::Mask::template tiles_that_see<kBr>(sequence(), first_key_, last_key);
        const i32 group = args_.heads / args_.kv_heads;
        const i32 last_tile = span.first + span.count - 1;
        const i32 tiles = group * span.count;
        if (tiles <= 0) return;
        copy_owned();
        QueryCursor next{static_cast<i32>(kv_head_) * group, last_tile};
        QueryCursor here = next;
        if constexpr (Kernel::kStages == 2) copy_walked(next, 0, span);
        _Pragma("unroll 1") for (i32 done = 0; done < tiles; ++done) {
            const int stage = Kernel::kStages == 2 ? done & 1 : 0;
            if constexpr (Kernel::kStages == 1) {
                if (done > 0) ptx::bar_sync();  // the tile before has been read
                copy_walked(next, 0, span);
            }
            ptx::cp_async_wait<0>();
            ptx::bar_sync();  // this tile is in, and the other stage has been read
            if constexpr (Kernel::kStages == 2) {
                if (done + 1 < tiles) copy_walked(next, stage ^ 1, span);
            }
            bool masked = here.tile <= last_tile - span.whole;
            if constexpr (kNeeds.window_left) masked |= here.tile >= span.cut;
            add_tile(here, stage, masked);
            here.advance(span);
        }
    }

    FS_DEVICE void end() {
        using Tile = typename Kernel::KeyTile;
        const i32 before = keys_before(sequence());
        const RowsPosition at{batch_, kv_head_, first_key_ + before, sequence().k_len + before};
        if constexpr (Kernel::kDK) {
            store_gradient<Tile, Kernel::kDType, Kernel::kKeyChecks>(
                dk_, Kernel::Score::slope(args_), smem_ + Kernel::kK, args_.dk, at, args_.d_head);
        }
        if constexpr (Kernel::kDV) {
            store_gradient<Tile, Kernel::kDType, Kernel::kKeyChecks>(
                dv_, 1.0f, smem_ + (Kernel::kDK ? Kernel::kV : Kernel::kK), args_.dv, at,
                args_.d_head);
        }
    }

  private:
    using QueryTile = typename Kernel::QueryTile;
    using OwnedReader = FragmentReader<typename Kernel::KeyTile, MatrixOrder::kRowsFirst>;
    using WalkedReader = FragmentReader<QueryTile, MatrixOrder::kColsFirst>;
    using WalkedTransposed = FragmentReader<QueryTile, MatrixOrder::kRowsFirst>;

    FS_DEVICE const auto& sequence() const { return sequence_of(args_, sequence_); }

    FS_DEVICE void copy_owned() const {
        copy_keys(Kernel::kK, args_.k);
        if constexpr (Kernel::kDK) copy_keys(Kernel::kV, args_.v);
        if constexpr (Kernel::kStages == 1) ptx::cp_async_commit();
    }
    FS_DEVICE void copy_keys(u32 place, const TensorArg& tensor) const {
        const i32 before = keys_before(sequence());
        copy_tile<typename Kernel::KeyTile, Kernel::kThreads, Kernel::kKeyChecks>(
            smem_ + place, tensor, batch_, kv_head_, first_key_ + before, sequence().k_len + before,
            args_.d_head);
    }

    // Starts the copies of a q tile, and moves the cursor to the next one.
    FS_DEVICE void copy_walked(QueryCursor& cursor, int stage, const Span& span) const {
        copy_queries(Kernel::kQ + stage * QueryTile::kBytes, args_.q, cursor);
        copy_queries(Kernel::kDO + stage * QueryTile::kBytes, args_.d_o, cursor);
        copy_statistics(cursor, stage);
        ptx::cp_async_commit();
        cursor.advance(span);
    }
    FS_DEVICE void copy_statistics(const QueryCursor& cursor, int stage) const {
        constexpr u32 kChunks = Kernel::kStatisticsBytes / kChunkBytes;
        if constexpr (kListed<kNeeds>) {
            // A sequence may begin at any row, and what follows its last is of another.
            if (threadIdx.x >= kBr) return;
            const i32 row = cursor.tile * kBr + threadIdx.x;
            const i64 before =
                static_cast<i64>(cursor.head) * args_.padded_rows + rows_before(sequence());
            RowStatistics one;
            one.read(args_.statistics, before + row, row < sequence().q_len);
            const u32 offset = threadIdx.x * sizeof(RowStatistics);
            ptx::st_shared_f32x2(
                smem_ + Kernel::kStatistics + stage * Kernel::kStatisticsBytes + offset, one.shift,
                one.delta);
        } else if (threadIdx.x < kChunks) {
            const i64 head = static_cast<i64>(batch_) * args_.heads + cursor.head;
            const i64 row = head * args_.padded_rows + cursor.tile * kBr;
            const u32 offset = threadIdx.x * kChunkBytes;
            ptx::cp_async_16b(
                smem_ + Kernel::kStatistics + stage * Kernel::kStatisticsBytes + offset,
                reinterpret_cast<u64>(args_.statistics) + row * sizeof(RowStatistics) + offset);
        }
    }
    FS_DEVICE void copy_queries(u32 place, const TensorArg& tensor,
                                const QueryCursor& cursor) const {
        const i32 before = rows_before(sequence());
        copy_tile<QueryTile, Kernel::kThreads, Kernel::kQueryChecks>(
            smem_ + place, tensor, batch_, cursor.head, cursor.tile * kBr + before,
            sequence().q_len + before, args_.d_head);
    }

    // One q tile, in steps of rows whose scores fit the registers.
    FS_DEVICE void add_tile(const QueryCursor& at, int stage, bool masked) {
        const i32 first_row = at.tile * kBr;
        _Pragma("unroll 1") for (int step = 0; step < kBr; step += Kernel::kStep) {
            if constexpr (kMasks) {
                // No row of this step sees a key of this warp.
                const i32 last_row = first_row + step + Kernel::kStep - 1;
                bool unseen = Kernel::Mask::first_row_of(sequence(), warp_key()) > last_row;
                if constexpr (kNeeds.window_left) {
                    const i32 last_key = warp_key() + Kernel::kWarpRows - 1;
                    unseen |= Kernel::Mask::last_row_of(sequence(), last_key) < first_row + step;
                }
                if (masked && unseen) continue;
            }
            add_step(at.head, first_row + step, stage * kBr + step, masked);
        }
    }

    FS_DEVICE i32 warp_key() const { return first_key_ + warp_row_; }

    // Between this thread's first key and where its first row of a step stands.
    FS_DEVICE i32 distance_from(i32 first_row) const {
        const i32 lane = threadIdx.x % kWarpLanes;
        return warp_key() + lane / 4 - (first_row + lane % 4 * 2 + sequence().position);
    }

    // Rows of a head from `first_row` on, which lie at row `place` of the stages.
    FS_DEVICE void add_step([[maybe_unused]] i32 head, i32 first_row, u32 place, bool masked) {
        [[maybe_unused]] Seen seen[Kernel::kRowTiles];
        if constexpr (Kernel::Bias::kIsBool) {
            if (!ptx::vote_any(read_seen(seen, head, first_row))) return;
        }
        typename Kernel::Scores s;
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            s, OwnedReader(smem_ + Kernel::kK, warp_row_),
            WalkedReader(smem_ + Kernel::kQ, 0).below(place));
        [[maybe_unused]] typename Kernel::Scores bends;
        if constexpr (Kernel::Score::kChanges) {
            change_scores<typename Kernel::Score>(args_, table_row_, head, s, bends,
                                                  distance_from(first_row));
        }
        if constexpr (Kernel::Bias::kExists) apply_bias(s, seen, head, first_row);
        if constexpr (kMasks) {
            if (masked) hide(s, first_row);
        }
        const SmemAddr statistics = smem_ + Kernel::kStatistics + place * sizeof(RowStatistics);
        [[maybe_unused]] Fragments<Kernel::kRowTiles> p[Kernel::kStep / kMatrixSpan];
        [[maybe_unused]] Fragments<Kernel::kRowTiles> ds[Kernel::kStep / kMatrixSpan];
        to_weights(s, statistics);
        if constexpr (Kernel::kDV) {
            pack<Kernel::kDType>(p, s);
            add_product<Kernel::kDType>(dv_, p,
                                        WalkedTransposed(smem_ + Kernel::kDO, 0).below(place));
        }
        if constexpr (Kernel::kDK) {
            typename Kernel::Scores dp;
            multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
                dp, OwnedReader(smem_ + Kernel::kV, warp_row_),
                WalkedReader(smem_ + Kernel::kDO, 0).below(place));
            to_gradients(dp, s, statistics);
            if constexpr (Kernel::Score::kBends) multiply_elements(dp, bends);
            pack<Kernel::kDType>(ds, dp);
            add_product<Kernel::kDType>(dk_, ds,
                                        WalkedTransposed(smem_ + Kernel::kQ, 0).below(place));
        }
    }

    using Seen = typename Kernel::Bias::template Seen<Kernel::kStep / 2>;  // of a row tile

    // What a bool leaves of a step, before it is computed; whether this thread has any of it.
    FS_DEVICE bool read_seen(Seen (&seen)[Kernel::kRowTiles], i32 head, i32 first_row) const {
        const auto bias = Kernel::Bias::of_head(args_, batch_, head);
        const i32 lane = threadIdx.x % kWarpLanes;
        bool any = false;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            const i32 key = warp_key() + i * kMatrixSpan + lane / 4;
            any |= bias.template read_seen<true>(args_, seen[i], key, first_row + lane % 4 * 2);
        }
        return any;
    }

    FS_DEVICE void apply_bias(typename Kernel::Scores& s,
                              [[maybe_unused]] const Seen (&seen)[Kernel::kRowTiles], i32 head,
                              i32 first_row) const {
        const auto bias = Kernel::Bias::of_head(args_, batch_, head);
        const i32 lane = threadIdx.x % kWarpLanes;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            if constexpr (Kernel::Bias::kIsBool) {
                seen[i].apply(s.row_tile(i));
            } else {
                bias.apply_turned(args_, s.row_tile(i), warp_key() + i * kMatrixSpan + lane / 4,
                                  first_row + lane % 4 * 2);
            }
        }
    }

    // Removes rows that do not see this warp's keys; columns of S are rows of Q.
    FS_DEVICE void hide(typename Kernel::Scores& s, i32 first_row) const {
        const i32 lane = threadIdx.x % kWarpLanes;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const i32 key = warp_key() + i * kMatrixSpan + half * 8 + lane / 4;
                if constexpr (kNeeds.causal) {
                    const i32 first = Kernel::Mask::first_row_of(sequence(), key);
                    hide_columns_before(s.row_tile(i), half, first - first_row - lane % 4 * 2);
                }
                if constexpr (kNeeds.window_left) {
                    const i32 end = Kernel::Mask::last_row_of(sequence(), key) + 1;
                    hide_columns_of_row<0, Kernel::kStep / 2>(s.row_tile(i), half,
                                                              end - first_row - lane % 4 * 2);
                }
            }
        }
    }

    // Statistics of the two query rows of column tile `n` that this thread holds.
    FS_DEVICE static void read_statistics(RowStatistics (&rows)[2], SmemAddr from, int n) {
        const u32 column = n * 8 + threadIdx.x % 4 * 2;
        const Chunk held = ptx::ld_shared_16b(from + column * sizeof(RowStatistics));
        FS_UNROLL
        for (int e = 0; e < 2; ++e) {
            rows[e].shift = __builtin_bit_cast(float, held.word[2 * e]);
            rows[e].delta = __builtin_bit_cast(float, held.word[2 * e + 1]);
        }
    }

    FS_DEVICE void to_weights(typename Kernel::Scores& s, SmemAddr statistics) const {
        FS_UNROLL
        for (int n = 0; n < Kernel::kStep / 8; ++n) {
            RowStatistics rows[2];
            read_statistics(rows, statistics, n);
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                FS_UNROLL
                for (int e = 0; e < 4; ++e) {
                    s.at[i][n][e] =
                        weight_of(s.at[i][n][e], Kernel::Score::factor(args_), rows[e % 2]);
                }
            }
        }
    }

    FS_DEVICE static void to_gradients(typename Kernel::Scores& dp,
                                       const typename Kernel::Scores& p, SmemAddr statistics) {
        FS_UNROLL
        for (int n = 0; n < Kernel::kStep / 8; ++n) {
            RowStatistics rows[2];
            read_statistics(rows, statistics, n);
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                FS_UNROLL
                for (int e = 0; e < 4; ++e) {
                    dp.at[i][n][e] = score_gradient(p.at[i][n][e], dp.at[i][n][e], rows[e % 2]);
                }
            }
        }
    }

    const BackwardArgs& args_;
    const u32 batch_;
    const u32 kv_head_;
    const i32 first_key_;
    const SmemAddr smem_;
    const i32 warp_row_;
    typename Kernel::Gradient dk_;
    typename Kernel::Gradient dv_;
    const typename Owned::Sequence sequence_;
    const u32 table_row_;
};

// Which kv block this cta owns.
template <class Kernel>
FS_DEVICE auto kv_block_of(const BackwardArgs& args) {
    if constexpr (kListed<Kernel::kNeeds>) {
        return listed_kv_block<Kernel::kBc>(args, ptx::ctaid_x());
    } else {
        const u32 blocks = (args.k_len + Kernel::kBc - 1) / Kernel::kBc;
        constexpr bool kUneven = Kernel::kNeeds.causal && !Kernel::kNeeds.window_left;
        return owned_block<kUneven, false>(ptx::ctaid_x(), blocks, args.kv_heads, args.batch);
    }
}

template <Sm80KeyGradientsConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_keys(const BackwardArgs& args) {
    using Kernel = KeysKernel<kConfig, kNeeds>;
    static_assert(Kernel::valid());
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    const auto own = kv_block_of<Kernel>(args);
    if constexpr (kListed<kNeeds>) {
        if (!own.exists) return;
    }
    KeyBlock<Kernel> block(args, own, start);
    block.walk();
    block.end();
}

}  // namespace flashsmith::sm80
