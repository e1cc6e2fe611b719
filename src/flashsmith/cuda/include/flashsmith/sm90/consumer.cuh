// A consumer warpgroup of a Hopper kernel: 64 query rows of each tile, from Q Kᵀ to O.
//
// No branch here depends on the lane: ptxas then keeps descriptors, barriers and loop state in
// uniform registers. What only one lane does is predicated inside the asm.
#pragma once

#include "flashsmith/attention/needs.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/args.cuh"
#include "flashsmith/sm90/config.cuh"
#include "flashsmith/sm90/lazy_softmax.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/parts.cuh"
#include "flashsmith/sm90/products.cuh"
#include "flashsmith/sm90/shared_plan.cuh"
#include "flashsmith/sm90/tiles.cuh"

namespace flashsmith {

template <HopperForwardKernelConfig kConfig, ForwardTraits kTraits>
struct HopperConsumer {
    // Sums of rounded P are what O needs, and too coarse for a log-sum-exp.
    static constexpr bool kMmaSums = kConfig.l_by_mma && !kTraits.lse;
    using Products = HopperProducts<kConfig, kMmaSums>;
    using Softmax = LazySoftmax<kConfig, kMmaSums>;
    using Output = HopperOutput<kConfig, kTraits>;
    using Parts = HopperParts<kConfig>;
    static constexpr int kWarpgroups = kConfig.n_warpgroups;
    static constexpr u32 kTurnBarrier = 1;  // named barriers 1..3: a warpgroup's turn
    static constexpr u32 kPBarrier = 11;    // and 11..13: its P is in shared memory
    // From one panel of V to the next, or from the only one to the ones.
    static constexpr u32 kVPanelBytes = kMmaSums
                                            ? HopperSmem<kConfig>::kOnes - HopperSmem<kConfig>::kV
                                            : kConfig.B_c * kPanelRowBytes;
    // Only masks leave half a block unseen.
    static constexpr bool kHalves = kConfig.half_blocks && (kTraits.causal || kTraits.ragged_k);
    static constexpr int kHalf = kHalves ? kConfig.B_c / 2 : kConfig.B_c;
    static constexpr float kLn2 = 0.6931471805599453f;

    // What this warpgroup has to do in a tile.
    struct Work {
        i32 row;       // the tile's first query row
        i32 n_blocks;  // that pass through the rings; 0: no more tiles
        i32 own;       // of the lowest keys, that this warpgroup needs; 0: its rows do not exist
        i32 slot;      // of the tile ring
        i32 first;     // block of keys, where a tile may be split
    };

    const HopperForwardArgs& args;
    HopperSmem<kConfig> smem;
    const int warpgroup, thread, lane;
    const bool is_first_lane;
    const float scale;

    KvRing<kConfig> k;
    KvRing<kConfig, kMmaSums> v;
    ptx::MatrixDescriptor q_first, q_matrix, p_matrix;
    int q_slot;
    u32 q_parity;
    u32 tiles_seen;

    typename Products::O o;
    typename Products::P p;
    Softmax softmax;
    float sums[2];    // of the finished tile's rows
    float maxima[2];  // and what they are relative to, where another block may need it

    FS_DEVICE HopperConsumer(const HopperForwardArgs& args, HopperSmem<kConfig> smem, int warpgroup)
        : args(args),
          smem(smem),
          warpgroup(warpgroup),
          thread(threadIdx.x % kWarpgroupThreads),
          lane(threadIdx.x % kWarpLanes),
          is_first_lane(lane == 0),
          scale(args.scale_log2),
          k(ptx::MatrixDescriptor::of(smem.k(0), kPanelRowBytes), smem.k_full(0)),
          v(ptx::MatrixDescriptor::of(smem.v(0), kVPanelBytes), smem.v_full(0)),
          q_first(ptx::MatrixDescriptor::of(smem.q(0), kPanelRowBytes)),
          q_matrix(q_first),
          p_matrix(ptx::MatrixDescriptor::of(smem.p(warpgroup), kPanelRowBytes)),
          q_slot(warpgroup),
          q_parity(0),
          tiles_seen(0) {}

    // Rings

    FS_DEVICE Work next_tile() {
        const u32 slot = tiles_seen % kTileSlots;
        ptx::mbarrier_wait(smem.tile_full(slot), tiles_seen / kTileSlots % 2);
        ++tiles_seen;
        const HopperTile tile = get_tile(smem.tile(slot));
        Work work{ptx::broadcast(tile.row), ptx::broadcast(tile.n_blocks), 0,
                  static_cast<i32>(slot), 0};
        if constexpr (kSplits<kConfig, kTraits>) {
            work.first = ptx::broadcast(get_part(smem.tile(slot)).first);
        }
        const i32 row = work.row + warpgroup * kWarpgroupRows;
        work.own = work.n_blocks;
        if constexpr (kTraits.causal) {
            work.own = min(work.own, needed_blocks<kConfig, kTraits>(args, row + kWarpgroupRows));
        }
        if (kTraits.ragged_q && row >= args.q_len) work.own = 0;
        return work;
    }

    FS_DEVICE void release_tile(i32 slot) {
        ptx::bar_warp_sync();  // all lanes have read the slot
        ptx::mbarrier_arrive_if(is_first_lane, smem.tile_empty(slot));
    }

    FS_DEVICE void wait_q() { ptx::mbarrier_wait(smem.q_full(q_slot), q_parity); }

    FS_DEVICE void release_q() {
        ptx::mbarrier_arrive_if(is_first_lane, smem.q_empty(q_slot));
        q_slot += kWarpgroups;
        if (q_slot >= kConfig.q_slots) {
            q_slot -= kConfig.q_slots;
            q_parity ^= 1;
        }
    }

    FS_DEVICE void use_q() { q_matrix = q_first + q_slot * kConfig.q_slot_bytes(); }

    // This warp has read what it needs of a stage; with clusters every block's producer must know.
    template <class Ring>
    FS_DEVICE void release(Ring& ring) {
        if constexpr (kConfig.cluster == 1) {
            ptx::mbarrier_arrive_if(is_first_lane, ring.empty());
        } else {
            // Lane i tells block i.
            ptx::mbarrier_arrive_remote_if(lane < kConfig.cluster, ring.empty(), lane);
        }
        ring.advance();
    }

    // Blocks that this warpgroup does not need still pass through the rings.
    FS_DEVICE void skip_k(i32 count) {
        _Pragma("unroll 1") for (; count > 0; --count) {
            if constexpr (kConfig.overlap) {
                take_turn();
                pass_turn();
            } else {
                pass_turn();
                take_turn();
            }
            k.wait();
            ptx::bar_warp_sync();  // all lanes have seen the phase before the stage is given back
            release(k);
        }
    }
    FS_DEVICE void skip_v(i32 count) {
        _Pragma("unroll 1") for (; count > 0; --count) {
            v.wait();
            ptx::bar_warp_sync();
            release(v);
        }
    }
    FS_DEVICE void skip_pairs(i32 count) {
        _Pragma("unroll 1") for (; count > 0; --count) {
            skip_k(1);
            skip_v(1);
        }
    }

    FS_DEVICE void skip_tile(const Work& work) {
        if constexpr (!kConfig.overlap) take_turn();
        skip_pairs(work.n_blocks);
        if constexpr (!kConfig.overlap) pass_turn();
        wait_q();
        ptx::bar_warp_sync();
        release_q();
        release_tile(work.slot);
    }

    // Turns: a warpgroup issues its products, then lets the next one do so.

    FS_DEVICE void take_turn() {
        if constexpr (kConfig.pingpong) {
            ptx::bar_sync_named(kTurnBarrier + warpgroup, 2 * kWarpgroupThreads);
        }
    }
    FS_DEVICE void pass_turn() {
        if constexpr (kConfig.pingpong) {
            const int next = warpgroup + 1 == kWarpgroups ? 0 : warpgroup + 1;
            ptx::bar_arrive_named(kTurnBarrier + next, 2 * kWarpgroupThreads);
        }
    }
    FS_DEVICE void open_turns() {
        if (kConfig.pingpong && warpgroup == 0) {
            ptx::bar_arrive_named(kTurnBarrier, 2 * kWarpgroupThreads);
        }
    }

    // Blocks

    FS_DEVICE bool needs_mask(i32 row, i32 n) const {
        return ends_unseen(row, (n + 1) * kConfig.B_c);
    }

    // Whether some row of this warpgroup does not see the last key before `end`.
    FS_DEVICE bool ends_unseen(i32 row, i32 end) const {
        bool needed = false;
        if constexpr (kTraits.ragged_k) needed |= end > args.k_len;
        if constexpr (kTraits.causal) {
            needed |= end - 1 > row + warpgroup * kWarpgroupRows + args.diagonal;
        }
        return needed;
    }

    // Blocks, from the first on, that every row of this warpgroup sees all of.
    FS_DEVICE i32 unmasked(i32 row) const {
        return keys_seen<kTraits>(args, row + warpgroup * kWarpgroupRows + 1) / kConfig.B_c;
    }

    // Whether no row of this warpgroup sees the second half of block n.
    FS_DEVICE bool is_half(i32 row, i32 n) const {
        if constexpr (!kHalves) return false;
        const i32 keys = keys_seen<kTraits>(args, row + (warpgroup + 1) * kWarpgroupRows);
        return keys <= n * kConfig.B_c + kHalf;
    }

    FS_DEVICE int row_in_tile() const {
        return warpgroup * kWarpgroupRows + thread / kWarpLanes * 16 + lane / 4;
    }

    // Masks what rows of this block may not see; returns whether there was anything to mask.
    template <int kCount>
    FS_DEVICE bool mask(float (&s)[kCount], i32 row, i32 n) const {
        if constexpr (kTraits.causal || kTraits.ragged_k) {
            if (!needs_mask(row, n)) return false;
            const i32 column = n * kConfig.B_c + lane % 4 * 2;
            i32 low = args.k_len, high = args.k_len;
            if constexpr (kTraits.causal) {
                const i32 sees = row + row_in_tile() + 1 + args.diagonal;
                low = min(low, sees);
                high = min(high, sees + 8);
            }
            if (!kHalves || ends_unseen(row, n * kConfig.B_c + kCount)) {
                Softmax::template mask<0, kCount / 2>(s, low - column, high - column);
            }
            Softmax::template mask<kCount / 2, kCount>(s, low - column, high - column);
            return true;
        }
        return false;
    }

    // From S to P where no product is in flight.
    template <int kCount>
    FS_DEVICE void softmax_alone(float (&s)[kCount], i32 row, i32 n, bool first) {
        const bool masked = mask(s, row, n);
        if constexpr (kConfig.statistics == Statistics::kSUM) {
            softmax.exponentials_checked(p, s, scale, first, masked);
        } else {
            softmax.update_maximum(s, scale);
            softmax.exponentials(s, scale);
            softmax.pack(p, s);
        }
        stage_p<2 * kCount>();
    }

    // P in its place for issue_pv; the products that read the last one are done.
    template <int kKeys>
    FS_DEVICE void stage_p() {
        if constexpr (kConfig.p_in_smem) {
            FS_UNROLL
            for (int i = 0; i < kKeys / 16; ++i) {
                const u32 chunk[4] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
                ptx::stmatrix_x4(swizzled_rows(smem.p(warpgroup), thread, i), chunk);
            }
            ptx::fence_proxy_async();
            // The whole warpgroup's rows are there, for wgmma to read.
            ptx::bar_sync_named(kPBarrier + warpgroup, kWarpgroupThreads);
        }
    }

    FS_DEVICE void issue_pv(bool keep, bool half) {
        ptx::fence_registers(o);
        if (kHalves && half) {
            issue_pv_of<kHalf>(keep);
        } else {
            issue_pv_of<kConfig.B_c>(keep);
        }
    }

    template <int kKeys>
    FS_DEVICE void issue_pv_of(bool keep) {
        if constexpr (kConfig.p_in_smem) {
            Products::template issue_pv<kKeys>(o, p_matrix, v.matrix, keep);
        } else {
            Products::template issue_pv<kKeys>(o, p, v.matrix, keep);
        }
    }

    // Tile ends

    // Statistics of a finished tile. Where the sums are part of O, the last P V must have ended.
    FS_DEVICE void finish(i32 slot) {
        if constexpr (kMmaSums) {
            sums[0] = o[kConfig.d_head / 2];
            sums[1] = o[kConfig.d_head / 2 + 2];
        } else {
            softmax.sum_quad(sums);
        }
        if constexpr (kSplits<kConfig, kTraits>) {
            FS_UNROLL
            for (int i = 0; i < 2; ++i) maxima[i] = softmax.m[i];
        } else {
            store_lse(get_tile(smem.tile(slot)), softmax.m);
        }
    }

    FS_DEVICE void store_lse(const HopperTile& tile, const float (&m)[2]) const {
        if constexpr (!kTraits.lse) return;
        const i32 row = tile.row + row_in_tile();
        const i64 line = static_cast<i64>(tile.batch) * args.heads + tile.head;
        float* dst = args.lse + line * args.q_len + row;
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
            bool inside = !kTraits.ragged_q || row + 8 * i < args.q_len;
            inside &= args.lse != nullptr;  // a bundled kernel serves calls without it too
            const float lse = (m[i] + ptx::lg2(sums[i])) * kLn2;
            ptx::st_global_f32_if(dst + 8 * i, lse, lane % 4 == 0 && inside);
        }
    }

    FS_DEVICE void store(i32 slot) {
        const HopperTile tile = get_tile(smem.tile(slot));
        if constexpr (kSplits<kConfig, kTraits>) {
            const Parts parts(args, warpgroup, thread);
            const HopperPart part = get_part(smem.tile(slot));
            const i32 others = ptx::broadcast(part.others);
            if (others < 0) {
                parts.give(part.range, o, sums, maxima);
                release_tile(slot);
                return;
            }
            if (others > 0) parts.take(part.range, others, o, sums, maxima);
            store_lse(tile, maxima);
        }
        float inverse[2];
        FS_UNROLL
        for (int i = 0; i < 2; ++i) inverse[i] = sums[i] > 0.f ? ptx::rcp(sums[i]) : 0.f;
        if constexpr (kConfig.o_staged) {
            Output::store_staged(args, tile, smem.o(warpgroup), warpgroup, thread, o, inverse);
        } else {
            Output::store_direct(args, tile, row_in_tile(), lane, o, inverse);
        }
        release_tile(slot);
    }
};

}  // namespace flashsmith
