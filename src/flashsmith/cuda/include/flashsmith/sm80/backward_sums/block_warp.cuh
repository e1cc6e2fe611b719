// A warp of a kv block: scores of its keys and of every q tile, and the
// gradients of the keys.
#pragma once

#include "flashsmith/sm80/backward_sums/dq_product.cuh"
#include "flashsmith/sm80/backward_sums/dq_turns.cuh"

namespace flashsmith::sm80 {

// kMakesP: S, P and dV are this warp's. kMakesDs: dP, dS and dK are.
template <class Kernel, bool kMakesP, bool kMakesDs>
class BlockWarp {
    static constexpr Sm80BlocksConfig kConfig = Kernel::kConfig;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kBr = Kernel::kBr;
    static constexpr int kBc = Kernel::kBc;
    static constexpr int kStages = Kernel::kStages;
    // Of two warps that have the same keys, the one of dS counts the turns of
    // both: when the cta has met, their sums have been made.
    static constexpr bool kCounts = kConfig.roles && kMakesDs;
    using Mask = typename Kernel::Mask;
    using Scores = typename Kernel::Scores;

  public:
    FS_DEVICE BlockWarp(const BackwardArgs& args, const OwnedBlock& own, SmemAddr smem)
        : args_(args),
          batch_(own.batch),
          kv_head_(own.head),
          first_key_(own.block * kBc),
          smem_(smem),
          warp_(threadIdx.x / kWarpLanes),
          own_key_(warp_ % kConfig.owners() * Kernel::kWarpKeys),
          dq_(args, smem, warp_),
          turns_(args, own.batch, first_key_, warp_ % kConfig.owners()) {
        if constexpr (kMakesDs) dk_.clear();
        if constexpr (kMakesP) dv_.clear();
    }

    FS_DEVICE void walk() {
        const i32 last_key = min(first_key_ + kBc, args_.k_len) - 1;
        const Span span = Mask::template tiles_that_see<kBr>(args_, first_key_, last_key);
        const i32 group = args_.heads / args_.kv_heads;
        const i32 tiles = group * span.count;
        if (tiles <= 0) return;
        RisingCursor next{static_cast<i32>(kv_head_) * group, span.first};
        RisingCursor here = next, before = next, earlier = next;
        copy_keys(Kernel::kK, args_.k);
        copy_keys(Kernel::kV, args_.v);
        if constexpr (kStages == 2) copy_walked(next, 0, span);
        _Pragma("unroll 1") for (i32 done = 0; done < tiles; ++done) {
            const int stage = kStages == 2 ? done & 1 : 0;
            if constexpr (kStages == 1) {
                ptx::bar_sync();  // the tile before has been read, and its dS is
                                  // complete
                copy_walked(next, 0, span);
                if (done > 0) add_dq(before, 0, span);
            }
            ptx::cp_async_wait<0>();
            // This tile is in, and dQ of the tile kStages before it has been added.
            // With two stages the tile before has been read, and its dS is complete.
            ptx::bar_sync();
            if (kStages == 2 && done + 1 < tiles) copy_walked(next, stage ^ 1, span);
            if (kCounts && done >= kStages) turns_.made(kStages == 2 ? earlier : before, span);
            if (kStages == 2 && kMakesDs && done > 0) add_dq(before, stage ^ 1, span);
            add_tile(here, stage);
            if constexpr (kMakesDs) turns_.count();  // where this warp left all rows out
            if (kStages == 2 && !kMakesDs && done > 0) add_dq(before, stage ^ 1, span);
            earlier = before;
            before = here;
            here.advance(span);
        }
        ptx::bar_sync();  // dS of the last tile is complete; dQ of all others has
                          // been added
        if (kCounts && kStages == 2 && tiles > 1) turns_.made(earlier, span);
        if constexpr (kCounts) turns_.count();
        add_dq(before, (tiles - 1) & (kStages - 1), span);
        if constexpr (kConfig.roles) ptx::bar_sync();  // that of the last has been added, too
        if constexpr (kCounts) turns_.made(before, span);
        turns_.count();
    }

    FS_DEVICE void end() {
        using Tile = typename Kernel::KeyTile;
        ptx::bar_sync();  // K and V have been read
        const RowsPosition at{batch_, kv_head_, first_key_, args_.k_len};
        if constexpr (kMakesDs) {
            store_gradient_from<Tile, Kernel::kDType, Kernel::kKeyChecks>(
                own_key_, dk_, Kernel::Score::slope(args_), smem_ + Kernel::kK, args_.dk, at,
                args_.d_head);
        }
        if constexpr (kMakesP) {
            store_gradient_from<Tile, Kernel::kDType, Kernel::kKeyChecks>(
                own_key_, dv_, 1.0f, smem_ + Kernel::kV, args_.dv, at, args_.d_head);
        }
    }

  private:
    using QueryTile = typename Kernel::QueryTile;
    using DsTile = typename Kernel::DsTile;
    using OwnedReader = FragmentReader<typename Kernel::KeyTile, MatrixOrder::kRowsFirst>;
    using WalkedReader = FragmentReader<QueryTile, MatrixOrder::kColsFirst>;
    using WalkedTransposed = FragmentReader<QueryTile, MatrixOrder::kRowsFirst>;

    // dQ of a q tile, whose dS lies in stage `stage`. With roles the warp of dS
    // waits for the turn of both.
    FS_DEVICE void add_dq(const RisingCursor& at, int stage, const Span& span) {
        const bool waits = turns_.waits(at, span);
        const auto take_turn = [&] {
            if (!waits) return;
            if constexpr (kMakesDs) turns_.wait(at);
            if constexpr (!kMakesP) ptx::bar_arrive_named(turn_barrier(), kPair);
            if constexpr (!kMakesDs) ptx::bar_sync_named(turn_barrier(), kPair);  // it has come
        };
        if constexpr (kConfig.multiplies_dq(kMakesP)) {
            if constexpr (kMakesP && kMakesDs) turns_.count();
            const i64 row = scratch_row(args_, batch_, at, kBr);
            const RowsPosition to{batch_, at.head, at.tile * kBr, args_.q_len};
            dq_.add(row, to, stage, turns_.is_first(at), turns_.is_last(at), take_turn);
            if constexpr (kMakesP && kMakesDs) turns_.made(at, span);
        } else {
            take_turn();
        }
    }
    FS_DEVICE u32 turn_barrier() const { return 1 + kConfig.owners() + warp_ % kConfig.owners(); }

    // Copies

    FS_DEVICE void copy_keys(u32 place, const TensorArg& tensor) const {
        copy_tile<typename Kernel::KeyTile, Kernel::kThreads, Kernel::kKeyChecks>(
            smem_ + place, tensor, batch_, kv_head_, first_key_, args_.k_len, args_.d_head);
    }

    // Starts the copies of a q tile, and moves the cursor to the next one.
    FS_DEVICE void copy_walked(RisingCursor& cursor, int stage, const Span& span) const {
        copy_queries(Kernel::kQ + stage * QueryTile::kBytes, args_.q, cursor);
        copy_queries(Kernel::kDO + stage * QueryTile::kBytes, args_.d_o, cursor);
        constexpr u32 kChunks = Kernel::kStatisticsBytes / kChunkBytes;
        if (threadIdx.x < kChunks) {
            const i64 row = scratch_row(args_, batch_, cursor, kBr);
            const u32 offset = threadIdx.x * kChunkBytes;
            ptx::cp_async_16b(
                smem_ + Kernel::kStatistics + stage * Kernel::kStatisticsBytes + offset,
                reinterpret_cast<u64>(args_.statistics) + row * sizeof(RowStatistics) + offset);
        }
        ptx::cp_async_commit();
        cursor.advance(span);
    }
    FS_DEVICE void copy_queries(u32 place, const TensorArg& tensor,
                                const RisingCursor& cursor) const {
        copy_tile<QueryTile, Kernel::kThreads, Kernel::kQueryChecks>(smem_ + place, tensor, batch_,
                                                                     cursor.head, cursor.tile * kBr,
                                                                     args_.q_len, args_.d_head);
    }

    // One q tile, in steps of rows whose scores fit the registers.
    FS_DEVICE void add_tile(const RisingCursor& at, int stage) {
        _Pragma("unroll 1") for (int step = 0; step < kBr; step += Kernel::kStep) {
            const i32 first_row = at.tile * kBr + step;
            if (Mask::kHides && !sees(first_row)) {
                if constexpr (kMakesDs) clear_ds(stage, step);
                continue;
            }
            if constexpr (kMakesP && kMakesDs) {
                Scores s;
                make_p(s, at.head, first_row, stage * kBr + step);
                make_ds(s, stage, step);
            } else if constexpr (kMakesP) {
                Scores s;
                make_p(s, at.head, first_row, stage * kBr + step);
            } else {
                Scores unused;
                make_ds(unused, stage, step);
            }
        }
    }

    FS_DEVICE i32 warp_key() const { return first_key_ + own_key_; }

    // Whether some row of a step sees some key of this warp.
    FS_DEVICE bool sees(i32 first_row) const {
        if (kNeeds.ragged_k && warp_key() >= args_.k_len) return false;
        if (Mask::first_row_of(args_, warp_key()) >= first_row + Kernel::kStep) return false;
        if constexpr (!kNeeds.window_left) return true;
        return Mask::last_row_of(args_, warp_key() + Kernel::kWarpKeys - 1) >= first_row;
    }

    // P and what it gives to dV; rows lie at row `place` of the stages. P leaves
    // in float32: with roles for the warp of dS, else in `s`.
    FS_DEVICE void make_p(Scores& s, i32 head, i32 first_row, u32 place) {
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            s, OwnedReader(smem_ + Kernel::kK, own_key_),
            WalkedReader(smem_ + Kernel::kQ, 0).below(place));
        if constexpr (Kernel::Score::kChanges) {
            Scores unused;
            const i32 lane = threadIdx.x % kWarpLanes;
            change_scores<typename Kernel::Score>(
                args_, batch_, head, s, unused,
                warp_key() + lane / 4 - (first_row + lane % 4 * 2 + args_.position));
        }
        if constexpr (Mask::kHides) hide(s, first_row);
        to_weights(s, statistics_at(place));
        Fragments<Kernel::kRowTiles> p[Kernel::kStep / kMatrixSpan];
        pack<Kernel::kDType>(p, s);
        if constexpr (!kMakesDs) hand_over(s, place);
        add_product<Kernel::kDType>(dv_, p, WalkedTransposed(smem_ + Kernel::kDO, 0).below(place));
    }

    // dS of step rows from `step` on, and what it gives to dK.
    FS_DEVICE void make_ds(const Scores& p, int stage, int step) {
        const u32 place = stage * kBr + step;
        Scores dp;
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            dp, OwnedReader(smem_ + Kernel::kV, own_key_),
            WalkedReader(smem_ + Kernel::kDO, 0).below(place));
        turns_.count();  // behind products: sums are complete by then
        if constexpr (kMakesP) {
            to_gradients(dp, p, statistics_at(place));
        } else {
            to_gradients_of_other(dp, place);
        }
        Fragments<Kernel::kRowTiles> ds[Kernel::kStep / kMatrixSpan];
        pack<Kernel::kDType>(ds, dp);
        store_ds(ds, stage, step);
        add_product<Kernel::kDType>(dk_, ds, WalkedTransposed(smem_ + Kernel::kQ, 0).below(place));
    }

    FS_DEVICE SmemAddr statistics_at(u32 place) const {
        return smem_ + Kernel::kStatistics + place * sizeof(RowStatistics);
    }

    // Removes rows that do not see this warp's keys, and keys beyond the last;
    // columns of S are rows of Q.
    FS_DEVICE void hide(Scores& s, i32 first_row) const {
        const i32 end = warp_key() + Kernel::kWarpKeys;
        if (!Mask::template hides_before<Kernel::kStep>(args_, end, first_row, 0) &&
            !Mask::template hides_after<Kernel::kStep>(args_, warp_key(), first_row, 0)) {
            return;
        }
        const i32 lane = threadIdx.x % kWarpLanes;
        const i32 column = first_row + lane % 4 * 2;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const i32 key = warp_key() + i * kMatrixSpan + half * 8 + lane / 4;
                i32 first = Mask::first_row_of(args_, key);
                if (kNeeds.ragged_k && key >= args_.k_len) first = 1 << 30;  // no row sees it
                hide_columns_before(s.row_tile(i), half, first - column);
                if constexpr (kNeeds.window_left) {
                    const i32 behind = Mask::last_row_of(args_, key) + 1;
                    hide_columns_of_row<0, Kernel::kStep / 2>(s.row_tile(i), half, behind - column);
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

    FS_DEVICE void to_weights(Scores& s, SmemAddr statistics) const {
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

    FS_DEVICE static void to_gradients(Scores& dp, const Scores& p, SmemAddr statistics) {
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

    // P between the two warps that have the same keys: lane l of one writes what
    // lane l of the other reads, column tile after column tile.
    static constexpr u32 kPair = 2 * kWarpLanes;
    FS_DEVICE u32 pair_barrier() const { return 1 + warp_ % kConfig.owners(); }
    FS_DEVICE SmemAddr handed_over(u32 place, int n, int i) const {
        constexpr u32 kPieceBytes = kWarpLanes * kChunkBytes;
        const u32 column_tile = place % kBr / 8 + n;
        const u32 row_tile = own_key_ / kMatrixSpan + i;
        return smem_ + Kernel::kP + (column_tile * (kBc / kMatrixSpan) + row_tile) * kPieceBytes +
               threadIdx.x % kWarpLanes * kChunkBytes;
    }
    FS_DEVICE void hand_over(const Scores& s, u32 place) const {
        FS_UNROLL
        for (int n = 0; n < Kernel::kStep / 8; ++n) {
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                const float (&x)[4] = s.at[i][n];
                ptx::st_shared_f32x4(handed_over(place, n, i), x[0], x[1], x[2], x[3]);
            }
        }
        ptx::bar_arrive_named(pair_barrier(), kPair);  // P of the step is there
    }
    // What P was before is read when the cta meets for the next tile.
    FS_DEVICE void to_gradients_of_other(Scores& dp, u32 place) const {
        ptx::bar_sync_named(pair_barrier(), kPair);  // P of the step is there
        FS_UNROLL
        for (int n = 0; n < Kernel::kStep / 8; ++n) {
            RowStatistics rows[2];
            read_statistics(rows, statistics_at(place), n);
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                float p[4];
                ptx::ld_shared_f32x4(p, handed_over(place, n, i));
                FS_UNROLL
                for (int e = 0; e < 4; ++e) {
                    dp.at[i][n][e] = score_gradient(p[e], dp.at[i][n][e], rows[e % 2]);
                }
            }
        }
    }

    // dS in shared memory: a row of a tile is a key

    FS_DEVICE SmemAddr ds_place(int stage, int step, int i, int n, int half) const {
        const u32 lane = threadIdx.x % kWarpLanes;
        const u32 key = own_key_ + i * kMatrixSpan + half * 8 + lane / 4;
        return smem_ + Kernel::kDs + stage * DsTile::kBytes + DsTile::offset(key, step / 8 + n) +
               lane % 4 * 4;
    }
    FS_DEVICE void store_ds(const Fragments<Kernel::kRowTiles> (&ds)[Kernel::kStep / kMatrixSpan],
                            int stage, int step) const {
        FS_UNROLL
        for (int n = 0; n < Kernel::kStep / 8; ++n) {
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    ptx::st_shared_b32(ds_place(stage, step, i, n, half),
                                       ds[n / 2].at[i][n % 2 * 2 + half]);
                }
            }
        }
    }
    FS_DEVICE void clear_ds(int stage, int step) const {
        constexpr Fragments<Kernel::kRowTiles> kZeros[Kernel::kStep / kMatrixSpan] = {};
        store_ds(kZeros, stage, step);
    }

    const BackwardArgs& args_;
    const u32 batch_;
    const u32 kv_head_;
    const i32 first_key_;
    const SmemAddr smem_;
    const u32 warp_;
    const u32 own_key_;  // of the cta's, this warp's first
    DqProduct<Kernel> dq_;
    DqTurns<Kernel> turns_;
    typename Kernel::Gradient dk_;
    typename Kernel::Gradient dv_;
};

}  // namespace flashsmith::sm80
