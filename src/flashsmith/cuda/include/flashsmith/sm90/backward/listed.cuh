// What the backward kernel adds where sequences are packed: which sequence a kv block belongs to,
// and sequences that end inside a q tile or a kv block.
//
// A tensor map ends where the packed tensor does: behind the last row or key of a sequence TMA
// brings those of the next. Their weights are 0, but 0 times what is not a number is not 0. A warp
// of its own, the sweeper, clears these rows in shared memory:
//
//   all rows are the sequence's    TMA ─────────────────────────► full (of the stage)
//   the sequence ends in it        TMA ──► tail_full ──► sweeper ──► full
//
// The warps that multiply wait for `full` in either case.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/backward/plan.cuh"
#include "flashsmith/sm90/scratch_tiles.cuh"

namespace flashsmith::sm90 {

// What a slot holds beside its KvBlock, as two 16-byte accesses.
struct WalkedSequence {  // as an entry of the list begins, with queries and keys swapped
    i32 k_begin, q_begin;
    i32 k_len, q_len;
};
struct WalkedRows {
    i32 first;         // q tile of the sequence that sees the kv block,
    i32 end;           // and one past the last; equal to `first` where no row sees it
    i32 tiles_before;  // q tiles of the head's earlier sequences, in scratch memory
    i32 alignment;     // row i stands at key i + this
};

// Behind the memory of the configuration:
//
//   sequence and rows of each slot | tail barriers | tails | which tail slot comes next
template <Sm90TilesConfig kConfig>
struct BackwardListedPlan {
    // One more than there are buffers that TMA fills: K, V, and stages of Q and dO. When a slot
    // is used again, a tile that was announced after it has been read: the sweeper goes in order.
    static constexpr int kTailSlots = 2 + 2 * kConfig.row_stages() + 1;
    static constexpr u32 kTold = BackwardPlan<kConfig>::kBase + kConfig.smem_bytes();
    static constexpr u32 kTails = kTold + kConfig.block_slots() * 32;
    static constexpr u32 kBarriers = kTails + kTailSlots * 16;
    static constexpr u32 kNext = kBarriers + kTailSlots * kBarrierBytes;
    static_assert(kNext + kBarrierBytes - kTold == kBackwardListedBytes,
                  "the plan and the host must agree on the size of shared memory.");

    static FS_DEVICE SmemAddr told(u32 nth) { return {kTold + nth % kConfig.block_slots() * 32}; }
    static FS_DEVICE SmemAddr tail(u32 slot) { return {kTails + slot * 16}; }
    static FS_DEVICE SmemAddr tail_full(u32 slot) { return {kBarriers + slot * kBarrierBytes}; }

    // Run by one thread, before the plan of the configuration initialises its own barriers.
    static FS_DEVICE void init_barriers() {
        for (int i = 0; i < kTailSlots; ++i) ptx::mbarrier_init(tail_full(i), 1);
        ptx::st_shared_b32({kNext}, 0);
    }

    static FS_DEVICE void put(u32 nth, const WalkedRows& rows) {
        ptx::st_shared_16b(told(nth), __builtin_bit_cast(Chunk, rows));
    }
    static FS_DEVICE void put(u32 nth, const WalkedSequence& sequence) {
        ptx::st_shared_16b(told(nth) + 16, __builtin_bit_cast(Chunk, sequence));
    }
    static FS_DEVICE void put_walk(u32 nth, i32 first, i32 end) {
        ptx::st_shared_b32(told(nth), static_cast<u32>(first));
        ptx::st_shared_b32(told(nth) + 4, static_cast<u32>(end));
    }
    static FS_DEVICE WalkedRows rows(u32 nth) {
        return __builtin_bit_cast(WalkedRows, ptx::ld_shared_16b(told(nth)));
    }
    static FS_DEVICE WalkedSequence sequence(u32 nth) {
        return __builtin_bit_cast(WalkedSequence, ptx::ld_shared_16b(told(nth) + 16));
    }

    // Announces a tile whose first `kept` rows belong to the sequence; returns the barrier that its
    // copies must complete on. The number of the next slot is kept in shared memory: registers are
    // few.
    static FS_DEVICE SmemAddr send_tail(SmemAddr tile, i32 kept, int rows, SmemAddr full,
                                        u32 bytes) {
        const u32 slot = take_slot();
        ptx::st_shared_16b(tail(slot), {{tile.value, static_cast<u32>(kept * kPanelRowBytes),
                                         static_cast<u32>(rows * kPanelRowBytes), full.value}});
        ptx::mbarrier_arrive_expect_tx(tail_full(slot), bytes);
        return tail_full(slot);
    }

    static FS_DEVICE void end_tails() {
        const u32 slot = take_slot();
        ptx::st_shared_16b(tail(slot), {{0, 0, 0, 0}});
        ptx::mbarrier_arrive(tail_full(slot));
    }

    // Run by one warp: clears the rows past the end of sequences, tile by tile, until the producer
    // stops it.
    static FS_DEVICE void sweep() {
        const u32 lane = threadIdx.x % kWarpLanes;
        u32 slot = 0, parity = 0;
        while (true) {
            ptx::mbarrier_wait(tail_full(slot), parity);  // the tile has landed
            const Chunk told = ptx::ld_shared_16b(tail(slot));
            if (told.word[0] == 0) return;
            const u32 panel_bytes = told.word[2];
            // The swizzle moves chunks inside their row.
            FS_UNROLL
            for (int panel = 0; panel < kConfig.panels(); ++panel) {
                const SmemAddr rows{told.word[0] + panel * panel_bytes};
                for (u32 at = told.word[1] + lane * kChunkBytes; at < panel_bytes;
                     at += kWarpLanes * kChunkBytes) {
                    ptx::st_shared_16b(rows + at, {{0, 0, 0, 0}});
                }
            }
            ptx::fence_proxy_async();  // wgmma reads them
            ptx::bar_warp_sync();      // all lanes have cleared theirs
            ptx::mbarrier_arrive_if(lane == 0, {told.word[3]});
            if (++slot == kTailSlots) {
                slot = 0;
                parity ^= 1;
            }
        }
    }

  private:
    static FS_DEVICE u32 take_slot() {
        const u32 slot = ptx::ld_shared_b32({kNext});
        ptx::st_shared_b32({kNext}, slot + 1 == kTailSlots ? 0 : slot + 1);
        return slot;
    }
};

}  // namespace flashsmith::sm90
