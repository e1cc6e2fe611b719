// A kv block as the producer tells it to the other warps, and the q tiles that it is walked with.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward/listed.cuh"
#include "flashsmith/sm90/backward/order.cuh"
#include "flashsmith/sm90/backward/parts.cuh"
#include "flashsmith/sm90/backward/plan.cuh"

namespace flashsmith::sm90 {

template <Sm90TilesConfig kConfigArg, Needs kNeedsArg>
struct BackwardKernel {
    static constexpr Sm90TilesConfig kConfig = kConfigArg;
    static constexpr Needs kNeeds = kNeedsArg;
    static constexpr bool kListed = flashsmith::kListed<kNeeds>;
    using Args = Sm90BackwardArgs;
    using Plan = BackwardPlan<kConfig>;
    using ListedPlan = BackwardListedPlan<kConfig>;
    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
};

// One block of keys of one head of K and V, or of one part of its group. steps 0 ends the work.
struct KvBlock {
    i32 first_key;
    i32 steps;
    i32 kv_head;  // see kv_head_of
    i32 batch;

    FS_DEVICE void put(SmemAddr slot) const {
        const Chunk words{{static_cast<u32>(first_key), static_cast<u32>(steps),
                           static_cast<u32>(kv_head), static_cast<u32>(batch)}};
        ptx::st_shared_16b(slot, words);
    }

    static FS_DEVICE KvBlock get(SmemAddr slot) {
        const Chunk words = ptx::ld_shared_16b(slot);
        return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
                static_cast<i32>(words.word[2]), static_cast<i32>(words.word[3])};
    }

    static FS_DEVICE void put_steps(SmemAddr slot, i32 steps) {
        ptx::st_shared_b32(slot + 4, static_cast<u32>(steps));
    }

    // Of packed sequences, which are a batch of one.
    static FS_DEVICE KvBlock get_packed(SmemAddr slot) {
        KvBlock block = get(slot);
        block.batch = 0;
        return block;
    }
};

// The q tiles that a kv block is walked with: head after head of its group, of each from the first
// that sees a key of it to the last.
template <class Kernel>
struct Walk {
    static constexpr i32 kRows = Kernel::kConfig.q_tile_rows();
    // A walk that wraps does not say which q tile it is at: masks and distances ask for that.
    static constexpr bool kStaggered = Kernel::kConfig.staggered && !Kernel::kNeeds.causal &&
                                       !Kernel::kNeeds.window_left && !Kernel::kNeeds.alibi;
    // Whether it matters which q tile a step is of: for masks and distances.
    static constexpr bool kCounts = (Kernel::kNeeds.causal && !Kernel::kConfig.masks_first) ||
                                    Kernel::kNeeds.window_left || Kernel::kNeeds.alibi;

    using Args = typename Kernel::Args;

    // Of a sequence: where all are equal, the arguments.

    // Whether any row sees the block. If none does, one step is made all the same, with every key
    // hidden, for gradients that are zero; nothing is added to dQ.
    template <class Sequence>
    static FS_DEVICE bool is_seen(const Sequence& of, i32 first_key) {
        if (Kernel::kNeeds.window_left && last_row(of, first_key) < 0) return false;
        return Kernel::Mask::first_row_of(of, first_key) < of.q_tiles * kRows;
    }

    // The last row that sees a key of the block, were there rows and keys enough.
    template <class Sequence>
    static FS_DEVICE i32 last_row(const Sequence& of, i32 first_key) {
        return Kernel::Mask::last_row_of(of, first_key + Kernel::kConfig.keys() - 1);
    }

    template <class Sequence>
    static FS_DEVICE i32 first_tile(const Sequence& of, i32 first_key) {
        if constexpr (!Kernel::kNeeds.causal) return 0;
        const i32 row = max(Kernel::Mask::first_row_of(of, first_key), 0);
        return min(row / kRows, of.q_tiles - 1);
    }

    // The q tile behind the last one.
    template <class Sequence>
    static FS_DEVICE i32 end_tile(const Sequence& of, i32 first_key) {
        if constexpr (!Kernel::kNeeds.window_left) return of.q_tiles;
        return min(max(last_row(of, first_key), 0) / kRows + 1, of.q_tiles);
    }

    // The q tile of the first head where a walk without a mask begins; all before it come last.
    static FS_DEVICE i32 start_tile(const Args& args, i32 first_key) {
        if constexpr (!kStaggered) return 0;
        return static_cast<u32>(first_key) / kRows % static_cast<u32>(args.q_tiles);
    }

    static FS_DEVICE i32 steps(const Args& args, i32 first_key) {
        if (!is_seen(args, first_key)) return 1;
        return walked_heads<Kernel>(args) *
               (end_tile(args, first_key) - first_tile(args, first_key));
    }

    // Of the nth kv block of a cta: from the arguments, or as the producer has told it.

    static FS_DEVICE bool is_seen(const Args& args, i32 first_key, [[maybe_unused]] u32 nth) {
        if constexpr (Kernel::kListed) {
            const WalkedRows told = Kernel::ListedPlan::rows(nth);
            return told.first < told.end;
        } else {
            return is_seen(args, first_key);
        }
    }
    static FS_DEVICE i32 first_tile(const Args& args, i32 first_key, [[maybe_unused]] u32 nth) {
        if constexpr (Kernel::kListed)
            return Kernel::ListedPlan::rows(nth).first;
        else
            return first_tile(args, first_key);
    }
    static FS_DEVICE i32 end_tile(const Args& args, i32 first_key, [[maybe_unused]] u32 nth) {
        if constexpr (Kernel::kListed)
            return Kernel::ListedPlan::rows(nth).end;
        else
            return end_tile(args, first_key);
    }
    // q tiles of a head in scratch memory before those of the sequence.
    static FS_DEVICE i32 tiles_before([[maybe_unused]] u32 nth) {
        if constexpr (Kernel::kListed)
            return Kernel::ListedPlan::rows(nth).tiles_before;
        else
            return 0;
    }

    i32 first;       // q tile of each head that sees a key
    i32 end;         // and the one behind the last
    i32 tile;        // where the walk is
    i32 batch_head;  // of Q
    i32 end_head;    // with `staggered`, the one behind the last

    FS_DEVICE Walk(const Args& args, const KvBlock& at, u32 nth)
        : first(first_tile(args, at.first_key, nth)),
          end(end_tile(args, at.first_key, nth)),
          tile(first),
          batch_head(at.batch * args.heads + at.kv_head * walked_heads<Kernel>(args)) {
        if constexpr (kStaggered) {
            tile = start_tile(args, at.first_key);
            end_head = batch_head + walked_heads<Kernel>(args);
        }
    }

    FS_DEVICE void advance(const Args& args, [[maybe_unused]] u32 nth) {
        if constexpr (Kernel::kListed) {  // the slot is read again: registers are few
            if (++tile == Kernel::ListedPlan::rows(nth).end) {
                tile = Kernel::ListedPlan::rows(nth).first;
                ++batch_head;
            }
        } else {
            const i32 behind = Kernel::kNeeds.window_left ? end : args.q_tiles;
            if (++tile == behind) {
                tile = first;
                ++batch_head;
                if (kStaggered && batch_head == end_head) batch_head -= walked_heads<Kernel>(args);
            }
        }
    }

    // Of all q tiles in scratch memory.
    FS_DEVICE u32 index(const Args& args, u32 nth) const {
        return static_cast<u32>(batch_head * args.q_tiles + tile + tiles_before(nth));
    }
};

// The sequence of the nth kv block of a cta, as masks ask for it.
template <class Kernel>
FS_DEVICE decltype(auto) masked_sequence(const typename Kernel::Args& args,
                                         [[maybe_unused]] u32 nth) {
    if constexpr (Kernel::kListed) {
        const WalkedSequence told = Kernel::ListedPlan::sequence(nth);
        const i32 alignment = Kernel::ListedPlan::rows(nth).alignment;
        return listed_sequence(args, ListedTile{told.q_begin, told.k_begin, told.q_len, told.k_len,
                                                0, 0, alignment, 0});
    } else {
        return (args);
    }
}

// The first slope of the nth kv block's sequence; heads of a dense batch are counted on from entry
// to entry.
template <class Kernel>
FS_DEVICE i32 first_slope(const typename Kernel::Args& args, [[maybe_unused]] u32 nth) {
    if constexpr (Kernel::kListed) {
        const WalkedSequence told = Kernel::ListedPlan::sequence(nth);
        if (told.q_len == 0) return 0;  // keys of no sequence
        // As first_scratch_tile counts them.
        const i32 before = Kernel::ListedPlan::rows(nth).tiles_before;
        return (before - told.q_begin / Walk<Kernel>::kRows - 1) * args.heads;
    } else {
        return 0;
    }
}

// Of a head that is drawn as number `drawn`.
template <class Kernel>
FS_DEVICE KvBlock kv_block_of(const typename Kernel::Args& args, u32 drawn, i32 first_key) {
    const u32 lying = lying_at<Kernel>(args, drawn);
    const u32 heads = Kernel::kConfig.in_parts ? args.kv_heads * args.parts : args.kv_heads;
    const u32 batch = lying / heads;
    return {first_key, Walk<Kernel>::steps(args, first_key),
            static_cast<i32>(lying - batch * heads), static_cast<i32>(batch)};
}

// Number `index` of the launch: block after block of a section's heads, then the next section.
// In order, blocks that add to a q tile first come first, so that who waits for a sum waits for a
// block that was drawn before; without order, the longest under a mask do.
template <class Kernel>
FS_DEVICE KvBlock decode_kv_block(const typename Kernel::Args& args, u32 index) {
    if (index >= static_cast<u32>(args.all_kv_blocks)) return {0, 0, 0, 0};
    if constexpr (Kernel::kConfig.ends_short()) {
        const DrawnBlock at = draw_short_last<Kernel>(args, index);
        return kv_block_of<Kernel>(args, at.head, at.block * Kernel::kConfig.keys());
    }
    const u32 in_section = args.section_heads * args.kv_blocks;
    const u32 section = index / in_section;
    const u32 rest = index - section * in_section;
    const u32 first_head = section * args.section_heads;
    const u32 all_heads = args.all_kv_blocks / args.kv_blocks;
    const u32 heads = min(static_cast<u32>(args.section_heads), all_heads - first_head);
    const u32 turn = rest / heads;
    const u32 batch_head = first_head + rest - turn * heads;
    const u32 block = Kernel::kConfig.in_any_order() ? turn : args.kv_blocks - 1 - turn;
    return kv_block_of<Kernel>(args, batch_head, block * Kernel::kConfig.keys());
}

// The same from a list of kv blocks, the longest sequences first: the cta's nth goes into its slot.
// The kv blocks of a sequence stand together in the list: an entry says which sequence a number is
// of. What is known goes to the slot at once and is read again: registers are few.
template <class Kernel>
struct ListedKvBlock {
    using Args = typename Kernel::Args;
    using Walk = sm90::Walk<Kernel>;
    using Listed = typename Kernel::ListedPlan;
    static constexpr i32 kKeys = Kernel::kConfig.keys();
    struct Sequence : ListedSequence {
        i32 q_tiles;
    };

    static FS_DEVICE void put(const Args& args, u32 index, u32 nth) {
        const TileList list(args.k_list);
        if (index >= static_cast<u32>(list.entries) * args.kv_heads) {
            return put_block(nth, {0, 0, 0, 0});
        }
        const i32 first = put_sequence(args, list.entry_at(index / args.kv_heads), nth);
        put_block(nth, block(args, index - static_cast<u32>(first * args.kv_heads), nth));
        asm volatile("" : "+r"(nth));  // the slot is found anew: kept, it would take a register
        put_walk(args, nth);
    }

  private:
    static FS_DEVICE void put_block(u32 nth, const KvBlock& block) {
        block.put(Kernel::Plan::kv_block(nth % Kernel::Plan::kBlockSlots));
    }

    // Returns the entry of the sequence's first block.
    static FS_DEVICE i32 put_sequence(const Args& args, u64 entry, u32 nth) {
        Listed::put(nth, __builtin_bit_cast(WalkedSequence, ptx::ld_global_16b(entry)));
        const ListedTile of = transposed(ListedTile::get(entry));
        // A sequence without rows is walked with the q tile that belongs to nobody.
        const i32 before = of.q_len > 0 ? first_scratch_tile<Walk::kRows>(of) : args.q_tiles - 1;
        Listed::put(nth, WalkedRows{0, 0, before, of.alignment});
        return of.first;
    }

    // Number `index` of a sequence's blocks, of all heads; steps are not known.
    static FS_DEVICE KvBlock block(const Args& args, u32 index, u32 nth) {
        const WalkedSequence of = Listed::sequence(nth);
        const u32 kv_blocks = (of.k_len + kKeys - 1) / kKeys;
        const u32 together = max(1, min(args.section_rows / max(of.q_len, 1), args.kv_heads));
        const u32 section = index / (together * kv_blocks);
        const u32 rest = index - section * together * kv_blocks;
        const u32 heads = min(together, args.kv_heads - section * together);
        const u32 turn = rest / heads;
        const u32 head = section * together + rest - turn * heads;
        return {static_cast<i32>(kv_blocks - 1 - turn) * kKeys, 0, static_cast<i32>(head), 0};
    }

    // The q tiles that the block is walked with, and the steps.
    static FS_DEVICE void put_walk(const Args& args, u32 nth) {
        const SmemAddr slot = Kernel::Plan::kv_block(nth % Kernel::Plan::kBlockSlots);
        const i32 first_key = KvBlock::get(slot).first_key;
        const ListedSequence& of = masked_sequence<Kernel>(args, nth);
        const Sequence sequence{of, max((of.q_len + Walk::kRows - 1) / Walk::kRows, 1)};
        const i32 first = Walk::first_tile(sequence, first_key);
        i32 end = first;  // of a block that no row sees
        if (of.q_len > 0 && Walk::is_seen(sequence, first_key)) {
            end = Walk::end_tile(sequence, first_key);
        }
        Listed::put_walk(nth, first, end);
        KvBlock::put_steps(slot, max(args.kv_group * (end - first), 1));
    }
};

}  // namespace flashsmith::sm90
