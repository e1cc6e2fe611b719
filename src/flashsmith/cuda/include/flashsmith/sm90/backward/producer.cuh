// The producer's warpgroup: one thread draws kv blocks and feeds the rings; in order, two more add
// what the others multiplied to dQ.
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward/tile.cuh"

namespace flashsmith::sm90 {

template <class Kernel>
struct BackwardProducer {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90TilesConfig kConfig = Kernel::kConfig;

    const Args& args;
    u32 nth = 0;    // kv blocks before this one: slot, and parity of K and V
    u32 steps = 0;  // the same of q tiles: stage and parity of Q and dO

    FS_DEVICE explicit BackwardProducer(const Args& args) : args(args) {}

    // It has 24 registers: what can be read again or counted is not kept.
    FS_DEVICE void run() {
        publish(draw(), 0);
        for (;; ++nth) {
            const SmemAddr slot = Plan::kv_block(nth % Plan::kBlockSlots);
            const KvBlock block = Kernel::kListed ? KvBlock::get_packed(slot) : KvBlock::get(slot);
            if (block.steps == 0) {
                if constexpr (Kernel::kListed) Kernel::ListedPlan::end_tails();
                return;
            }
            // Asked for here, needed when the rings are full. In order, others wait for the block
            // that a number stands for: it is drawn when this one's loads are out, not before.
            [[maybe_unused]] const u32 early = kConfig.in_any_order() ? draw() : 0;
            Walk<Kernel> walk(args, block, nth);
            // In the order of need. V is free before K: a kv block's last dQ still reads that.
            load_q(walk, block.batch);
            load_kv(args.v_map, Plan::kV, Plan::v_full(), Plan::v_empty(), block);
            load_d_o(walk, block.batch);
            load_kv(args.k_map, Plan::kK, Plan::k_full(), Plan::k_empty(), block);
            ++steps;
            _Pragma("unroll 1") for (i32 left = block.steps; --left > 0; ++steps) {
                walk.advance(args, nth);
                if constexpr (kConfig.early_release) load_d_o(walk, block.batch);  // free first
                load_q(walk, block.batch);
                if constexpr (!kConfig.early_release) load_d_o(walk, block.batch);
                if (kConfig.in_any_order() && left == block.steps - 1) publish(early, nth + 1);
            }
            if (!kConfig.in_any_order()) {
                publish(draw(), nth + 1);
            } else if (block.steps == 1) {
                publish(early, nth + 1);
            }
        }
    }

  private:
    // All numbers come from the counter: who holds one runs, and so do those that hold lower ones.
    FS_DEVICE u32 draw() const { return ptx::atom_add_u32(args.counters, 1); }

    // Tells the other warps of their kv block `count`.
    FS_DEVICE void publish(u32 number, u32 count) const {
        const u32 slot = count % Plan::kBlockSlots;
        if constexpr (Kernel::kListed) {
            wait_for_slot(count);
            ListedKvBlock<Kernel>::put(args, number, count);
            asm volatile("" : "+r"(count));  // the barrier is found anew: registers are few
            ptx::mbarrier_arrive(Plan::block_full(count % Plan::kBlockSlots));
        } else {
            const KvBlock block = decode_kv_block<Kernel>(args, number);
            wait_for_slot(count);
            block.put(Plan::kv_block(slot));
            ptx::mbarrier_arrive(Plan::block_full(slot));
        }
    }

    // All warps have left the slot of kv block `count`.
    FS_DEVICE void wait_for_slot(u32 count) const {
        ptx::mbarrier_wait(Plan::block_empty(count % Plan::kBlockSlots),
                           ~(count / Plan::kBlockSlots) & 1);
    }

    // The barrier that copies into `tile` complete on, which is told of them: `full`, unless rows
    // behind the end of a sequence are to be cleared first.
    FS_DEVICE SmemAddr expect(SmemAddr full, u32 bytes, [[maybe_unused]] SmemAddr tile,
                              [[maybe_unused]] i32 kept, [[maybe_unused]] int rows) const {
        if constexpr (Kernel::kListed) {
            if (kept < rows) return Kernel::ListedPlan::send_tail(tile, kept, rows, full, bytes);
        }
        ptx::mbarrier_arrive_expect_tx(full, bytes);
        return full;
    }

    FS_DEVICE void load_panels(SmemAddr dst, const TensorMap& map, int rows, SmemAddr full, i32 row,
                               i32 head, i32 batch) const {
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            ptx::tma_load_4d(dst + panel * rows * kPanelRowBytes, map,
                             {panel * kPanelColumns, row, head, batch}, full);
        }
    }

    FS_DEVICE void load_kv(const TensorMap& map, u32 dst, SmemAddr full, SmemAddr empty,
                           const KvBlock& block) const {
        ptx::mbarrier_wait(empty, ~nth & 1);  // the kv block before has been read
        i32 row = block.first_key, kept = 0;
        if constexpr (Kernel::kListed) {
            const WalkedSequence of = Kernel::ListedPlan::sequence(nth);
            kept = of.q_len > 0 ? of.k_len - row : 0;  // nobody looks at keys without rows
        }
        const SmemAddr lands = expect(full, kConfig.kv_bytes(), {dst}, kept, kConfig.keys());
        if constexpr (Kernel::kListed) row += Kernel::ListedPlan::sequence(nth).k_begin;
        load_panels({dst}, map, kConfig.keys(), lands, row, kv_head_of<Kernel>(args, block.kv_head),
                    block.batch);
    }

    FS_DEVICE int stage() const { return steps & 1; }
    FS_DEVICE u32 parity() const { return ~(steps >> 1) & 1; }

    FS_DEVICE void load_q(const Walk<Kernel>& walk, i32 batch) const {
        const SmemAddr full = Plan::q_full(stage());
        ptx::mbarrier_wait(Plan::q_empty(stage()), parity());  // the stage has been read
        const SmemAddr lands =
            load_rows(args.q_map, Plan::kQ, full, kConfig.q_bytes() + kConfig.statistics_bytes(),
                      walk, batch);
        const u64 statistics = reinterpret_cast<u64>(args.statistics) +
                               static_cast<u64>(walk.index(args, nth)) * kConfig.statistics_bytes();
        ptx::bulk_load(Plan::statistics(stage()), statistics, kConfig.statistics_bytes(), lands);
    }

    FS_DEVICE void load_d_o(const Walk<Kernel>& walk, i32 batch) const {
        const SmemAddr full = Plan::d_o_full(stage());
        ptx::mbarrier_wait(Plan::d_o_empty(stage()), parity());  // the stage has been read
        load_rows(args.d_o_map, Plan::kDO, full, kConfig.q_bytes(), walk, batch);
    }

    FS_DEVICE SmemAddr staged(u32 stages) const { return {stages + stage() * kConfig.q_bytes()}; }

    // Starts copies of the walk's q tile; returns the barrier that they complete on, which was told
    // of `bytes`.
    FS_DEVICE SmemAddr load_rows(const TensorMap& map, u32 stages, SmemAddr full, u32 bytes,
                                 const Walk<Kernel>& walk, i32 batch) const {
        constexpr i32 kRows = kConfig.q_tile_rows();
        i32 row = walk.tile * kRows, kept = 0;
        if constexpr (Kernel::kListed) kept = Kernel::ListedPlan::sequence(nth).q_len - row;
        const SmemAddr lands = expect(full, bytes, staged(stages), kept, kRows);
        if constexpr (Kernel::kListed) row += Kernel::ListedPlan::sequence(nth).q_begin;
        load_panels(staged(stages), map, kRows, lands, row, walk.batch_head - batch * args.heads,
                    batch);
        return lands;
    }
};

// One thread adds the pieces of one warpgroup to dQ, in a fixed order of the kv blocks: of those
// that a q tile sees, the last one first. A counter a piece says how many have been added.
//
// The first one stores, so that nothing need be cleared. Blocks are drawn in that order too: who
// waits here waits for a block whose number was drawn before its own, by a cta that runs.
template <class Kernel>
struct DqAdder {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90TilesConfig kConfig = Kernel::kConfig;

    const Args& args;
    const int warpgroup;  // whose pieces
    u32 parity = 0;       // of the staged piece

    FS_DEVICE DqAdder(const Args& args, int warpgroup) : args(args), warpgroup(warpgroup) {}

    FS_DEVICE void run() {
        for (u32 seen = 0;; ++seen) {
            const u32 slot = seen % Plan::kBlockSlots;
            ptx::mbarrier_wait(Plan::block_full(slot), seen / Plan::kBlockSlots % 2);
            const KvBlock block = KvBlock::get(Plan::kv_block(slot));
            if constexpr (!Kernel::kListed) ptx::mbarrier_arrive(Plan::block_empty(slot));
            if (block.steps == 0) return;
            if (!Walk<Kernel>::is_seen(args, block.first_key, seen)) {
                if constexpr (Kernel::kListed) ptx::mbarrier_arrive(Plan::block_empty(slot));
                continue;
            }
            Walk<Kernel> walk(args, block, seen);
            _Pragma("unroll 1") for (i32 step = 0; step < block.steps; ++step) {
                add(walk, block.first_key, seen);
                walk.advance(args, seen);
            }
            // What the slot says of the sequence is read with every sum.
            if constexpr (Kernel::kListed) ptx::mbarrier_arrive(Plan::block_empty(slot));
        }
    }

  private:
    FS_DEVICE void add(const Walk<Kernel>& walk, i32 first_key, u32 nth) {
        constexpr i32 kKeys = kConfig.keys();
        const i32 row_end = (walk.tile + 1) * kConfig.q_tile_rows();
        const auto& of = masked_sequence<Kernel>(args, nth);
        const i32 blocks = (Kernel::Mask::seen_before(of, row_end) + kKeys - 1) / kKeys;
        const u32 before = blocks - 1 - first_key / kKeys;        // blocks that add before this one
        const u32 piece = walk.index(args, nth) * 2 + warpgroup;  // a launch has fewer than 2^31
        const u64 dst =
            reinterpret_cast<u64>(args.dq_sums) + static_cast<u64>(piece) * kConfig.piece_bytes();
        const u32 counter = 1 + piece;

        ptx::mbarrier_wait(Plan::dq_full(warpgroup, 0), parity);  // the piece is staged
        parity ^= 1;
        if (before > 0) {
            // All sums before are complete.
            ptx::wait_at_least_acquire_gpu(args.counters + counter, before);
            ptx::bulk_add_f32_if(true, dst, Plan::dq(warpgroup), kConfig.piece_bytes());
        } else {
            ptx::bulk_store(dst, Plan::dq(warpgroup), kConfig.piece_bytes());
        }
        ptx::bulk_commit_if(true);
        ptx::bulk_wait_read_if(true);
        ptx::mbarrier_arrive(Plan::dq_empty(warpgroup));
        count_up(counter, before + 1);
    }

    // Tells others of a sum.
    FS_DEVICE void count_up(u32 counter, u32 count) const {
        ptx::bulk_wait<0>();  // the sum is complete, as this thread sees it
        // Sums are made by the async proxy, the counter is not: without this fence another SM may
        // see the counter first (H200, 2026-11: wrong bits now and then at full size).
        ptx::fence_proxy_async_global();
        ptx::st_release_gpu(args.counters + counter, count);
    }
};

}  // namespace flashsmith::sm90
