// Which slices a cta of a decode kernel computes.
#pragma once

#include "flashsmith/decode/kernel.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/redux.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/warp.cuh"

namespace flashsmith::decode {

// All slices of a launch in order: sequence by sequence, slice by slice, then q tiles and heads.
// Heads come next to each other because their rows share pages of memory.
//
// Where lengths are in memory, a cta that takes one slice counts as if every sequence had as many
// as any may have, and finds nothing behind the last of its own. Ctas that take several count those
// that there are: a lane looks at one sequence of 32 at a time: how many slices it has, and how
// many there are up to it. Numbers only grow, so that no length is read twice.
//
// Packed query rows: a launch takes the sequences that have from least_rows to most_rows of all
// heads of a group. A cta that takes one slice has sequences of one q tile; ctas that count have
// any, and two more at the end, without keys: rows behind the last sequence and before the first.
// A sequence begins at the largest boundary up to its own, as in the lists of tiles: where
// boundaries fall, no row is of two sequences.
template <class Kernel>
class DecodeQueue {
    static constexpr bool kLengths = Kernel::kNeeds.k_lengths;
    static constexpr bool kCounts = kLengths && Kernel::kConfig.persistent;
    static constexpr bool kPacked = Kernel::kNeeds.sequences;
    static_assert(!kPacked || kLengths, "packed rows must have lengths of keys in memory.");
    using Args = typename Kernel::Args;

  public:
    FS_DEVICE explicit DecodeQueue(const Args& args) : args_(args) {
        if constexpr (kCounts) {
            if constexpr (kPacked) q_before_ = largest_boundary(args_.first_batch);
            look(0);
        }
    }

    // The work of this cta, where its place in the grid says which: along x heads and q tiles,
    // along y slices, along z sequences; false: there is none.
    FS_DEVICE bool find_placed(DecodeWork& work) {
        work.kv_head = ptx::ctaid_x();
        work.tile = 0;
        if (args_.q_tiles > 1) {
            work.tile = static_cast<u32>(work.kv_head) / static_cast<u32>(args_.kv_heads);
            work.kv_head -= work.tile * args_.kv_heads;
        }
        work.slice = ptx::ctaid_y();
        return look_at(ptx::ctaid_z(), work);
    }

    // The work of this number; false: there is none, nor, where slices are counted, of a larger
    // one.
    FS_DEVICE bool find(u32 number, DecodeWork& work) {
        const u32 heads = args_.kv_heads, tiles = args_.q_tiles;
        u32 rest = number / heads;
        work.kv_head = number - rest * heads;
        const u32 unit = rest / tiles;  // a slice of a sequence
        work.tile = rest - unit * tiles;
        if constexpr (kCounts) return find_slice(unit, work);
        const u32 sequence = unit / args_.slices;
        if (sequence >= static_cast<u32>(args_.batch)) return false;
        work.slice = unit - sequence * args_.slices;
        return look_at(sequence, work);
    }

  private:
    // The work's sequence, whose slice is known; false: it has no such slice.
    FS_DEVICE bool look_at(u32 sequence, DecodeWork& work) const {
        work.batch = args_.first_batch + sequence;
        if constexpr (kLengths) {
            work.k_len = length_of(sequence);
            if constexpr (kPacked) {
                work.q_begin = largest_boundary(work.batch + 1);
                work.q_len = rows_of(work.batch, work.q_begin);
                if (work.q_len == 0) return false;
            }
            const auto slices = SequenceSlices::of<Kernel::kConfig>(work.k_len);
            work.slices = slices.count;
            work.slice_keys = slices.keys;
            return work.slice < work.slices;
        }
        work.slices = args_.slices;
        work.slice_keys = args_.slice_keys;
        work.k_len = args_.k_len;
        return true;
    }

    FS_DEVICE bool find_slice(u32 unit, DecodeWork& work) {
        while (unit >= before_ + ptx::shfl_idx(end_, kWarpLanes - 1)) {
            if (first_ + kWarpLanes >= items()) return false;
            before_ += ptx::shfl_idx(end_, kWarpLanes - 1);
            look(first_ + kWarpLanes);
        }
        const i32 inside = unit - before_;
        const u32 lane = __ffs(ptx::vote_ballot(end_ > inside)) - 1;
        work.batch = args_.first_batch + first_ + lane;
        work.slices = ptx::shfl_idx(slices_, lane);
        if constexpr (kPacked) {
            if (work.batch >= args_.sequences) work.batch = 0;  // it has no page to look up
            work.q_begin = ptx::shfl_idx(q_begin_, lane);
            work.q_len = ptx::shfl_idx(q_len_, lane);
            const i32 tiles = tiles_of(work.q_len);
            const i32 own = inside - (ptx::shfl_idx(end_, lane) - work.slices * tiles);
            work.slice = own / tiles;
            work.tile = own - work.slice * tiles;
        } else {
            work.slice = inside - (ptx::shfl_idx(end_, lane) - work.slices);
        }
        work.slice_keys = ptx::shfl_idx(slice_keys_, lane);
        work.k_len = ptx::shfl_idx(k_len_, lane);
        return true;
    }

    FS_DEVICE i32 tiles_of(i32 q_len) const {
        return (q_len * args_.group + Kernel::kBr - 1) / Kernel::kBr;
    }

    // Sequences of this launch, and with them rows that belong to none.
    FS_DEVICE i32 items() const { return kPacked ? args_.batch + args_.outer : args_.batch; }

    // A boundary ends inside the tensor.
    FS_DEVICE i32 boundary(i32 index) const {
        return min(max(ptx::ld_global_i32(args_.cu_seqlens_q + index), 0), args_.q_len);
    }

    // The largest of the first `count` boundaries; the same in all lanes.
    FS_DEVICE i32 largest_boundary(i32 count) const {
        i32 largest = 0;
        for (i32 first = 0; first < count; first += kWarpLanes) {
            largest = max(largest, boundary(min(first + lane(), count - 1)));
        }
        return ptx::redux_max(largest);
    }

    // Packed rows of a sequence that begins at `q_begin`; none where another launch takes them.
    FS_DEVICE i32 rows_of(i32 sequence, i32 q_begin) const {
        const i32 q_len = max(boundary(sequence + 1) - q_begin, 0);
        const i32 rows = q_len * args_.group;
        return rows < args_.least_rows || rows > args_.most_rows ? 0 : q_len;
    }

    // The packed rows of this lane's item: of a sequence, or of none.
    FS_DEVICE void find_rows(i32 item) {
        const i32 sequence = args_.first_batch + item;
        i32 begin = boundary(min(sequence, args_.sequences));
        FS_UNROLL
        for (int distance = 1; distance < kWarpLanes; distance *= 2) {
            begin = max(begin, ptx::shfl_up(begin, distance));
        }
        begin = max(begin, q_before_);
        q_before_ = ptx::shfl_idx(begin, kWarpLanes - 1);
        q_begin_ = begin;
        q_len_ = 0;
        if (item >= items()) return;
        if (sequence < args_.sequences) {
            q_len_ = rows_of(sequence, begin);
        } else if (sequence == args_.sequences) {
            q_len_ = args_.q_len - begin;
        } else {
            q_begin_ = 0;
            q_len_ = boundary(0);
        }
    }

    // Keys of a sequence of this launch: a length ends inside the tensor.
    FS_DEVICE i32 length_of(i32 sequence) const {
        const i32 given = ptx::ld_global_i32(args_.k_lengths + args_.first_batch + sequence);
        return min(max(given, 0), args_.k_len);
    }

    static FS_DEVICE i32 lane() { return threadIdx.x % kWarpLanes; }

    // Reads the lengths of the sequences from `first` on: those before have been read.
    FS_DEVICE void look(i32 first) {
        const i32 lane = this->lane();
        first_ = first;
        k_len_ = slices_ = slice_keys_ = 0;
        if constexpr (kPacked) {
            find_rows(first + lane);
            if (first + lane < args_.batch) k_len_ = length_of(first + lane);
            const i32 tiles = tiles_of(q_len_);
            const auto slices = SequenceSlices::of<Kernel::kConfig>(k_len_, tiles);
            slices_ = slices.count;
            slice_keys_ = slices.keys;
            end_ = slices_ * tiles;
        } else {
            if (first + lane < args_.batch) {
                k_len_ = length_of(first + lane);
                const auto slices = SequenceSlices::of<Kernel::kConfig>(k_len_);
                slices_ = slices.count;
                slice_keys_ = slices.keys;
            }
            end_ = slices_;
        }
        FS_UNROLL
        for (int distance = 1; distance < kWarpLanes; distance *= 2) {
            const i32 other = ptx::shfl_up(end_, distance);
            if (lane >= distance) end_ += other;
        }
    }

    const Args& args_;
    i32 first_ = 0;       // sequence of lane 0
    u32 before_ = 0;      // slices of the sequences before it
    i32 k_len_ = 0;       // of this lane's sequence
    i32 slices_ = 0;      // the same
    i32 slice_keys_ = 0;  // the same
    i32 q_before_ = 0;    // largest boundary before lane 0's, where rows are packed
    i32 q_begin_ = 0;     // of this lane's sequence, where rows are packed
    i32 q_len_ = 0;       // the same
    i32 end_ = 0;         // slices of all q tiles up to this lane's sequence
};

}  // namespace flashsmith::decode
