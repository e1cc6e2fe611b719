// What a team of a decode kernel computes: O, maxima and sums of its kv blocks of a slice.
//
// A warp holds 16 rows of O. Of its rows a thread has two (lane / 4 and 8 below) and a quarter of
// their columns. With c the score's factor and x a score, P = 2^(c x - m), m the row's largest c x.
#pragma once

#include "flashsmith/decode/kernel.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace flashsmith::decode {

// What a maximum is subtracted as: a row that has seen no key has -inf, and all of its P are 0.
FS_DEVICE float finite_maximum(float m) { return m == kNegativeInfinity ? 0.0f : m; }

// How far a team has come: its next kv block, and the stage that holds it.
struct TeamPlace {
    i32 block;
    int stage;
};

// Where a team hands over a row of its O.
template <class Kernel>
struct HandedRow {
    SmemAddr start;
    u32 turn = 0;  // pieces of 32 bytes change places, so that rows begin at other banks

    // `row` of all teams': a place of its own once all rings have been read. Where rings go on it
    // is in the stage that the team has read last, half of the rows where K was, the others where V
    // was.
    FS_DEVICE HandedRow(SmemAddr smem, u32 row, [[maybe_unused]] u32 stage)
        : start(smem + Kernel::kRings) {
        if constexpr (Kernel::kRuns) {
            constexpr u32 kHalf = Kernel::kBc / 2;  // rows of O in a tile of 16-bit elements
            const u32 own = row % Kernel::kBr;
            const u32 tile = own < kHalf ? 0 : Kernel::kVRing - Kernel::KVTile::kBytes;
            const u32 ring = row / Kernel::kBr * Kernel::kTeamBytes;
            start = start + (ring + stage * Kernel::KVTile::kBytes + tile + own * Kernel::kD * 4);
            turn = own % 4 * 32;
        } else {
            start = start + row * Kernel::kExchangeRow;
        }
    }

    FS_DEVICE SmemAddr at(u32 byte) const { return start + (byte ^ turn); }
};

template <class Kernel>
class DecodeTeam {
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kBc = Kernel::kBc;
    using Args = typename Kernel::Args;
    using Mask = typename Kernel::Mask;
    using Score = typename Kernel::Score;
    using Copies = typename Kernel::Memory::template Copies<Kernel>;
    using Ring = typename Kernel::Memory::Ring;

  public:
    // `ring`: what the cta's works before this one left of the team's ring; `slices`: how many it
    // takes, from the work's on.
    FS_DEVICE DecodeTeam(const Args& args, const DecodeWork& work, SmemAddr smem, const Ring& ring,
                         i32 slices = 1)
        : args_(args),
          sequence_(sequence_of_work<Kernel>(args, work)),
          team_(threadIdx.x / Kernel::kTeamThreads),
          warp_row_(threadIdx.x % Kernel::kTeamThreads / kWarpLanes * kMatrixSpan),
          first_key_(work.slice * work.slice_keys),
          q_reader_(smem + Kernel::kQ, warp_row_),
          k_reader_(smem + Kernel::kRings + team_ * Kernel::kTeamBytes, 0),
          v_reader_(smem + Kernel::kRings + team_ * Kernel::kTeamBytes + Kernel::kVRing, 0),
          copies_(smem, team_, args, work, ring) {
        // Blocks of the slice that some row sees: from `from` on, before `end`.
        const i32 end_key = kNeeds.sequences ? seen_by_some(work) : sequence_.k_len;
        const i32 end = (min(slices * work.slice_keys, end_key - first_key_) + kBc - 1) / kBc;
        i32 from = 0;
        if constexpr (Mask::kHasLeft) {
            const QueryRow first(args, work, work.tile * Kernel::kBr);
            from = max(Mask::first_seen(sequence_, first.token) - first_key_, 0) / kBc;
        }
        first_block_ = (from - team_ + Kernel::kTeams - 1) / Kernel::kTeams;
        end_block_ = end > team_ ? (end - team_ + Kernel::kTeams - 1) / Kernel::kTeams : 0;
        FS_UNROLL
        for (int i = 0; i <= kAhead; ++i) copies_.look_up(key_of(first_block_ + i), i);
    }

    // Starts the copy of kv block `i` of this team, one of the first kAhead, if it has so many; a
    // group of copies in any case, once it is committed.
    FS_DEVICE void begin(int i) {
        if (first_block_ + i < end_block_) {
            copies_.copy(copies_.stage_of(i), key_of(first_block_ + i), i);
        }
    }

    // What masks and scores know of this thread's rows.
    FS_DEVICE void look_at_rows(const DecodeWork& work) {
        const i32 first_row = work.tile * Kernel::kBr;
        const i32 last_row = end_row_of(work) - 1;
        all_see_ = Mask::seen_by(sequence_, QueryRow(args_, work, first_row).token);
        all_see_from_ = Mask::first_seen(sequence_, QueryRow(args_, work, last_row).token);
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 row = first_row + warp_row_ + half * 8 + threadIdx.x % kWarpLanes / 4;
            const QueryRow at(args_, work, min(row, last_row));
            token_[half] = at.token;
            score_[half] = Score::of_head(args_, work.batch, at.head);
        }
        forget();
    }

    // Nothing has been added up.
    FS_DEVICE void forget() {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            maximum[half] = kNegativeInfinity;
            sum[half] = 0.0f;
        }
        output.clear();
    }

    // Kv blocks that are copied before the first is multiplied.
    static constexpr int kAhead = Kernel::kStages - 1;

    // Q is in shared memory.
    FS_DEVICE void read_q() {
        if constexpr (Kernel::kQInRegisters) {
            FS_UNROLL
            for (int span = 0; span < Kernel::kDSpans; ++span) q_reader_.read(q_[span], 0, span);
        }
    }

    FS_DEVICE void walk() {
        TeamPlace place = start();
        walk_to(place, end_block_);
    }

    // The first kv block.
    FS_DEVICE TeamPlace start() const { return {first_block_, copies_.first_stage()}; }

    // The kv blocks of the slice that ends `keys` behind the first key, if there are any.
    FS_DEVICE void walk_slice(TeamPlace& place, i32 keys) {
        walk_to(place, min(end_block_, keys / (Kernel::kTeams * kBc)));
    }

    // What this work leaves of the team's ring.
    FS_DEVICE Ring ring() const { return copies_.ring_behind(max(end_block_ - first_block_, 0)); }

    // Starts no more copies of the present group.
    FS_DEVICE void close() { copies_.close(); }

    // Writes O, maxima and sums where all teams' results are added up; all rings have been read.
    // Where rings go on: the stage before `stage` has been read, by this team.
    FS_DEVICE void hand_over(SmemAddr smem, [[maybe_unused]] const DecodeWork& work,
                             [[maybe_unused]] int stage = 0) const {
        const u32 lane = threadIdx.x % kWarpLanes;
        if constexpr (Kernel::kRuns) {
            meet();  // the whole team has read that stage
            if (threadIdx.x % Kernel::kTeamThreads == 0) {
                ptx::st_shared_b32(smem + Kernel::kHandedStages + team_ * 4, stage_before(stage));
            }
        }
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            if constexpr (Kernel::kConfig.quick_end) {
                // Of rows that do not exist nobody asks.
                const i32 own = warp_row_ + half * 8 + static_cast<i32>(lane) / 4;
                if (work.tile * Kernel::kBr + own >= end_row_of(work)) continue;
            }
            const u32 row = team_ * Kernel::kBr + warp_row_ + half * 8 + lane / 4;
            const HandedRow<Kernel> handed(smem, row, stage_before(stage));
            FS_UNROLL
            for (int n = 0; n < 2 * Kernel::kDSpans; ++n) {
                ptx::st_shared_f32x2(handed.at(lane % 4 * 8 + n * 32), output.at[0][n][2 * half],
                                     output.at[0][n][2 * half + 1]);
            }
            if (lane % 4 == 0) {
                ptx::st_shared_f32x2(smem + Kernel::kStatistics + row * 8, maximum[half],
                                     sum[half]);
            }
        }
    }

  private:
    using QReader = FragmentReader<typename Kernel::QTile, MatrixOrder::kRowsFirst>;
    using KReader = FragmentReader<typename Kernel::KVTile, MatrixOrder::kColsFirst>;
    using VReader = FragmentReader<typename Kernel::KVTile, MatrixOrder::kRowsFirst>;
    using P = Fragments<kBc / kMatrixSpan>;

    // One behind the last row of the q tile that exists.
    FS_DEVICE i32 end_row_of(const DecodeWork& work) const {
        const i32 rows = q_len_of<Kernel>(args_, work) * args_.group;
        return min(work.tile * Kernel::kBr + Kernel::kBr, rows);
    }

    // Keys, from the first on, that some row of the q tile sees; of many rows most see fewer.
    FS_DEVICE i32 seen_by_some(const DecodeWork& work) const {
        return Mask::seen_by(sequence_, QueryRow(args_, work, end_row_of(work) - 1).token);
    }

    FS_DEVICE i32 key_of(i32 block) const {
        return first_key_ + (block * Kernel::kTeams + team_) * kBc;
    }

    // What the team's threads did to shared memory before is seen by all of them after.
    FS_DEVICE void meet() const {
        if constexpr (Kernel::kTeamThreads == kWarpLanes) {
            ptx::bar_warp_sync();
        } else {
            ptx::bar_sync_named(1 + team_, Kernel::kTeamThreads);
        }
    }

    // The kv blocks from `place` on, before `end`.
    FS_DEVICE void walk_to(TeamPlace& place, i32 end) {
        int stage = place.stage;
        _Pragma("unroll 1") for (; place.block < end; ++place.block) {
            copies_.await(stage, key_of(place.block));
            meet();  // this kv block is in, and the one before has been read by the whole team
            copy(place.block + kAhead, stage_before(stage));
            copies_.close();
            add_block(place.block, stage);
            stage = stage + 1 == Kernel::kStages ? 0 : stage + 1;
        }
        place.stage = stage;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            sum[half] = ptx::add_rn(sum[half], ptx::shfl_bfly(sum[half], 1));
            sum[half] = ptx::add_rn(sum[half], ptx::shfl_bfly(sum[half], 2));
        }
    }

    FS_DEVICE static int stage_before(int stage) {
        return stage == 0 ? Kernel::kStages - 1 : stage - 1;
    }

    // Starts the copy of a kv block, whose pages are known, and asks for those of the next.
    FS_DEVICE void copy(i32 block, int stage) {
        if (block < end_block_) {
            copies_.copy(stage, key_of(block));
            copies_.look_up(key_of(block + 1));
        }
    }

    FS_DEVICE void add_block(i32 block, int stage) {
        typename Kernel::Scores s;
        multiply_qk(s, k_reader_.further(stage * Kernel::KVTile::kBytes));
        change(s, key_of(block));
        if constexpr (Mask::kHides) {
            const bool left = Mask::kHasLeft && key_of(block) < all_see_from_;
            if (key_of(block) + kBc > all_see_ || left) hide(s, key_of(block));
        }
        const float factor = Score::factor(args_);
        move_maxima(s, factor);
        P p;
        exponentiate(p, s, factor);
        multiply_pv(p, v_reader_.further(stage * Kernel::KVTile::kBytes));
    }

    FS_DEVICE void multiply_qk(typename Kernel::Scores& s, const KReader& k_reader) const {
        s.clear();
        FS_UNROLL
        for (int span = 0; span < Kernel::kDSpans; ++span) {
            u32 q[4];
            if constexpr (Kernel::kQInRegisters) {
                FS_UNROLL
                for (int i = 0; i < 4; ++i) q[i] = q_[span][i];
            } else {
                q_reader_.read(q, 0, span);
            }
            FS_UNROLL
            for (int n = 0; n < kBc / kMatrixSpan; ++n) {
                u32 k[4];
                k_reader.read(k, n, span);
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float (&d)[4] = s.at[0][2 * n + half];
                    ptx::mma_m16n8k16<Kernel::kDType>(d, q, k + 2 * half, d);
                }
            }
        }
    }

    FS_DEVICE void hide(typename Kernel::Scores& s, i32 first_key) const {
        const i32 column = threadIdx.x % 4 * 2;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 seen = Mask::seen_by(sequence_, token_[half]);
            hide_columns_of_row<0, kBc / 2>(s.row_tile(0), half, seen - first_key - column);
            if constexpr (Mask::kHasLeft) {
                const i32 first = Mask::first_seen(sequence_, token_[half]);
                hide_columns_before(s.row_tile(0), half, first - first_key - column);
            }
        }
    }

    // What facts make of scores: rows of a tile are of several heads.
    FS_DEVICE void change(typename Kernel::Scores& s, i32 first_key) const {
        if constexpr (Score::kChanges) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const i32 column = first_key + threadIdx.x % 4 * 2;
                [[maybe_unused]] const float distance =
                    static_cast<float>(token_[half] + sequence_.position - column);
                FS_UNROLL
                for (int n = 0; n < kBc / 8; ++n) {
                    FS_UNROLL
                    for (int e = 0; e < 2; ++e) {
                        float& x = s.at[0][n][2 * half + e];
                        x = score_[half].of(args_, x);
                        if constexpr (kNeeds.alibi) {
                            const float far = distance - static_cast<float>(n * 8 + e);
                            x = ptx::fma_rn(-score_[half].alibi_slope, far < 0.0f ? -far : far, x);
                        }
                    }
                }
            }
        }
    }

    // Moves rows whose maximum has grown: what was added up under the old one shrinks. The factor
    // of the others is exactly 1, so that no row depends on another.
    FS_DEVICE void move_maxima(const typename Kernel::Scores& s, float factor) {
        float next[2];
        bool grown = false;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            float largest = ptx::max(s.at[0][0][2 * half], s.at[0][0][2 * half + 1]);
            FS_UNROLL
            for (int n = 1; n < kBc / 8; ++n) {
                largest =
                    ptx::max(largest, ptx::max(s.at[0][n][2 * half], s.at[0][n][2 * half + 1]));
            }
            largest = ptx::max(largest, ptx::shfl_bfly(largest, 1));
            largest = ptx::max(largest, ptx::shfl_bfly(largest, 2));
            next[half] = ptx::max(maximum[half], ptx::mul_rn(largest, factor));
            grown |= next[half] > maximum[half];
        }
        if (!ptx::vote_any(grown)) return;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float shrink = ptx::ex2(ptx::sub_rn(maximum[half], finite_maximum(next[half])));
            maximum[half] = next[half];
            sum[half] = ptx::mul_rn(sum[half], shrink);
            FS_UNROLL
            for (int n = 0; n < 2 * Kernel::kDSpans; ++n) {
                output.at[0][n][2 * half] = ptx::mul_rn(output.at[0][n][2 * half], shrink);
                output.at[0][n][2 * half + 1] = ptx::mul_rn(output.at[0][n][2 * half + 1], shrink);
            }
        }
    }

    // P as operand A; its sums over this thread's columns.
    FS_DEVICE void exponentiate(P& p, const typename Kernel::Scores& s, float factor) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float shift = -finite_maximum(maximum[half]);
            FS_UNROLL
            for (int n = 0; n < kBc / 8; ++n) {
                const float low = ptx::ex2(ptx::fma_rn(s.at[0][n][2 * half], factor, shift));
                const float high = ptx::ex2(ptx::fma_rn(s.at[0][n][2 * half + 1], factor, shift));
                sum[half] = ptx::add_rn(sum[half], ptx::add_rn(low, high));
                p.at[n / 2][n % 2 * 2 + half] = ptx::pack2<Kernel::kDType>(low, high);
            }
        }
    }

    FS_DEVICE void multiply_pv(const P& p, const VReader& v_reader) {
        FS_UNROLL
        for (int span = 0; span < kBc / kMatrixSpan; ++span) {
            FS_UNROLL
            for (int n = 0; n < Kernel::kDSpans; ++n) {
                u32 v[4];
                v_reader.read_transposed(v, span, n);
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float (&d)[4] = output.at[0][2 * n + half];
                    ptx::mma_m16n8k16<Kernel::kDType>(d, p.at[span], v + 2 * half, d);
                }
            }
        }
    }

    const Args& args_;
    const DecodeSequence sequence_;
    const i32 team_;
    const i32 warp_row_;
    const i32 first_key_;  // of the slice
    i32 first_block_;      // of this team, in this slice
    i32 end_block_;
    i32 all_see_;       // keys, from the first on, that every row of the tile sees
    i32 all_see_from_;  // with a left edge: the first key that all of them see
    i32 token_[2];      // of this thread's rows
    Score score_[2];    // of their heads
    QReader q_reader_;
    KReader k_reader_;
    VReader v_reader_;
    Copies copies_;
    u32 q_[Kernel::kQInRegisters ? Kernel::kDSpans : 1][4];
    typename Kernel::Output output;
    float maximum[2];
    float sum[2];  // over this thread's columns until the walk ends
};

}  // namespace flashsmith::decode
