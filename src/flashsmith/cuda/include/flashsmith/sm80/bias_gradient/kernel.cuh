// dBias: a cta owns a q tile and a kv block of one matrix of the bias, and walks the sequences and
// heads that share the matrix.
//
//   S = Q Kᵀ,  dP = dO Vᵀ       P = 2^(c S + shift),  dBias += P ∘ (dP - delta)
//
// What a bias is added to is the score behind scale and cap: its gradient is that of the score.
// Sequences are walked from the first on, heads inside them: the order of every sum is fixed, and
// the same bits come out every time.
#pragma once

#include "flashsmith/attention/bias.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm80/backward_products.cuh"
#include "flashsmith/sm80/backward_tile.cuh"

namespace flashsmith::sm80 {

template <Sm80BiasGradientConfig kConfig, Needs kNeedsArg>
struct BiasGradientKernel {
    static constexpr Needs kNeeds = kNeedsArg;
    static constexpr DType kDType = kConfig.dtype;
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kBr = kConfig.B_r();
    static constexpr int kBc = kConfig.B_c;
    static constexpr int kDSpans = kConfig.d_head / kMatrixSpan;

    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using Bias = flashsmith::Bias<kNeeds, kDType>;
    using QueryTile = SmemTile<kBr, kConfig.d_head, true>;
    using KeyTile = SmemTile<kBc, kConfig.d_head, true>;
    using Scores = Accumulator<1, kBc / 8>;  // of the 16 rows of a warp

    // In the order of shared memory.
    static constexpr u32 kQ = 0;
    static constexpr u32 kDO = kQ + QueryTile::kBytes;
    static constexpr u32 kK = kDO + QueryTile::kBytes;
    static constexpr u32 kV = kK + KeyTile::kBytes;
    static constexpr int kBytes = kV + KeyTile::kBytes;

    static constexpr CopyChecks kKeyChecks{kNeeds.ragged_k, kNeeds.narrow_d};
    static constexpr CopyChecks kQueryChecks{kNeeds.ragged_q, kNeeds.narrow_d};

    static constexpr bool valid() {
        static_assert(Bias::kExists && !Bias::kIsBool, "only what is added has a gradient.");
        static_assert(kBr == kThreads / kWarpLanes * kMatrixSpan, "a warp must own 16 rows.");
        static_assert(kBytes == kConfig.smem_bytes(), "the plan must have the size of the launch.");
        return true;
    }
};

template <class Kernel>
class BiasTileGradient {
    static constexpr Needs kNeeds = Kernel::kNeeds;
    using Scores = typename Kernel::Scores;

  public:
    // Matrices, in them q tiles, in them kv blocks.
    FS_DEVICE BiasTileGradient(const BackwardArgs& args, SmemAddr smem) : args_(args), smem_(smem) {
        const u32 blocks = (args.k_len + Kernel::kBc - 1) / Kernel::kBc;
        const u32 tiles = (args.q_len + Kernel::kBr - 1) / Kernel::kBr;
        const u32 cta = ptx::ctaid_x(), tile = cta / blocks;
        matrix_ = tile / tiles;
        first_key_ = static_cast<i32>((cta - tile * blocks) * Kernel::kBc);
        first_row_ = static_cast<i32>((tile - matrix_ * tiles) * Kernel::kBr);
        warp_row_ = threadIdx.x / kWarpLanes * kMatrixSpan;
        sum_.clear();
    }

    FS_DEVICE void walk() {
        if (!is_seen()) return;
        const u32 batch = matrix_ / args_.bias_heads;
        const u32 head = matrix_ - batch * args_.bias_heads;
        const u32 batch_end = args_.bias_sequences == 1 ? args_.batch : batch + 1;
        const u32 head_end = args_.bias_heads == 1 ? args_.heads : head + 1;
        bool is_first = true;
        _Pragma("unroll 1") for (u32 b = batch; b < batch_end; ++b) {
            _Pragma("unroll 1") for (u32 h = head; h < head_end; ++h) {
                if (!is_first) ptx::bar_sync();  // the head before has been read
                is_first = false;
                copy(b, h);
                ptx::cp_async_wait<0>();
                ptx::bar_sync();  // this head's tiles are in
                add(b, h);
            }
        }
    }

    FS_DEVICE void end() const {
        const i32 lane = threadIdx.x % kWarpLanes;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 row = first_row_ + warp_row_ + half * 8 + lane / 4;
            if (kNeeds.ragged_q && row >= args_.q_len) continue;
            const i64 line = (static_cast<i64>(matrix_) * args_.q_len + row) * args_.k_len;
            FS_UNROLL
            for (int n = 0; n < Kernel::kBc / 8; ++n) {
                FS_UNROLL
                for (int e = 0; e < 2; ++e) {
                    const i32 key = first_key_ + n * 8 + lane % 4 * 2 + e;
                    if (kNeeds.ragged_k && key >= args_.k_len) continue;
                    args_.dbias[line + key] = sum_.at[0][n][2 * half + e];
                }
            }
        }
    }

  private:
    using QueryReader = FragmentReader<typename Kernel::QueryTile, MatrixOrder::kRowsFirst>;
    using KeyReader = FragmentReader<typename Kernel::KeyTile, MatrixOrder::kColsFirst>;

    // Whether some row of the tile sees a key of the block.
    FS_DEVICE bool is_seen() const {
        const i32 last_row = min(first_row_ + Kernel::kBr, args_.q_len) - 1;
        if (Kernel::Mask::seen_by(args_, last_row) <= first_key_) return false;
        if constexpr (!kNeeds.window_left) return true;
        return Kernel::Mask::first_seen(args_, first_row_) < first_key_ + Kernel::kBc;
    }

    FS_DEVICE void copy(u32 batch, u32 head) const {
        const u32 kv_head = head / static_cast<u32>(args_.heads / args_.kv_heads);
        const auto of_rows = [&](u32 place, const TensorArg& tensor) {
            copy_tile<typename Kernel::QueryTile, Kernel::kThreads, Kernel::kQueryChecks>(
                smem_ + place, tensor, batch, head, first_row_, args_.q_len, args_.d_head);
        };
        const auto of_keys = [&](u32 place, const TensorArg& tensor) {
            copy_tile<typename Kernel::KeyTile, Kernel::kThreads, Kernel::kKeyChecks>(
                smem_ + place, tensor, batch, kv_head, first_key_, args_.k_len, args_.d_head);
        };
        of_rows(Kernel::kQ, args_.q);
        of_rows(Kernel::kDO, args_.d_o);
        of_keys(Kernel::kK, args_.k);
        of_keys(Kernel::kV, args_.v);
        ptx::cp_async_commit();
    }

    // What one head of one sequence adds.
    FS_DEVICE void add(u32 batch, u32 head) {
        const i32 lane = threadIdx.x % kWarpLanes;
        const i32 row = first_row_ + warp_row_ + lane / 4, key = first_key_ + lane % 4 * 2;
        Scores s, dp;
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            s, QueryReader(smem_ + Kernel::kQ, warp_row_), KeyReader(smem_ + Kernel::kK, 0));
        [[maybe_unused]] Scores bends;  // of products, which nobody asks for here
        change_scores<typename Kernel::Score>(args_, batch, head, s, bends,
                                              row + args_.position - key);
        Kernel::Bias::of_head(args_, batch, head).apply(args_, s.row_tile(0), row, key);
        if constexpr (Kernel::Mask::kHides) {
            hide_keys<typename Kernel::Mask>(s, args_, first_row_, warp_row_, first_key_);
        }
        multiply_by_rows<Kernel::kDType, Kernel::kDSpans>(
            dp, QueryReader(smem_ + Kernel::kDO, warp_row_), KeyReader(smem_ + Kernel::kV, 0));
        RowStatistics rows[1][2];
        const i64 of_head = (static_cast<i64>(batch) * args_.heads + head) * args_.padded_rows;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {  // rows that do not exist are padded
            rows[0][half].read(args_.statistics, of_head + row + half * 8, true);
        }
        to_gradients(dp, s, rows, Kernel::Score::factor(args_));
        FS_UNROLL
        for (int n = 0; n < Kernel::kBc / 8; ++n) {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) sum_.at[0][n][e] += dp.at[0][n][e];
        }
    }

    const BackwardArgs& args_;
    const SmemAddr smem_;
    u32 matrix_;
    i32 first_row_, first_key_, warp_row_;
    Scores sum_;
};

template <Sm80BiasGradientConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_bias(const BackwardArgs& args) {
    using Kernel = BiasGradientKernel<kConfig, kNeeds>;
    static_assert(Kernel::valid());
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    BiasTileGradient<Kernel> tile(args, start);
    tile.walk();
    tile.end();
}

}  // namespace flashsmith::sm80
