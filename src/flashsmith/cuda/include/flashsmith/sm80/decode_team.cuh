// What a team of a decode kernel computes: O, maxima and sums of its kv blocks of a slice.
//
// A warp holds 16 rows of O. Of its rows a thread has two (lane / 4 and 8 below) and a quarter of
// their columns. With c the score's factor and x a score, P = 2^(c x - m), m the row's largest c x.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm80/decode_copies.cuh"

namespace flashsmith::sm80 {

// What a maximum is subtracted as: a row that has seen no key has -inf, and all of its P are 0.
FS_DEVICE float finite_maximum(float m) { return m == kNegativeInfinity ? 0.0f : m; }

template <class Kernel>
class DecodeTeam {
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kBc = Kernel::kBc;
    using Mask = typename Kernel::Mask;
    using Score = typename Kernel::Score;

  public:
    FS_DEVICE DecodeTeam(const DecodeArgs& args, const DecodeWork& work, SmemAddr smem)
        : args_(args),
          sequence_(sequence_of_work<Kernel>(args, work)),
          team_(threadIdx.x / Kernel::kTeamThreads),
          warp_row_(threadIdx.x % Kernel::kTeamThreads / kWarpLanes * kMatrixSpan),
          first_key_(work.slice * Kernel::kSlice),
          q_reader_(smem + Kernel::kQ, warp_row_),
          k_reader_(smem + Kernel::kRings + team_ * Kernel::kTeamBytes, 0),
          v_reader_(smem + Kernel::kRings + team_ * Kernel::kTeamBytes + Kernel::kVRing, 0),
          copies_(smem + Kernel::kRings + team_ * Kernel::kTeamBytes, args, work, sequence_.k_len) {
        const i32 first_row = work.tile * Kernel::kBr;
        all_see_ = Mask::seen_by(sequence_, QueryRow(args, work, first_row).token);
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 row = first_row + warp_row_ + half * 8 + threadIdx.x % kWarpLanes / 4;
            seen_[half] = Mask::seen_by(sequence_, QueryRow(args, work, row).token);
            maximum[half] = kNegativeInfinity;
            sum[half] = 0.0f;
        }
        output.clear();
        const i32 keys = min(Kernel::kSlice, sequence_.k_len - first_key_);
        const i32 blocks = (keys + kBc - 1) / kBc - team_;
        blocks_ = blocks > 0 ? (blocks + Kernel::kTeams - 1) / Kernel::kTeams : 0;
    }

    // Starts the copies of the first kv blocks: a group of copies each, empty where there is none.
    FS_DEVICE void begin() const {
        FS_UNROLL
        for (int i = 0; i < Kernel::kStages - 1; ++i) copy(i, i);
    }

    // Groups of copies that `begin` leaves unfinished.
    static constexpr int kPending = Kernel::kStages - 1;

    // Q is in shared memory.
    FS_DEVICE void read_q() {
        if constexpr (Kernel::kQInRegisters) {
            FS_UNROLL
            for (int span = 0; span < Kernel::kDSpans; ++span) q_reader_.read(q_[span], 0, span);
        }
    }

    FS_DEVICE void walk() {
        int stage = 0;
        _Pragma("unroll 1") for (i32 i = 0; i < blocks_; ++i) {
            ptx::cp_async_wait<kPending - 1>();
            meet();  // this kv block is in, and the one before has been read by the whole team
            const int before = stage == 0 ? Kernel::kStages - 1 : stage - 1;
            copy(i + Kernel::kStages - 1, before);
            add_block(i, stage);
            stage = stage + 1 == Kernel::kStages ? 0 : stage + 1;
        }
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            sum[half] = ptx::add_rn(sum[half], ptx::shfl_bfly(sum[half], 1));
            sum[half] = ptx::add_rn(sum[half], ptx::shfl_bfly(sum[half], 2));
        }
    }

    // Writes O, maxima and sums where all teams' results are added up; all rings have been read.
    FS_DEVICE void hand_over(SmemAddr smem) const {
        const u32 lane = threadIdx.x % kWarpLanes;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const u32 row = team_ * Kernel::kBr + warp_row_ + half * 8 + lane / 4;
            const SmemAddr room = smem + Kernel::kRings + row * Kernel::kExchangeRow + lane % 4 * 8;
            FS_UNROLL
            for (int n = 0; n < 2 * Kernel::kDSpans; ++n) {
                ptx::st_shared_f32x2(room + n * 32, output.at[0][n][2 * half],
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

    FS_DEVICE void copy(i32 block, int stage) const {
        if (block < blocks_) copies_.copy(stage, key_of(block));
        ptx::cp_async_commit();
    }

    FS_DEVICE void add_block(i32 block, int stage) {
        typename Kernel::Scores s;
        multiply_qk(s, k_reader_.below(stage * kBc));
        Score::apply(args_, s.row_tile(0));
        if constexpr (Mask::kHides) {
            if (key_of(block) + kBc > all_see_) hide(s, key_of(block));
        }
        const float factor = Score::factor(args_);
        move_maxima(s, factor);
        P p;
        exponentiate(p, s, factor);
        multiply_pv(p, v_reader_.below(stage * kBc));
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
            hide_columns_of_row<0, kBc / 2>(s.row_tile(0), half, seen_[half] - first_key - column);
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

    const DecodeArgs& args_;
    const DecodeSequence sequence_;
    const i32 team_;
    const i32 warp_row_;
    const i32 first_key_;  // of the slice
    i32 blocks_;           // of this team
    i32 all_see_;          // keys, from the first on, that every row of the tile sees
    i32 seen_[2];          // the same of this thread's rows
    QReader q_reader_;
    KReader k_reader_;
    VReader v_reader_;
    KVCopies<Kernel> copies_;
    u32 q_[Kernel::kQInRegisters ? Kernel::kDSpans : 1][4];
    typename Kernel::Output output;
    float maximum[2];
    float sum[2];  // over this thread's columns until the walk ends
};

}  // namespace flashsmith::sm80
