// The producer's warpgroup: one thread draws kv blocks and feeds the rings; in order, two more add
// what the others multiplied to dQ.
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward_tile.cuh"

namespace flashsmith::sm90 {

template <class Kernel>
struct BackwardProducer {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90TilesConfig kConfig = Kernel::kConfig;

    const Args& args;
    u32 tiles = 0;  // whose loads are out: slot, and parity of K and V
    u32 steps = 0;  // the same of q tiles: stage and parity of Q and dO

    FS_DEVICE explicit BackwardProducer(const Args& args) : args(args) {}

    // It has 24 registers: what can be read again or counted is not kept.
    FS_DEVICE void run() {
        publish(draw(), 0);
        for (;; ++tiles) {
            const KvTile tile = KvTile::get(Plan::tile(tiles % Plan::kTileSlots));
            if (tile.steps == 0) return;
            // Asked for here, needed when the rings are full. In order, others wait for the block
            // that a number stands for: it is drawn when this one's loads are out, not before.
            [[maybe_unused]] const u32 early = kConfig.unordered ? draw() : 0;
            Walk<Kernel> walk(args, tile);
            // In the order of need. V is free before K: a tile's last dQ still reads that.
            load_q(walk, tile.batch);
            load_kv(args.v_map, Plan::kV, Plan::v_full(), Plan::v_empty(), tile);
            load_d_o(walk, tile.batch);
            load_kv(args.k_map, Plan::kK, Plan::k_full(), Plan::k_empty(), tile);
            ++steps;
            _Pragma("unroll 1") for (i32 left = tile.steps; --left > 0; ++steps) {
                walk.advance(args);
                load_q(walk, tile.batch);
                load_d_o(walk, tile.batch);
                if (kConfig.unordered && left == tile.steps - 1) publish(early, tiles + 1);
            }
            if (!kConfig.unordered) {
                publish(draw(), tiles + 1);
            } else if (tile.steps == 1) {
                publish(early, tiles + 1);
            }
        }
    }

  private:
    // All numbers come from the counter: who holds one runs, and so do those that hold lower ones.
    FS_DEVICE u32 draw() const { return ptx::atom_add_u32(args.counters, 1); }

    // Tells the other warps of their tile `count`.
    FS_DEVICE void publish(u32 number, u32 count) const {
        const u32 slot = count % Plan::kTileSlots;
        const KvTile tile = decode_kv_tile<Kernel>(args, number);
        ptx::mbarrier_wait(Plan::tile_empty(slot), ~(count / Plan::kTileSlots) & 1);  // all left it
        tile.put(Plan::tile(slot));
        ptx::mbarrier_arrive(Plan::tile_full(slot));
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
                           const KvTile& tile) const {
        ptx::mbarrier_wait(empty, ~tiles & 1);  // the tile before has been read
        ptx::mbarrier_arrive_expect_tx(full, kConfig.kv_bytes());
        load_panels({dst}, map, kConfig.keys(), full, tile.first_key, tile.kv_head, tile.batch);
    }

    FS_DEVICE int stage() const { return steps & 1; }
    FS_DEVICE u32 parity() const { return ~(steps >> 1) & 1; }

    FS_DEVICE void load_q(const Walk<Kernel>& walk, i32 batch) const {
        const SmemAddr full = Plan::q_full(stage());
        ptx::mbarrier_wait(Plan::q_empty(stage()), parity());  // the stage has been read
        ptx::mbarrier_arrive_expect_tx(full, kConfig.q_bytes() + kConfig.statistics_bytes());
        load_panels(Plan::q(stage()), args.q_map, kConfig.q_tile_rows(), full,
                    walk.tile * kConfig.q_tile_rows(), walk.batch_head - batch * args.heads, batch);
        const u64 statistics = reinterpret_cast<u64>(args.statistics) +
                               static_cast<u64>(walk.index(args)) * kConfig.statistics_bytes();
        ptx::bulk_load(Plan::statistics(stage()), statistics, kConfig.statistics_bytes(), full);
    }

    FS_DEVICE void load_d_o(const Walk<Kernel>& walk, i32 batch) const {
        const SmemAddr full = Plan::d_o_full(stage());
        ptx::mbarrier_wait(Plan::d_o_empty(stage()), parity());  // the stage has been read
        ptx::mbarrier_arrive_expect_tx(full, kConfig.q_bytes());
        load_panels(Plan::d_o(stage()), args.d_o_map, kConfig.q_tile_rows(), full,
                    walk.tile * kConfig.q_tile_rows(), walk.batch_head - batch * args.heads, batch);
    }
};

// One thread adds the pieces of one warpgroup to dQ, in a fixed order of the kv blocks: of those
// that a q tile sees, the last one first. A counter a piece says how many have been added.
//
// The first one stores, so that nothing need be cleared. Blocks are drawn in that order too: who
// waits here waits for a block whose number was drawn before its own, by a CTA that runs.
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
            const u32 slot = seen % Plan::kTileSlots;
            ptx::mbarrier_wait(Plan::tile_full(slot), seen / Plan::kTileSlots % 2);
            const KvTile tile = KvTile::get(Plan::tile(slot));
            ptx::mbarrier_arrive(Plan::tile_empty(slot));
            if (tile.steps == 0) return;
            if (!Walk<Kernel>::is_seen(args, tile.first_key)) continue;
            Walk<Kernel> walk(args, tile);
            _Pragma("unroll 1") for (i32 step = 0; step < tile.steps; ++step) {
                add(walk, tile.first_key);
                walk.advance(args);
            }
        }
    }

  private:
    FS_DEVICE void add(const Walk<Kernel>& walk, i32 first_key) {
        constexpr i32 kKeys = kConfig.keys();
        const i32 row_end = (walk.tile + 1) * kConfig.q_tile_rows();
        const i32 blocks = (Kernel::Mask::seen_before(args, row_end) + kKeys - 1) / kKeys;
        const u32 before = blocks - 1 - first_key / kKeys;   // blocks that add before this one
        const u32 piece = walk.index(args) * 2 + warpgroup;  // a launch has fewer than 2^31
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
