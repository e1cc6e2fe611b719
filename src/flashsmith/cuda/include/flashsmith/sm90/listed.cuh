// What kernels add whose q tiles come from a list (attention/tile_list.cuh): the sequence of each
// tile, and the end of V.
//
// A tensor map ends where the packed tensor does: behind the last key of a sequence TMA brings the
// keys of the next. Scores of those are masked, so that P is 0 there, but 0 times what is not a
// number is not 0. A warp of its own, the sweeper, clears these rows of V in shared memory:
//
//   V block inside a sequence    TMA ─────────────────────────► full (of the stage)
//   V block behind its end       TMA ──► tail_full ──► sweeper ──► full
//
// Consumers wait for `full` in either case.
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/attention/tile_list.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/shared_plan.cuh"

namespace flashsmith::sm90 {

// Behind the memory of the configuration:
//
//   the sequence of each tile slot | tail barriers | tails | the producer's tail slot
template <Sm90ForwardConfig kConfig>
struct ListedPlan {
    // One more than there are stages of V: when a slot comes round again its block has been read.
    static constexpr int kTailSlots = kConfig.kv_stages + 1;
    static constexpr int kSequenceBytes = 32;
    static constexpr int kSequences = kConfig.smem_bytes();
    static constexpr int kBarriers = kSequences + kTileSlots * kSequenceBytes;
    static constexpr int kTails = kBarriers + kTailSlots * kBarrierBytes;
    static constexpr int kSlot = kTails + kTailSlots * 8;
    static constexpr int kBytes = kSlot + 8 - kSequences;
    static constexpr u32 kNoMore = ~0u;
    static_assert(kBytes == kListedBytes + kListedStageBytes * kConfig.kv_stages,
                  "the plan and the host must agree on the size of shared memory.");

    SmemAddr base;

    FS_DEVICE SmemAddr sequence(int slot) const {
        return base + (kSequences + slot * kSequenceBytes);
    }
    FS_DEVICE SmemAddr tail_full(int slot) const {
        return base + (kBarriers + slot * kBarrierBytes);
    }
    FS_DEVICE SmemAddr tail(int slot) const { return base + (kTails + slot * 8); }

    // One thread, before the plan of the configuration initialises its own.
    FS_DEVICE void init_barriers() const {
        for (int i = 0; i < kTailSlots; ++i) ptx::mbarrier_init(tail_full(i), 1);
        ptx::st_shared_b32(base + kSlot, 0);
    }

    // The producer tells of a block of V in `stage` of which the first `rows` rows are the
    // sequence's; returns the barrier that its copies are to complete on. Which slot comes next is
    // kept in shared memory: registers are few.
    FS_DEVICE SmemAddr send_tail(int stage, i32 rows, u32 bytes) const {
        const int slot = ptx::ld_shared_b32(base + kSlot);
        ptx::st_shared_b32(base + kSlot, slot + 1 == kTailSlots ? 0 : slot + 1);
        ptx::st_shared_b32(tail(slot), static_cast<u32>(stage) << 16 | static_cast<u32>(rows));
        ptx::mbarrier_arrive_expect_tx(tail_full(slot), bytes);
        return tail_full(slot);
    }

    FS_DEVICE void end_tails() const {
        const int slot = ptx::ld_shared_b32(base + kSlot);
        ptx::st_shared_b32(tail(slot), kNoMore);
        ptx::mbarrier_arrive(tail_full(slot));
    }

    // What copies of K and V need to know of a tile.
    struct Keys {
        i32 begin, length, head;
    };

    FS_DEVICE void put(int slot, const ListedSequence& of, i32 kv_head) const {
        const Words words = __builtin_bit_cast(Words, Told{of, kv_head});
        ptx::st_shared_16b(sequence(slot), words.low);
        ptx::st_shared_16b(sequence(slot) + 16, words.high);
    }

    FS_DEVICE Keys keys(int slot) const {
        return {static_cast<i32>(ptx::ld_shared_b32(sequence(slot) + 4)),
                static_cast<i32>(ptx::ld_shared_b32(sequence(slot) + 12)),
                static_cast<i32>(ptx::ld_shared_b32(sequence(slot) + 28))};
    }
    FS_DEVICE i32 first_row(int slot) const {
        return static_cast<i32>(ptx::ld_shared_b32(sequence(slot)));
    }

    FS_DEVICE ListedSequence get(int slot) const {
        const Words words{ptx::ld_shared_16b(sequence(slot)),
                          ptx::ld_shared_16b(sequence(slot) + 16)};
        return __builtin_bit_cast(Told, words).of;
    }

  private:
    // A slot: as fields, and as two accesses.
    struct Told {
        ListedSequence of;
        i32 kv_head;
    };
    struct Words {
        Chunk low, high;
    };
    static_assert(sizeof(Told) == kSequenceBytes && sizeof(Words) == kSequenceBytes,
                  "a slot is two 16-byte accesses.");
};

// One warp: clears what is behind the end of sequences, block by block, until the producer ends it.
template <Sm90ForwardConfig kConfig>
FS_DEVICE void sweep_tails(const SharedPlan<kConfig>& smem) {
    using Plan = ListedPlan<kConfig>;
    const Plan listed{smem.base};
    const int lane = threadIdx.x % kWarpLanes;
    int slot = 0;
    u32 parity = 0;
    while (true) {
        ptx::mbarrier_wait(listed.tail_full(slot), parity);
        const u32 tail = ptx::ld_shared_b32(listed.tail(slot));
        if (tail == Plan::kNoMore) return;
        const int stage = tail >> 16;
        const int first = (tail & 0xffff) * kPanelRowBytes;
        // The swizzle moves chunks inside their row.
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            const SmemAddr rows = smem.v(stage) + panel * kConfig.B_c * kPanelRowBytes;
            for (int at = first + lane * kChunkBytes; at < kConfig.B_c * kPanelRowBytes;
                 at += kWarpLanes * kChunkBytes) {
                ptx::st_shared_16b(rows + at, {{0, 0, 0, 0}});
            }
        }
        ptx::fence_proxy_async();  // wgmma reads them
        ptx::bar_warp_sync();      // all lanes have cleared theirs
        ptx::mbarrier_arrive_if(lane == 0, smem.v_full(stage));
        if (++slot == Plan::kTailSlots) {
            slot = 0;
            parity ^= 1;
        }
    }
}

}  // namespace flashsmith::sm90
