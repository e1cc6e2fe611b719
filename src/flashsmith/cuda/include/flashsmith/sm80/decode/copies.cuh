// How K and V come to a decode kernel's rings by cp.async: by teams, each into a ring of its own.
#pragma once

#include "flashsmith/decode/kernel.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warp.cuh"

namespace flashsmith::sm80 {

// Rings hold nothing from one work to the next.
struct NoRing {};

// One thread's part in copying kv blocks of one sequence and head.
//
// A thread keeps its chunk column and takes every kRowStep-th row of a kv block. Where K and V lie
// in pages, lanes read the pages of all rows from the table before the kv block is copied, and tell
// each other. The pages of the first kv blocks are asked for at once: one wait for all of them.
template <class Kernel>
class KVCopies {
    using Tile = typename Kernel::KVTile;
    using Args = typename Kernel::Args;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kRowStep = Kernel::kTeamThreads / Tile::kChunks;
    static constexpr int kPasses = Tile::kRows / kRowStep;
    static constexpr bool kWhole = kNeeds.page && Kernel::kConfig.whole_pages;
    static constexpr int kHeld = kWhole ? 1 : (Tile::kRows + kWarpLanes - 1) / kWarpLanes;
    static constexpr int kFirst = Kernel::kStages - 1;  // kv blocks that are copied at the start

    static_assert(Tile::kRows % kRowStep == 0, "a kv block must be whole copies.");
    static_assert(Kernel::kTeamThreads % Tile::kChunks == 0, "a pass must copy whole rows.");
    static_assert((kRowStep & (kRowStep - 1)) == 0, "the swizzle of a pass must be a constant.");
    static_assert(kRowStep <= kWarpLanes, "the rows of a pass must be known to lanes of one turn.");

  public:
    FS_DEVICE KVCopies(SmemAddr smem, i32 team, const Args& args, const decode::DecodeWork& work,
                       const NoRing&)
        : args_(args), batch_(work.batch), end_key_(work.k_len) {
        const SmemAddr ring = smem + Kernel::kRings + team * Kernel::kTeamBytes;
        const u32 thread = threadIdx.x % Kernel::kTeamThreads;
        row_ = thread / Tile::kChunks;
        const u32 chunk = thread % Tile::kChunks;
        column_ = !kNeeds.narrow_d || chunk * kChunkElements < args.d_head;
        ring_ = ring + Tile::offset(row_, chunk);
        k_ = start(args.k, work, chunk);
        v_ = start(args.v, work, chunk);
    }

    // Every work begins with the first stage.
    FS_DEVICE static int first_stage() { return 0; }
    FS_DEVICE static int stage_of(int block) { return block; }
    FS_DEVICE static NoRing ring_behind(i32) { return {}; }

    // A group of copies ends here; the oldest that is under way is waited for.
    FS_DEVICE static void close() { ptx::cp_async_commit(); }
    FS_DEVICE static void await(int, i32) { ptx::cp_async_wait<kFirst - 1>(); }

    // Looks up the pages of a kv block, a lane those of one row in 32: of number `set` of the first
    // ones, or, as number kFirst, of any that comes later.
    FS_DEVICE void look_up([[maybe_unused]] i32 first_key, [[maybe_unused]] int set = kFirst) {
        if constexpr (kNeeds.page) {
            const i64 first = static_cast<i64>(batch_) * args_.table_pages;
            FS_UNROLL
            for (int i = 0; i < kHeld; ++i) {
                const i32 row = kWhole ? 0 : (threadIdx.x + i * kWarpLanes) % Tile::kRows;
                const i32 key = min(first_key + row, args_.k_len - 1);
                page_[set][i] = ptx::ld_global_i32(args_.block_table + first + page_of(key));
            }
        }
    }

    // Starts the copies of the keys from `first_key` on; they have landed after a commit and a
    // wait. Their pages were looked up as number `set`.
    FS_DEVICE void copy(int stage, i32 first_key, [[maybe_unused]] int set = kFirst) const {
        const SmemAddr room = ring_ + stage_of_thread(stage) * Tile::kBytes;
        if constexpr (kWhole) {
            copy_next(room, first_key, first_key - page_of(first_key) * args_.page,
                      page_at(page_[set][0]));
        } else if constexpr (Kernel::kConfig.quick_start && !kNeeds.page) {
            copy_next(room, first_key, first_key, 0);
        } else {
            copy_looked_up(room, first_key, set);
        }
    }

  private:
    // The stage, as a number that threads may have different ones of. ptxas 13.0 encodes a copy
    // with a policy and an offset that is the same in all threads as an illegal instruction (H200,
    // 2026-11); the top bit of an address is 0, which it does not know.
    FS_DEVICE u32 stage_of_thread(int stage) const {
        if constexpr (!Kernel::kConfig.evict_first) return stage;
        return stage | static_cast<u32>(k_ >> 63);
    }

    // The same wherever rows lie.
    FS_DEVICE void copy_looked_up(SmemAddr room, i32 first_key, [[maybe_unused]] int set) const {
        FS_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
            const i32 row = pass * kRowStep + row_;
            const i32 key = first_key + row;
            i64 page = 0;
            i64 place = key;
            if constexpr (kNeeds.page) {
                page = page_at(ptx::shfl_idx(page_[set][pass * kRowStep / kWarpLanes], row));
                place = key - page_of(key) * args_.page;
            }
            const bool exists = (!kNeeds.ragged_k || key < end_key_) && column_;
            copy_row(at(room, pass), k_, args_.k, page, place, exists);
            copy_row(at(room, pass) + Kernel::kVRing, v_, args_.v, page, place, exists);
        }
    }

    // The same where rows lie one behind the other, from row `place` of a page on: from address to
    // address by one addition.
    FS_DEVICE void copy_next(SmemAddr room, i32 first_key, i32 place,
                             [[maybe_unused]] i64 page) const {
        u64 k = k_ + (place + row_) * args_.k.seq_stride * kElementBytes;
        u64 v = v_ + (place + row_) * args_.v.seq_stride * kElementBytes;
        if constexpr (kWhole) {
            k += page * args_.k.batch_stride * kElementBytes;
            v += page * args_.v.batch_stride * kElementBytes;
        }
        FS_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
            const bool exists =
                (!kNeeds.ragged_k || first_key + pass * kRowStep + row_ < end_key_) && column_;
            copy_chunk(at(room, pass), k, exists);
            copy_chunk(at(room, pass) + Kernel::kVRing, v, exists);
            k += kRowStep * args_.k.seq_stride * kElementBytes;
            v += kRowStep * args_.v.seq_stride * kElementBytes;
        }
    }

    FS_DEVICE static u64 start(const TensorArg& tensor, const decode::DecodeWork& work, u32 chunk) {
        const i64 sequence = kNeeds.page ? 0 : work.batch * tensor.batch_stride;
        const i64 element = sequence + work.kv_head * tensor.head_stride + chunk * kChunkElements;
        return tensor.address + element * kElementBytes;
    }

    // An entry that names no page is clamped: nothing outside the pool is read.
    FS_DEVICE i64 page_at(i32 entry) const { return min(max(entry, 0), args_.pages - 1); }

    FS_DEVICE i32 page_of(i32 key) const {
        return args_.page_shift >= 0 ? key >> args_.page_shift
                                     : static_cast<u32>(key) / static_cast<u32>(args_.page);
    }

    FS_DEVICE static void copy_row(SmemAddr room, u64 start, const TensorArg& tensor,
                                   [[maybe_unused]] i64 page, i64 place, bool exists) {
        i64 element = place * tensor.seq_stride;
        if constexpr (kNeeds.page) element += page * tensor.batch_stride;
        copy_chunk(room, start + element * kElementBytes, exists);
    }

    FS_DEVICE static void copy_chunk(SmemAddr room, u64 source, [[maybe_unused]] bool exists) {
        constexpr bool kOnce = Kernel::kConfig.evict_first;
        if constexpr (kNeeds.ragged_k || kNeeds.narrow_d) {
            if constexpr (kOnce) {
                ptx::cp_async_16b_or_zero_once(room, source, exists);
            } else {
                ptx::cp_async_16b_or_zero(room, source, exists);
            }
        } else if constexpr (kOnce) {
            ptx::cp_async_16b_once(room, source);
        } else {
            ptx::cp_async_16b(room, source);
        }
    }

    // The swizzle of row_ + pass * kRowStep is that of row_ XOR a constant: row_ < kRowStep, and
    // kRowStep is a power of two.
    FS_DEVICE static SmemAddr at(SmemAddr room, int pass) {
        const u32 turn = pass * kRowStep % Tile::kSwizzleRows * kChunkBytes;
        return SmemAddr{room.value ^ turn} + pass * kRowStep * Tile::kRowBytes;
    }

    const Args& args_;
    SmemAddr ring_;  // this thread's place in stage 0 of K
    u64 k_, v_;      // its chunk of key 0, or of row 0 of page 0
    i32 row_;
    i32 batch_;
    i32 end_key_;
    bool column_;
    i32 page_[kFirst + 1][kHeld];  // entries of the table, as they were read
};

// How K and V come to shared memory.
struct ByCpAsync {
    template <int kRows, int kCols>
    using Tile = SmemTile<kRows, kCols, true>;
    template <class Kernel>
    using Copies = KVCopies<Kernel>;
    using Ring = NoRing;

    // The group of a work's first kv block has landed, and Q is in it.
    template <int kAhead>
    FS_DEVICE static void await_q() {
        ptx::cp_async_wait<kAhead - 1>();
    }
    // Threads wrote to the rings' memory; what follows writes to it as they do.
    FS_DEVICE static void end_work() {}
};

}  // namespace flashsmith::sm80
