// What a decode kernel is made of: sizes and types that follow from its configuration, and the
// place of the work that a cta does at a time.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/tile_list.cuh"
#include "flashsmith/tile/fragment.cuh"
#include "flashsmith/tile/smem_tile.cuh"

namespace flashsmith::decode {

// kConfigArg: a configuration of one of these kernels. MemoryArg: how its K and V come to shared
// memory, a type with templates `Tile` and `Copies` and the type `Ring`.
template <auto kConfigArg, Needs kNeedsArg, class ArgsArg, class MemoryArg>
struct DecodeKernel {
    static constexpr auto kConfig = kConfigArg;
    static constexpr Needs kNeeds = kNeedsArg;
    using Args = ArgsArg;
    using Memory = MemoryArg;
    static constexpr DType kDType = kConfig.dtype;
    static constexpr int kD = kConfig.d_head;
    static constexpr int kDSpans = kD / kMatrixSpan;
    static constexpr int kBr = kConfig.B_r;
    static constexpr int kBc = kConfig.B_c;
    static constexpr int kStages = kConfig.stages;
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kTeams = kConfig.teams();
    static constexpr int kTeamThreads = kConfig.team_warps() * kWarpLanes;
    // 64 registers of Q beside 128 of O would leave none for the rest.
    static constexpr bool kQInRegisters = kD <= 128;
    // Ctas that take one slice each find it by their place in the grid.
    static constexpr bool kPlaced = kConfig.quick_start && !kConfig.persistent && !kConfig.runs;
    // Ctas take slices that follow each other: their rings go on from one to the next.
    static constexpr bool kRuns = kConfig.runs;

    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
    using QTile = SmemTile<kBr, kD, true>;
    using KVTile = typename Memory::template Tile<kBc, kD>;
    using Scores = Accumulator<1, kBc / 8>;
    using Output = Accumulator<1, 2 * kDSpans>;

    // Shared memory: Q, a ring of K and one of V a team, and behind all a word for all threads;
    // before that, where copies complete on them, barriers of the rings.
    //
    //   | Q | K stage 0 1 … | V stage 0 1 … | K … of the next team … | barriers | word |
    //       | O of team 0 | O of team 1 | … | maxima and sums |      once the rings are read
    static constexpr u32 kQ = 0;
    static constexpr u32 kRings = QTile::kBytes;
    static constexpr u32 kVRing = kStages * KVTile::kBytes;  // behind the ring of K
    static constexpr u32 kTeamBytes = 2 * kVRing;
    static constexpr u32 kExchangeRow = (kD + 8) * 4;  // rows begin at other banks
    static constexpr u32 kWord = kConfig.smem_bytes() - 16;
    static constexpr u32 kBarriers = kWord - kConfig.barrier_bytes();
    // Where rings go on, a team hands O over in the stage that it has read last, and the rest here:
    //
    //   | maxima and sums of team 0 | … | that stage of team 0 | … |
    static constexpr u32 kHanded = kBarriers - kConfig.handed_bytes();
    static constexpr u32 kHandedStages = kHanded + kTeams * kBr * 8;
    static constexpr u32 kStatistics = kRuns ? kHanded : kRings + kTeams * kBr * kExchangeRow;

    static constexpr bool valid() {
        static_assert(kConfig.n_warps % kConfig.team_warps() == 0, "a CTA must be whole teams.");
        static_assert(kConfig.slice_keys >= kTeams * kBc,
                      "a slice must have a kv block for every team.");
        static_assert(!kRuns || kBr <= kBc, "a team's results must fit a stage of its ring.");
        static_assert(!kRuns || !kNeeds.sequences, "runs are not of packed sequences.");
        return true;
    }
};

// One slice of the keys of one q tile: what a cta computes at a time.
struct DecodeWork {
    i32 batch;
    i32 kv_head;
    i32 tile;  // of the query rows of all heads of the group
    i32 slice;
    i32 slices;      // of this sequence
    i32 slice_keys;  // the same
    i32 k_len;       // the same
    i32 q_begin;     // where rows are packed: its first one
    i32 q_len;       // and how many it has
};

// How a sequence is divided: by its own length alone, so that bits do not depend on another's.
// Two slices are one, which needs no sum; where there would be more than most_slices, they double.
struct SequenceSlices {
    i32 keys;
    i32 count;

    template <auto kConfig>
    FS_DEVICE static SequenceSlices of(i32 k_len) {
        constexpr i32 kKeys = kConfig.slice_keys;
        const i32 least = (k_len + kKeys - 1) / kKeys;
        if (least <= 2) return {2 * kKeys, 1};
        const i32 doubled = 32 - __clz((least - 1) / kConfig.most_slices);
        return {kKeys << doubled, ((least - 1) >> doubled) + 1};
    }

    // Of a sequence with `tiles` q tiles: several are work enough for ctas, and are not divided.
    template <auto kConfig>
    FS_DEVICE static SequenceSlices of(i32 k_len, i32 tiles) {
        if (tiles > 1) return {max(k_len, 1), 1};
        return of<kConfig>(k_len);
    }
};

// A sequence as masks ask for it.
struct DecodeSequence {
    i32 q_len;
    i32 k_len;
    i32 diagonal;
    i32 left_diagonal;
    i32 position;
};

// Query rows of one head of the work's sequence.
template <class Kernel>
FS_DEVICE i32 q_len_of(const typename Kernel::Args& args, const DecodeWork& work) {
    if constexpr (Kernel::kNeeds.sequences) return work.q_len;
    return args.q_len;
}

// The entry of the batch that a sequence's rows lie in: those of packed ones are a batch of one.
template <class Kernel>
FS_DEVICE i32 batch_of_rows(const DecodeWork& work) {
    return Kernel::kNeeds.sequences ? 0 : work.batch;
}

template <class Kernel>
FS_DEVICE DecodeSequence sequence_of_work(const typename Kernel::Args& args,
                                          const DecodeWork& work) {
    if constexpr (Kernel::kNeeds.sequences) {
        const i32 alignment = args.follows_length != 0 ? work.k_len - work.q_len : 0;
        const ListedTile tile{work.q_begin, 0, work.q_len, work.k_len, 0, 0, alignment, 0};
        const ListedSequence own = listed_sequence(args, tile);
        return {own.q_len, own.k_len, own.diagonal, own.left_diagonal, own.position};
    }
    const i32 fewer = args.follows_length != 0 ? args.k_len - work.k_len : 0;
    return {args.q_len, work.k_len, aligned_diagonal(args.diagonal, fewer),
            aligned_diagonal(args.left_diagonal, fewer), args.position - fewer};
}

// Query rows of a group lie token by token: row r is token r / group of head r % group.
struct QueryRow {
    i32 token;
    i32 head;

    template <class Args>
    FS_DEVICE QueryRow(const Args& args, const DecodeWork& work, i32 row)
        : token(static_cast<u32>(row) / static_cast<u32>(args.group)),
          head(work.kv_head * args.group + row - token * args.group) {}

    // The same; where there is one token, without a division.
    template <class Kernel>
    FS_DEVICE static QueryRow of(const typename Kernel::Args& args, const DecodeWork& work,
                                 i32 row) {
        if constexpr (Kernel::kConfig.quick_start) {
            if (q_len_of<Kernel>(args, work) == 1) return {0, work.kv_head * args.group + row};
        }
        return {args, work, row};
    }

  private:
    FS_DEVICE QueryRow(i32 token, i32 head) : token(token), head(head) {}
};

// The first element of a query row in Q or O.
template <class Kernel>
FS_DEVICE i64 element_of(const TensorArg& tensor, const DecodeWork& work, const QueryRow& at) {
    if constexpr (Kernel::kNeeds.sequences) {
        return at.head * tensor.head_stride + (work.q_begin + at.token) * tensor.seq_stride;
    }
    return work.batch * tensor.batch_stride + at.head * tensor.head_stride +
           at.token * tensor.seq_stride;
}

}  // namespace flashsmith::decode
