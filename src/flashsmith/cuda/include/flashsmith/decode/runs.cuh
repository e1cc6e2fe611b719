// Which slices a cta of a decode kernel computes, where it takes some that follow each other.
#pragma once

#include "flashsmith/decode/kernel.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/redux.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/warp.cuh"

namespace flashsmith::decode {

// The slices of all sequences lie one behind the other, each as long as it has keys, in units of
// slice_keys. The ctas of a q tile and head cut this line into pieces of one length; a cta takes
// the slices that begin in its piece, sequence by sequence. A lane looks at one sequence of 32 at
// a time.
//
//   sequence      |        0        | 1 |            2            |
//   slices        |  |  |  |  |  |  |   |    |    |    |    |    | |
//   ctas          |    0    |    1    |    2    |    3    |    4    |
template <class Kernel>
class RunQueue {
    static constexpr bool kLengths = Kernel::kNeeds.k_lengths;
    static constexpr int kKeys = Kernel::kConfig.slice_keys;
    static constexpr int kAtOnce = 8;  // lengths of a lane that are read before one is looked at
    using Args = typename Kernel::Args;

  public:
    FS_DEVICE explicit RunQueue(const Args& args) : args_(args) {
        const u32 tiles = args.kv_heads * args.q_tiles;
        const u32 shares = gridDim.x / tiles;
        const u32 share = ptx::ctaid_x() / tiles;
        const u32 tile = ptx::ctaid_x() - share * tiles;
        tile_ = tile / args.kv_heads;
        kv_head_ = tile - tile_ * args.kv_heads;
        look(0);
        const i32 all = args.batch <= kWarpLanes ? ptx::shfl_idx(end_, kWarpLanes - 1) : measure();
        const i32 each = all / shares;
        const i32 rest = all - each * shares;  // of the first ones, a unit more each
        at_ = share * each + min(static_cast<i32>(share), rest);
        stop_ = at_ + each + (static_cast<i32>(share) < rest ? 1 : 0);
    }

    // The next slices of this cta: the first of them, and how many; false: there are no more.
    FS_DEVICE bool find(DecodeWork& work, i32& count) {
        _Pragma("unroll 1") while (at_ < stop_) {
            _Pragma("unroll 1") while (at_ >= before_ + ptx::shfl_idx(end_, kWarpLanes - 1)) {
                before_ += ptx::shfl_idx(end_, kWarpLanes - 1);
                look(first_ + kWarpLanes);
            }
            const u32 lane = __ffs(ptx::vote_ballot(end_ > at_ - before_)) - 1;
            const i32 end = before_ + ptx::shfl_idx(end_, lane);
            const i32 begin = end - ptx::shfl_idx(units_, lane);
            const i32 shift = ptx::shfl_idx(shift_, lane);
            work.slices = ptx::shfl_idx(slices_, lane);
            work.slice = slices_before(at_ - begin, shift);
            count = min(slices_before(stop_ - begin, shift), work.slices) - work.slice;
            at_ = end;
            if (count <= 0) continue;
            work.batch = args_.first_batch + first_ + lane;
            work.kv_head = kv_head_;
            work.tile = tile_;
            work.k_len = ptx::shfl_idx(k_len_, lane);
            work.slice_keys = kKeys << shift;
            return true;
        }
        return false;
    }

  private:
    // Slices of 2^shift units that begin before `unit` of their sequence.
    FS_DEVICE static i32 slices_before(i32 unit, i32 shift) {
        return (unit + (1 << shift) - 1) >> shift;
    }

    // Units of all sequences.
    FS_DEVICE i32 measure() const {
        i32 units = 0;
        const i32 lane = threadIdx.x % kWarpLanes;
        _Pragma("unroll 1") for (i32 first = lane; first - lane < args_.batch;
                                 first += kAtOnce * kWarpLanes) {
            i32 length[kAtOnce];
            FS_UNROLL
            for (int i = 0; i < kAtOnce; ++i) {
                length[i] = length_of(min(first + i * kWarpLanes, args_.batch - 1));
            }
            FS_UNROLL
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i * kWarpLanes < args_.batch) units += units_of(length[i]);
            }
        }
        return ptx::redux_add(units);
    }

    // Of a sequence: what its slices are long, of which at least one has something to write.
    FS_DEVICE static i32 units_of(i32 k_len) {
        const auto slices = SequenceSlices::of<Kernel::kConfig>(k_len);
        return slices.count == 1 ? (k_len > kKeys ? 2 : 1) : slices.count * (slices.keys / kKeys);
    }

    // Keys of a sequence of this launch: a length ends inside the tensor.
    FS_DEVICE i32 length_of(i32 sequence) const {
        if constexpr (!kLengths) return args_.k_len;
        const i32 given = ptx::ld_global_i32(args_.k_lengths + args_.first_batch + sequence);
        return min(max(given, 0), args_.k_len);
    }

    // Reads the lengths of the sequences from `first` on.
    FS_DEVICE void look(i32 first) {
        const i32 lane = threadIdx.x % kWarpLanes;
        first_ = first;
        k_len_ = units_ = slices_ = shift_ = 0;
        if (first + lane < args_.batch) {
            k_len_ = length_of(first + lane);
            slices_ = SequenceSlices::of<Kernel::kConfig>(k_len_).count;
            units_ = units_of(k_len_);
            // One slice of two units at most, or several of a power of two.
            shift_ = slices_ == 1 ? units_ - 1 : 31 - __clz(units_ / slices_);
        }
        end_ = units_;
        FS_UNROLL
        for (int distance = 1; distance < kWarpLanes; distance *= 2) {
            const i32 other = ptx::shfl_up(end_, distance);
            if (lane >= distance) end_ += other;
        }
    }

    const Args& args_;
    i32 tile_;
    i32 kv_head_;
    i32 at_;          // the unit that comes next
    i32 stop_;        // the first one of the next cta's
    i32 first_ = 0;   // sequence of lane 0
    i32 before_ = 0;  // units of the sequences before it
    i32 k_len_;       // of this lane's sequence
    i32 units_;       // the same
    i32 slices_;      // the same
    i32 shift_;       // the same: units of a slice, as a power of two
    i32 end_;         // units up to this lane's sequence
};

}  // namespace flashsmith::decode
