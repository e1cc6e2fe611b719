// A consumer warpgroup's parts: rings, turns, rows and masks, and what ends a q tile.
//
// No branch here depends on the lane: ptxas then keeps descriptors, barriers and loop state in
// uniform registers. What only one lane does is predicated inside the asm.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/kernel.cuh"
#include "flashsmith/sm90/output_bounds.cuh"
#include "flashsmith/sm90/q_slots.cuh"
#include "flashsmith/sm90/q_tile.cuh"

namespace flashsmith::sm90 {

// What a warpgroup has to do in a q tile.
struct Work {
    i32 row;       // the tile's first query row
    i32 n_blocks;  // kv blocks that pass through the rings; 0: no more tiles
    i32 own;       // of the lowest keys, that this warpgroup needs; 0: its rows do not exist
    i32 slot;      // of the tile ring
    i32 first;     // kv block, where a tile may be split
};

template <class Kernel>
struct Consumer {
    static constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    using Turns = typename Kernel::Turns;
    using Products = typename Kernel::Products;
    using Mask = typename Kernel::Mask;
    template <int kCount>
    using EarlyBias = typename Kernel::Bias::template Early<kCount>;
    // From one panel of V to the next, or from the only one to the ones.
    static constexpr u32 kVPanelBytes =
        Kernel::kMmaSums ? Plan::kOnes - Plan::kV : kConfig.B_c * kPanelRowBytes;

    const Args& args;
    Plan smem;
    const int warpgroup, thread, lane;
    const bool is_first_lane;
    const float factor;

    typename Kernel::KRing k;
    typename Kernel::VRing v;
    QSlots<kConfig.q_slots, kConfig.q_slot_bytes(), kConfig.n_warpgroups> q;
    u32 tiles_seen;
    i32 present;  // slot of the tile at hand, where sequences have lengths of their own
    i32 blocks;   // of the tile at hand, where tiles begin near their rows

    typename Products::O o;
    typename Products::P p;
    typename Kernel::Softmax softmax;
    typename Kernel::Score score;
    typename Kernel::Bias bias;
    BlockLine line;   // of the tile at hand, under a boolean mask,
    bool is_whole;    // and whether it hides nothing of the block at hand
    float sums[2];    // of the finished tile's rows
    float maxima[2];  // and what they are relative to, where another cta may need it

    FS_DEVICE Consumer(const Args& args, Plan smem, int warpgroup)
        : args(args),
          smem(smem),
          warpgroup(warpgroup),
          thread(threadIdx.x % kWarpgroupThreads),
          lane(threadIdx.x % kWarpLanes),
          is_first_lane(lane == 0),
          factor(Kernel::kLines ? 1.0f : Kernel::Score::factor(args)),
          k(ptx::MatrixDescriptor::of(smem.k(0), kPanelRowBytes), smem.k_full(0)),
          v(ptx::MatrixDescriptor::of(smem.v(0), kVPanelBytes), smem.v_full(0)),
          q(smem.q(0), warpgroup),
          tiles_seen(0) {}

    // Tiles

    FS_DEVICE Work next_tile() {
        const u32 slot = tiles_seen % kTileSlots;
        ptx::mbarrier_wait(smem.tile_full(slot), tiles_seen / kTileSlots % 2);
        ++tiles_seen;
        const QTile tile = QTile::get(smem.tile(slot));
        Work work{ptx::broadcast(tile.row), ptx::broadcast(tile.n_blocks), 0,
                  static_cast<i32>(slot), 0};
        if constexpr (Kernel::kListed) {
            if (work.n_blocks == 0) return work;
            present = static_cast<i32>(slot);
        }
        if constexpr (Kernel::kSplits) {
            work.first = ptx::broadcast(Slice::get(smem.tile(slot)).first);
        } else if constexpr (Mask::kHasLeft) {
            const u32 rank = kConfig.cluster > 1 ? ptx::cluster_ctarank() : 0;
            work.first = first_block_of<Kernel>(sequence(), work.row, rank);
        }
        if constexpr (Kernel::kBeginsNear) {
            const u32 rank = kConfig.cluster > 1 ? ptx::cluster_ctarank() : 0;
            work.first = begins_near<Kernel>(args, work.row, work.n_blocks, rank);
        }
        const i32 row = first_row(work.row);
        work.own = work.n_blocks;
        if constexpr (kNeeds.causal) {
            const i32 row_end = row + kWarpgroupRows;
            const i32 seen = Mask::template blocks_seen<kConfig.B_c>(sequence(), row_end);
            constexpr bool kFromFirst = Mask::kHasLeft || Kernel::kSliced;
            work.own = min(work.own, kFromFirst ? max(seen - work.first, 1) : seen);
        }
        if (kNeeds.ragged_q && row >= sequence().q_len) work.own = 0;
        return work;
    }

    FS_DEVICE void release_tile(i32 slot) {
        ptx::bar_warp_sync();  // all lanes have read the slot
        ptx::mbarrier_arrive_if(is_first_lane, smem.tile_empty(slot));
    }

    // Rings

    FS_DEVICE void wait_q() { ptx::mbarrier_wait(smem.q_full(q.slot), q.parity); }

    FS_DEVICE void release_q() {
        ptx::mbarrier_arrive_if(is_first_lane, smem.q_empty(q.slot));
        q.advance();
    }

    // This warp has read what it needs of a stage; with clusters every cta's producer must know.
    template <class Ring>
    FS_DEVICE void release(Ring& ring) {
        if constexpr (kConfig.cluster == 1) {
            ptx::mbarrier_arrive_if(is_first_lane, ring.empty());
        } else {
            // Lane i tells cta i.
            ptx::mbarrier_arrive_remote_if(lane < kConfig.cluster, ring.empty(), lane);
        }
        ring.advance();
    }

    // Blocks that this warpgroup does not need still pass through the rings.
    FS_DEVICE void skip_k(i32 count) {
        _Pragma("unroll 1") for (; count > 0; --count) {
            if constexpr (kConfig.overlap) {
                Turns::take(warpgroup);
                Turns::pass(warpgroup);
            } else {
                Turns::pass(warpgroup);
                Turns::take(warpgroup);
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
        if constexpr (!kConfig.overlap) Turns::take(warpgroup);
        skip_pairs(work.n_blocks);
        if constexpr (!kConfig.overlap) Turns::pass(warpgroup);
        wait_q();
        ptx::bar_warp_sync();
        release_q();
        release_tile(work.slot);
    }

    // The sequence of the tile at hand. One with lengths of its own is read again where it is asked
    // for, at the edges of masks: uniform registers are few.
    FS_DEVICE decltype(auto) sequence() const { return sequence_in(present); }

    // The sequence of the tile in a slot.
    FS_DEVICE decltype(auto) sequence_in([[maybe_unused]] i32 slot) const {
        if constexpr (Kernel::kListed) {
            const ListedSequence of = listed().get(slot);
            return ListedSequence{ptx::broadcast(of.q_begin),  ptx::broadcast(of.k_begin),
                                  ptx::broadcast(of.q_len),    ptx::broadcast(of.k_len),
                                  ptx::broadcast(of.diagonal), ptx::broadcast(of.left_diagonal),
                                  ptx::broadcast(of.position)};
        } else {
            return (args);
        }
    }
    FS_DEVICE typename Kernel::Listed listed() const { return {smem.base}; }

    // Rows and their masks; `row` is the tile's first, n counts kv blocks.

    FS_DEVICE i32 first_row(i32 row) const { return row + warpgroup * kWarpgroupRows; }
    FS_DEVICE int row_in_tile() const {
        return warpgroup * kWarpgroupRows + thread / kWarpLanes * 16 + lane / 4;
    }

    // The block that `n` others of a tile, which begins at block `first`, come before.
    FS_DEVICE i32 block_at(i32 first, i32 n) const {
        if constexpr (Kernel::kSkips) return ptx::broadcast(line.block(n));
        return first + n;
    }

    // Whether some row of this warpgroup does not see all of block n.
    FS_DEVICE bool needs_mask(i32 row, i32 n) const {
        return ends_unseen(row, (n + 1) * kConfig.B_c) || begins_unseen(row, n * kConfig.B_c);
    }

    // Whether some row of this warpgroup does not see `key`, for its left edge.
    FS_DEVICE bool begins_unseen(i32 row, i32 key) const {
        return Mask::template hides_after<kWarpgroupRows>(sequence(), key, row, warpgroup);
    }

    // Blocks, from a tile's first on, that lie before the window of every row of this warpgroup;
    // not all, so that rows that see no key are written too.
    FS_DEVICE i32 unseen(const Work& work) const {
        const i32 before =
            Mask::template blocks_before<kConfig.B_c>(sequence(), first_row(work.row));
        return min(max(before - work.first, 0), work.own - 1);
    }

    // Blocks, from block `first` on, that the left edge cuts for some row of this warpgroup.
    FS_DEVICE i32 cut(i32 row, i32 first) const {
        const i32 last_row = first_row(row) + kWarpgroupRows - 1;
        return Mask::template blocks_cut<kConfig.B_c>(sequence(), last_row) - first;
    }

    // Whether some row of this warpgroup does not see the last key before `key_end`.
    FS_DEVICE bool ends_unseen(i32 row, i32 key_end) const {
        return Mask::template hides_before<kWarpgroupRows>(sequence(), key_end, row, warpgroup);
    }

    // Blocks, from the first on, that every row of this warpgroup sees all of.
    FS_DEVICE i32 unmasked(i32 row) const {
        return Mask::seen_before(sequence(), first_row(row) + 1) / kConfig.B_c;
    }

    // Whether no row of this warpgroup sees the second half of block n.
    FS_DEVICE bool is_half(i32 row, i32 n) const {
        if constexpr (!Kernel::kHalves) return false;
        const i32 keys = Mask::seen_before(sequence(), row + (warpgroup + 1) * kWarpgroupRows);
        return keys <= n * kConfig.B_c + Kernel::kHalf;
    }

    // Whether no row of this warpgroup sees the first half of block n.
    FS_DEVICE bool is_upper_half(i32 row, i32 n) const {
        if constexpr (!Kernel::kUpperHalves) return false;
        return Mask::first_seen(sequence(), first_row(row)) >= n * kConfig.B_c + Kernel::kHalf;
    }

    // The first key of a block's products; `upper`: of its second half.
    static FS_DEVICE i32 first_key(i32 n, [[maybe_unused]] bool upper) {
        if constexpr (!Kernel::kUpperHalves) return n * kConfig.B_c;
        return n * kConfig.B_c + (upper ? Kernel::kHalf : 0);
    }
    // V of the present block; `upper`: of its second half.
    FS_DEVICE ptx::MatrixDescriptor v_matrix([[maybe_unused]] bool upper) const {
        if constexpr (!Kernel::kUpperHalves) return v.matrix;
        return v.matrix + (upper ? Kernel::kHalf * kPanelRowBytes : 0);
    }

    // Removes what rows may not see of keys key .. key + 2 * kCount - 1.
    template <int kCount>
    FS_DEVICE bool hide_edges(float (&s)[kCount], i32 row, i32 key) const {
        const i32 column = key + lane % 4 * 2;
        const i32 own_row = row + row_in_tile();
        bool hidden = false;
        if (ends_unseen(row, key + 2 * kCount)) {
            hidden = true;
            const i32 low = Mask::seen_before(sequence(), own_row + 1);
            const i32 high = Mask::seen_before(sequence(), own_row + 9);
            if (!Kernel::kHalves || ends_unseen(row, key + kCount)) {
                hide_columns<0, kCount / 2>(s, low - column, high - column);
            }
            hide_columns<kCount / 2, kCount>(s, low - column, high - column);
        }
        if (begins_unseen(row, key)) {
            hidden = true;
            const i32 low = Mask::first_seen(sequence(), own_row) - column;
            const i32 high = Mask::first_seen(sequence(), own_row + 8) - column;
            hide_columns_before<0, kCount / 2>(s, low, high);
            if (begins_unseen(row, key + kCount)) {
                hide_columns_before<kCount / 2, kCount>(s, low, high);
            }
        }
        return hidden;
    }

    // Removes what rows of block n may not see; returns whether there was anything to remove.
    template <int kCount>
    FS_DEVICE bool hide(float (&s)[kCount], i32 row, i32 n, [[maybe_unused]] bool upper) const {
        if constexpr (Mask::kHasLeft) {
            return hide_edges(s, row, first_key(n, upper));
        } else if constexpr (Mask::kHides) {
            if (!needs_mask(row, n)) return false;
            const i32 column = n * kConfig.B_c + lane % 4 * 2;
            const i32 row_end = row + row_in_tile() + 1;
            const i32 low = Mask::seen_before(sequence(), row_end);
            const i32 high = Mask::seen_before(sequence(), row_end + 8);
            if (!Kernel::kHalves || ends_unseen(row, n * kConfig.B_c + kCount)) {
                hide_columns<0, kCount / 2>(s, low - column, high - column);
            }
            hide_columns<kCount / 2, kCount>(s, low - column, high - column);
            return true;
        }
        return false;
    }

    // Products and softmax

    // What the scores of a tile's rows depend on beside the products.
    FS_DEVICE void begin_scores(i32 slot) {
        if constexpr (!Kernel::Score::kChanges) return;
        const QTile tile = tile_in<kNeeds>(smem.tile(slot));
        score = Kernel::Score::of_head(args, QTile::get(smem.tile(slot)).batch, tile.head);
        bias = Kernel::Bias::of_head(args, tile.batch, tile.head);
        if constexpr (Kernel::kSkips) {
            line = line_of_tile<Kernel>(args, tile.batch, tile.head, tile.row);
        }
    }

    template <int kCount>
    FS_DEVICE void read_bias(EarlyBias<kCount>& early, i32 row, i32 n, bool upper) const {
        if constexpr (!Kernel::Score::kChanges) return;
        if (Kernel::kSkips && is_whole) return;
        bias.read_early(args, early, row + row_in_tile(), first_key(n, upper) + lane % 4 * 2);
    }

    // Returns what scores still gain in their exponents.
    template <int kCount>
    FS_DEVICE auto apply_score(float (&s)[kCount], const EarlyBias<kCount>& early, i32 row, i32 n,
                               bool upper) const {
        if constexpr (!Kernel::Score::kChanges) {
            return NoLine{};
        } else {
            const i32 key = first_key(n, upper), column = key + lane % 4 * 2;
            const i32 position = kNeeds.alibi ? sequence().position : 0;
            const i32 own_row = row + row_in_tile();
            if constexpr (Kernel::kLines) {
                return score.template line<kWarpgroupRows>(args, position, s, own_row, column,
                                                           first_row(row), key);
            } else {
                score.template apply<kWarpgroupRows>(args, position, s, own_row, column,
                                                     first_row(row), key);
                if (!Kernel::kSkips || !is_whole) {
                    bias.apply_early(args, s, early, own_row, column);
                }
                return NoLine{};
            }
        }
    }

    // From S to P where no product is in flight.
    template <int kCount>
    FS_DEVICE void softmax_alone(float (&s)[kCount], i32 row, i32 n, bool first) {
        EarlyBias<kCount> early;
        read_bias(early, row, n, false);
        const auto line = apply_score(s, early, row, n, false);
        const bool masked = hide(s, row, n, false);
        if constexpr (kConfig.statistics == Statistics::kSUM) {
            softmax.exponentials_checked(p, s, line, factor, first, masked);
        } else {
            softmax.update_maximum(s, factor);
            softmax.exponentials(s, factor);
            softmax.pack(p, s);
        }
    }

    FS_DEVICE void issue_pv(bool keep, bool half, bool upper = false) {
        ptx::fence_registers(o);
        if (Kernel::kHalves && half) {
            Products::template issue_pv<Kernel::kHalf>(o, p, v_matrix(upper), keep);
        } else {
            Products::template issue_pv<kConfig.B_c>(o, p, v.matrix, keep);
        }
    }

    // The end of a tile

    // Statistics of a finished tile. Where the sums are part of O, the last P V must have ended.
    FS_DEVICE void finish(i32 slot) {
        if constexpr (Kernel::kMmaSums) {
            sums[0] = o[kConfig.d_head / 2];
            sums[1] = o[kConfig.d_head / 2 + 2];
        } else {
            softmax.sum_quad(sums);
        }
        if constexpr (Kernel::kSplits) {
            FS_UNROLL
            for (int i = 0; i < 2; ++i) maxima[i] = softmax.m[i];
        } else {
            close_rows(tile_in<kNeeds>(smem.tile(slot)), slot, softmax.m);
        }
    }

    // Of whole rows: the log-sum-exp, and what joins their sums.
    FS_DEVICE void close_rows(const QTile& tile, i32 slot, const float (&m)[2]) {
        store_lse(tile, slot, m);
        if constexpr (kNeeds.sinks) {
            const float sink_log2 = args.sinks[tile.head] * kLog2E;
            FS_UNROLL
            for (int i = 0; i < 2; ++i) sums[i] = sum_with_sink(sums[i], m[i], sink_log2);
        }
    }

    FS_DEVICE void store_lse(const QTile& tile, i32 slot, const float (&m)[2]) const {
        if constexpr (!kNeeds.lse) return;
        const i32 row = tile.row + row_in_tile();
        const i64 line = static_cast<i64>(tile.batch) * args.heads + tile.head;
        const auto& of = sequence_in(slot);
        float* dst = args.lse + line * args.q_len + rows_before(of) + row;
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
            bool inside = !kNeeds.ragged_q || row + 8 * i < of.q_len;
            inside &= args.lse != nullptr;  // a bundled kernel serves calls without it too
            float lse = (m[i] + ptx::lg2(sums[i])) * kLn2;
            if constexpr (kNeeds.sinks) {
                lse = lse_with_sink(sums[i], m[i], args.sinks[tile.head] * kLog2E) * kLn2;
            }
            ptx::st_global_f32_if(dst + 8 * i, lse, lane % 4 == 0 && inside);
        }
    }

    FS_DEVICE void store(i32 slot) {
        const QTile tile = tile_in<kNeeds>(smem.tile(slot));
        if constexpr (Kernel::kSplits) {
            const typename Kernel::Exchange exchange{args.counter,
                                                     Kernel::kListed ? args.parts : args.scratch,
                                                     args.tiles, warpgroup, thread};
            const Slice slice = Slice::get(smem.tile(slot));
            const i32 givers = ptx::broadcast(slice.givers);
            if (givers < 0) {
                exchange.give(slice.range, o, sums, maxima);
                release_tile(slot);
                return;
            }
            if (givers > 0) exchange.take(slice.range, givers, o, sums, maxima);
            close_rows(tile, slot, maxima);
        }
        float inverse[2];
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
            // A sink that is no number must reach the rows, whose O knows nothing of it.
            const bool divides = kNeeds.sinks ? sums[i] != 0.f : sums[i] > 0.f;
            inverse[i] = divides ? ptx::rcp(sums[i]) : 0.f;
        }
        if constexpr (Kernel::kListed) {
            store_listed(tile, sequence_in(slot), inverse);
        } else if constexpr (kConfig.o_staged || Kernel::kOInQ) {
            const SmemAddr room = Kernel::kOInQ ? smem.q(q.slot) : smem.o(warpgroup);
            Kernel::Output::store_staged(args.o, tile, room, warpgroup, thread, o, inverse);
        } else {
            Kernel::Output::store_direct(args.o_direct, Bounds{args}, tile, row_in_tile(), lane, o,
                                         inverse);
        }
        release_tile(slot);
    }

  private:
    // TMA would write behind the last row of a sequence: those of the next.
    FS_DEVICE void store_listed(QTile tile, const ListedSequence& of, const float (&inverse)[2]) {
        const bool is_whole = of.q_len - ptx::broadcast(first_row(tile.row)) >= kWarpgroupRows;
        tile.row += of.q_begin;
        if constexpr (kConfig.o_staged) {
            if (is_whole) {
                Kernel::Output::store_staged(args.o, tile, smem.o(warpgroup), warpgroup, thread, o,
                                             inverse);
                return;
            }
        }
        const OutputBounds bounds{of.q_begin + of.q_len, v_columns<kNeeds>(args)};
        Kernel::Output::store_direct(args.o_direct, bounds, tile, row_in_tile(), lane, o, inverse);
    }

    // Rows and columns of O that exist.
    struct Bounds {
        const Args& args;
        FS_DEVICE i32 rows() const { return args.q_len; }
        FS_DEVICE i32 columns() const { return v_columns<kNeeds>(args); }
    };
};

}  // namespace flashsmith::sm90
