// Which slices a CTA of a decode kernel computes.
#pragma once

#include "flashsmith/decode/kernel.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warp.cuh"

namespace flashsmith::decode {

// All slices of a launch in order: sequence by sequence, slice by slice, then q tiles and heads.
// Heads come next to each other because their rows share pages of memory.
//
// Where lengths are in memory, a CTA that takes one slice counts as if every sequence had as many
// as any may have, and finds nothing behind the last of its own. CTAs that take several count those
// that there are: a lane looks at one sequence of 32 at a time: how many slices it has, and how
// many there are up to it. Numbers only grow, so that no length is read twice.
//
// Packed query rows: a launch takes the sequences that have from least_rows to most_rows of all
// heads of a group. A CTA that takes one slice has sequences of one q tile; CTAs that count have
// any, and two more at the end, without keys: rows behind the last sequence and before the first.
template <class Kernel>
class DecodeQueue {
    static constexpr bool kLengths = Kernel::kNeeds.k_lengths;
    static constexpr bool kCounts = kLengths && Kernel::kConfig.persistent;
    static constexpr bool kPacked = Kernel::kNeeds.sequences;
    static_assert(!kPacked || kLengths, "packed rows must have lengths of keys in memory.");
    using Args = typename Kernel::Args;

  public:
    FS_DEVICE explicit DecodeQueue(const Args& args) : args_(args) {
        if constexpr (kCounts) look(0);
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
        work.batch = args_.first_batch + sequence;
        work.slice = unit - sequence * args_.slices;
        if constexpr (kLengths) {
            work.k_len = length_of(sequence);
            if constexpr (kPacked) {
                find_rows(sequence, work.q_begin, work.q_len);
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

  private:
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

    // The packed rows of a sequence of this launch; none where another launch takes them.
    FS_DEVICE void find_rows(i32 item, i32& q_begin, i32& q_len) const {
        const i32 sequence = args_.first_batch + item;
        const bool is_sequence = sequence < args_.sequences;
        q_begin = sequence <= args_.sequences ? boundary(sequence) : 0;
        const i32 behind = sequence == args_.sequences ? args_.q_len : boundary(0);
        const i32 end = is_sequence ? boundary(sequence + 1) : behind;
        q_len = max(end - q_begin, 0);
        const i32 rows = q_len * args_.group;
        if (is_sequence && (rows < args_.least_rows || rows > args_.most_rows)) q_len = 0;
    }

    // Keys of a sequence of this launch: a length ends inside the tensor.
    FS_DEVICE i32 length_of(i32 sequence) const {
        const i32 given = ptx::ld_global_i32(args_.k_lengths + args_.first_batch + sequence);
        return min(max(given, 0), args_.k_len);
    }

    // Reads the lengths of the sequences from `first` on.
    FS_DEVICE void look(i32 first) {
        const i32 lane = threadIdx.x % kWarpLanes;
        first_ = first;
        k_len_ = slices_ = slice_keys_ = 0;
        if constexpr (kPacked) {
            q_begin_ = q_len_ = 0;
            if (first + lane < items()) find_rows(first + lane, q_begin_, q_len_);
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
    i32 q_begin_ = 0;     // the same, where rows are packed
    i32 q_len_ = 0;       // the same
    i32 end_ = 0;         // slices of all q tiles up to this lane's sequence
};

}  // namespace flashsmith::decode
