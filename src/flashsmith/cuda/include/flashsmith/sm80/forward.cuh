// The forward kernel of the mma.sync family: one block of threads computes B_r rows of O.
//
// The keys are walked from the last block to the first, so that the blocks that need a mask come
// first and the loop over the others has no mask code. With eager_load_blocks:
//
//   copy  | K[n]   V[n]          K[n-1]            V[n-1]
//   math  |        Q K[n]^T      softmax, P V[n]   Q K[n-1]^T   ...
//
// Under a boolean mask only the blocks that some row sees are walked (attention/block_list.cuh).
#pragma once

#include "flashsmith/attention/block_list.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm80/gmem_to_smem.cuh"
#include "flashsmith/sm80/pv.cuh"
#include "flashsmith/sm80/qk.cuh"
#include "flashsmith/sm80/static_config.cuh"
#include "flashsmith/sm80/store_output.cuh"
#include "flashsmith/sm80/tile_order.cuh"

namespace flashsmith::sm80 {

// One block of threads at work on one tile of Q.
template <class Kernel>
class ForwardTile {
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr bool kSkips = kHasBlockList<kNeeds>;
    using Position = decltype(position_of_block<Kernel>(ForwardArgs{}));

  public:
    // The blocks of keys end before `n_blocks`; with a left edge they begin at `first_block`.
    FS_DEVICE ForwardTile(const ForwardArgs& args, const Position& tile, SmemAddr smem,
                          int n_blocks, [[maybe_unused]] int first_block)
        : args_(args),
          tile_(tile),
          smem_(smem),
          warp_row_(threadIdx.x / kWarpLanes * Kernel::kWarpRows),
          q_reader_(smem + kQ, warp_row_),
          k_reader_(smem + kK, 0),
          v_reader_(smem + kV, 0),
          k_stream_(args.k, tile.batch, kv_head(), key_end(n_blocks)),
          v_stream_(args.v, tile.batch, kv_head(), key_end(n_blocks)),
          score_(Score::of_head(args, table_row_of(tile), tile.head)),
          bias_(Bias::of_head(args, tile.batch, tile.head)) {
        if constexpr (Kernel::kVSlices > 1) v_stream_.skip_columns(first_v_column<Kernel>());
        if constexpr (Mask::kHasLeft) first_block_ = first_block;
        if constexpr (kSkips) k_at_ = v_at_ = n_blocks - 1;
        o_.clear();
        rows_.clear();
    }

    // Starts the copies of Q and, if eager, of the last block of K; reads Q if it is held.
    FS_DEVICE void begin(int n_blocks) {
        const i64 first_row = static_cast<i64>(rows_before(sequence())) + tile_.first_row;
        TileStream<typename Kernel::QTile, Kernel::kThreads> q_stream(
            args_.q, tile_.batch, tile_.head, first_row + Kernel::kBr);
        constexpr CopyChecks kChecks{kNeeds.ragged_q, kNeeds.narrow_d};
        const TileBounds bounds{sequence().q_len - tile_.first_row,
                                q_stream.column_exists(args_.d_head)};
        copy<kChecks>(q_stream, kQ, bounds);
        if constexpr (Kernel::kEager) copy_k<kNeeds.ragged_k>(n_blocks - 1);
        if constexpr (Kernel::kQInRegisters) {
            if constexpr (Kernel::kAsync) ptx::cp_async_wait<Kernel::kEager ? 1 : 0>();
            ptx::bar_sync();  // all of Q is in shared memory
            held_q_.read(q_reader_);
        }
    }

    // Under a boolean mask: the blocks of its line in the place of all, the last first.
    FS_DEVICE void add_line(const BlockLine& line, const Span& span) {
        line_ = line;
        remaining_ = line.count();
        _Pragma("unroll 1") while (remaining_ > 0) {
            const BlockEntry entry = line.entry(--remaining_);
            const int block = entry.block();
            is_whole_ = entry.is_whole();
            if (Mask::kHides && (block >= span.whole || block < max(span.first, span.cut))) {
                add_block<true>(block);
            } else {
                add_block<false>(block);
            }
        }
    }

    // One block of keys: S, its softmax, and its share of O.
    template <bool kMasked>
    FS_DEVICE void add_block(int block) {
        if constexpr (Kernel::kEager) {
            ptx::cp_async_wait<0>();
            ptx::bar_sync();  // K of this block is in, and V of the block before has been read
            copy_v<kMasked && kNeeds.ragged_k>(block);
        } else {
            ptx::bar_sync();  // K and V of the block before have been read
            copy_k<kMasked && kNeeds.ragged_k>(block);
            finish_copies();  // K of this block is in
        }
        _Pragma("unroll 1") for (int step = 0; step < Kernel::kSteps; ++step) {
            const int first_key = block * Kernel::kBc + step * Kernel::kStepCols;
            const bool active = !kMasked || !kNeeds.causal || sees(first_key);
            typename Kernel::S s;
            if (active) {
                multiply_qk<Kernel>(s, held_q_, q_reader_, of_step(k_reader_, step));
                apply_score(s, first_key);
                if constexpr (kMasked) hide(s, first_key);
            }
            between_products<kMasked>(block, step);
            Fragments<Kernel::kRowTiles> p[Kernel::kStepSpans];
            if (active) {
                const VReader<Kernel> v_reader = of_step(v_reader_, step);
                begin_softmax<Kernel, kMasked>(p, o_, rows_, s, Score::factor(args_));
                if constexpr (!Kernel::kVAfterSoftmax) {
                    multiply_pv<Kernel, kMasked>(o_, rows_, p, s, v_reader, Score::factor(args_));
                }
            }
            if constexpr (Kernel::kVAfterSoftmax) {
                if (step == 0) finish_copies();  // V of this block is in
                if (active) {
                    multiply_pv<Kernel, kMasked>(o_, rows_, p, s, of_step(v_reader_, step),
                                                 Score::factor(args_));
                }
            }
        }
    }

    // Works the position out again: registers are short in the loop, and this comes once.
    FS_DEVICE void end() {
        const Position tile = position_of_block<Kernel>(args_);
        store_output<Kernel>(o_, rows_, smem_ + kQ, args_, tile);
    }

  private:
    using Plan = typename Kernel::Plan;
    using Mask = typename Kernel::Mask;
    using Score = typename Kernel::Score;
    using Bias = typename Kernel::Bias;
    using KStream = TileStream<typename Kernel::KTile, Kernel::kThreads>;
    using VStream = TileStream<typename Kernel::VTile, Kernel::kThreads>;

    // In the order of the plan; NVRTC 13.0 knows no offsetof.
    static constexpr u32 kQ = 0;
    static constexpr u32 kK = kQ + sizeof(Plan::q);
    static constexpr u32 kV = kK + sizeof(Plan::k);

    FS_DEVICE const auto& sequence() const { return sequence_of(args_, tile_); }

    // Behind the last of the first `n_blocks` kv blocks.
    FS_DEVICE i64 key_end(int n_blocks) const {
        return keys_before(sequence()) + static_cast<i64>(n_blocks) * Kernel::kBc;
    }

    // The first block of keys, which comes last.
    FS_DEVICE int lowest() const {
        if constexpr (Mask::kHasLeft) return first_block_;
        return 0;
    }

    FS_DEVICE i64 kv_head() const {
        return static_cast<u32>(tile_.head) / static_cast<u32>(args_.heads / args_.kv_heads);
    }

    template <class Reader>
    FS_DEVICE static Reader of_step(const Reader& reader, int step) {
        return Kernel::kSteps == 1 ? reader : reader.below(step * Kernel::kStepCols);
    }

    // Whether the last row of this warp sees the first key of a step.
    FS_DEVICE bool sees(int first_key) const {
        const int last_row = tile_.first_row + warp_row_ + Kernel::kWarpRows - 1;
        return Mask::sees(sequence(), last_row, first_key);
    }

    FS_DEVICE void apply_score(typename Kernel::S& s, int first_key) const {
        const int lane = threadIdx.x % kWarpLanes;
        const int row = tile_.first_row + warp_row_ + lane / 4;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            const int first_row = tile_.first_row + warp_row_ + i * kMatrixSpan;
            score_.template apply<kMatrixSpan>(args_, sequence().position, s.row_tile(i),
                                               row + i * kMatrixSpan, first_key + lane % 4 * 2,
                                               first_row, first_key);
            if (kHasBlockList<kNeeds> && is_whole_) continue;
            bias_.apply(args_, s.row_tile(i), row + i * kMatrixSpan, first_key + lane % 4 * 2);
        }
    }

    // Removes from S what rows of this warp do not see, from key `first_key` on.
    FS_DEVICE void hide(typename Kernel::S& s, int first_key) const {
        constexpr int kCount = 8 * Kernel::kStepSpans;
        const int lane = threadIdx.x % kWarpLanes;
        const int first_row = tile_.first_row + warp_row_;
        FS_UNROLL
        for (int i = 0; i < Kernel::kRowTiles; ++i) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int row = first_row + i * kMatrixSpan + half * 8 + lane / 4;
                // Counted from this thread's first column: what follows compares constants.
                const int limit = Mask::seen_by(sequence(), row) - first_key - lane % 4 * 2;
                hide_columns_of_row<0, kCount>(s.row_tile(i), half, limit);
                if constexpr (Mask::kHasLeft) {
                    const int first = Mask::first_seen(sequence(), row) - first_key - lane % 4 * 2;
                    hide_columns_before(s.row_tile(i), half, first);
                }
            }
        }
    }

    // Makes V ready before its first use, unless that is left for after the softmax, and gives K's
    // room away after its last.
    template <bool kMasked>
    FS_DEVICE void between_products(int block, int step) {
        const bool first = step == 0 && !Kernel::kVAfterSoftmax;
        if (first) {
            if constexpr (Kernel::kEager) {
                ptx::cp_async_wait<0>();
            } else {
                copy_v<kMasked && kNeeds.ragged_k>(block);
                finish_copies();  // V of this block is in
            }
        }
        if constexpr (Kernel::kEager) {
            const bool last = step == Kernel::kSteps - 1;
            if (first || last) ptx::bar_sync();  // V is in (first), K has been read (last)
            if constexpr (kSkips) {
                if (last && remaining_ > 0) copy_k<false>(line_.block(remaining_ - 1));
            } else {
                if (last && block > lowest()) copy_k<false>(block - 1);
            }
        }
    }

    template <bool kRagged>
    FS_DEVICE void copy_k(int block) {
        if constexpr (kSkips) skip_to(block, k_stream_, k_at_);
        copy<CopyChecks{kRagged, kNeeds.narrow_d}>(k_stream_, kK, bounds_of(k_stream_, block));
    }
    template <bool kRagged>
    FS_DEVICE void copy_v(int block) {
        if constexpr (kSkips) skip_to(block, v_stream_, v_at_);
        TileBounds bounds = bounds_of(v_stream_, block);
        if constexpr (Kernel::kVSlices > 1) {
            const int columns = v_columns<kNeeds>(args_) - first_v_column<Kernel>();
            bounds.column = v_stream_.column_exists(columns);
        } else if constexpr (kNeeds.d_v) {
            bounds.column = v_stream_.column_exists(args_.v_width);
        }
        copy<CopyChecks{kRagged, kNeeds.narrow_d || kNeeds.d_v}>(v_stream_, kV, bounds);
    }
    template <class Stream>
    FS_DEVICE TileBounds bounds_of(const Stream& stream, int block) const {
        return {sequence().k_len - block * Kernel::kBc, stream.column_exists(args_.d_head)};
    }

    // From the block that a stream stands at to one before it; it then stands at the next.
    template <class Stream>
    FS_DEVICE static void skip_to(int block, Stream& stream, int& at) {
        stream.skip(at - block);
        at = block - 1;
    }

    template <CopyChecks kChecks, class Stream>
    FS_DEVICE void copy(Stream& stream, u32 place, const TileBounds& bounds) {
        if constexpr (Kernel::kAsync) {
            stream.template copy_async<kChecks>(smem_ + place, bounds);
            ptx::cp_async_commit();
        } else {
            stream.template copy_sync<kChecks>(smem_ + place, bounds);
        }
    }

    FS_DEVICE void finish_copies() {
        if constexpr (Kernel::kAsync) ptx::cp_async_wait<0>();
        ptx::bar_sync();
    }

    const ForwardArgs& args_;
    const Position tile_;
    const SmemAddr smem_;
    const int warp_row_;
    QReader<Kernel> q_reader_;
    KReader<Kernel> k_reader_;
    VReader<Kernel> v_reader_;
    KStream k_stream_;
    VStream v_stream_;
    HeldQ<Kernel> held_q_;
    typename Kernel::O o_;
    RowState<Kernel> rows_;
    Score score_;
    Bias bias_;
    int first_block_ = 0;
    BlockLine line_{0};      // with kSkips, as what follows
    int remaining_ = 0;      // blocks of the line after the present one
    bool is_whole_ = false;  // whether the mask hides nothing of that
    int k_at_ = 0, v_at_ = 0;
};

template <FlashForwardKernelConfig kConfig, Needs kNeeds>
FS_DEVICE void forward(const ForwardArgs& args) {
    using Kernel = ForwardKernel<kConfig, kNeeds>;
    static_assert(Kernel::valid_config());
    extern __shared__ __align__(1024) unsigned char smem[];

    const auto position = position_of_block<Kernel>(args);
    const auto& sequence = sequence_of(args, position);
    if (kListed<kNeeds> && sequence.q_len == 0) return;
    int last_row = position.first_row + Kernel::kBr - 1;
    if (kNeeds.ragged_q && last_row >= sequence.q_len) last_row = sequence.q_len - 1;
    const Span span =
        Kernel::Mask::template span<Kernel::kBc>(sequence, position.first_row, last_row);
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    if constexpr (kHasBlockList<kNeeds>) {
        const auto line = BlockLine::of_tile(args, position.batch, position.head,
                                             position.first_row / Kernel::kBr);
        const int behind = line.block(line.count() - 1) + 1;
        ForwardTile<Kernel> tile(args, position, start, behind, span.first);
        tile.begin(behind);
        tile.add_line(line, span);
        tile.end();
        return;
    }
    const int end = span.first + span.count;
    ForwardTile<Kernel> tile(args, position, start, end, span.first);

    int block = end - 1;
    // No launch is without a key, but a sequence of a list may be.
    if constexpr (!kNeeds.causal && !kNeeds.window_left && !kListed<kNeeds>) {
        __builtin_assume(block >= 0);
    }
    if (block >= span.first) tile.begin(end);
    if constexpr (Kernel::Mask::kHasLeft) {
        // Masked from the right, whole, masked from the left.
        const int cut = max(span.first, span.cut);
        _Pragma("unroll 1") for (; block >= max(span.whole, cut); --block) {
            tile.template add_block<true>(block);
        }
        _Pragma("unroll 1") for (; block >= cut; --block) tile.template add_block<false>(block);
        _Pragma("unroll 1") for (; block >= span.first; --block) {
            tile.template add_block<true>(block);
        }
    } else {
        if constexpr (Kernel::Mask::kHides) {
            _Pragma("unroll 1") for (; block >= span.whole; --block) {
                tile.template add_block<true>(block);
            }
        }
        _Pragma("unroll 1") for (; block >= 0; --block) tile.template add_block<false>(block);
    }
    tile.end();
}

}  // namespace flashsmith::sm80
