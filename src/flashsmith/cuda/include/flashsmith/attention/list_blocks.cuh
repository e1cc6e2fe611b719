// Writes the list of kv blocks that q tiles see under a boolean mask (attention/block_list.cuh).
//
// One CTA a line. Its warps look at the kv blocks that the other masks leave the tile, each at one
// at a time, and stop at the first element that is not 0: only what is hidden is read to its end.
// A row of the mask that all rows share is read once, and so is a key that all keys share.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/warp.cuh"

namespace flashsmith {

template <BlockListConfig kConfig, Needs kNeeds>
class BlockLister {
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kWarps = kThreads / kWarpLanes;
    static constexpr int kRowsAtOnce = 8;  // so many loads of a lane are under way
    using Mask = flashsmith::Mask<kNeeds.causal, true, kNeeds.window_left>;

  public:
    // Words of shared memory: what was found of kThreads blocks, and sums of warps.
    static constexpr int kWords = kThreads + kWarps;

    FS_DEVICE BlockLister(const BlockListArgs& args, i32* shared)
        : args_(args),
          found_(shared),
          sums_(shared + kThreads),
          lane_(threadIdx.x % kWarpLanes),
          warp_(threadIdx.x / kWarpLanes) {
        const u32 number = blockIdx.x, tiles = static_cast<u32>(args.q_tiles);
        const u32 matrix = number / tiles, q_tile = number - matrix * tiles;
        const u32 batch = matrix / static_cast<u32>(args.mask_heads);
        const u32 head = matrix - batch * args.mask_heads;
        first_row_ = static_cast<i32>(q_tile) * args.tile_q;
        rows_end_ = min(first_row_ + args.tile_q, args.q_len);
        matrix_ = args.bias.address + batch * args.bias.batch_stride + head * args.bias.head_stride;
        line_ = args.blocks.address +
                4 * (batch * args.blocks.batch_stride + head * args.blocks.head_stride +
                     q_tile * args.blocks.seq_stride);
    }

    FS_DEVICE void run() {
        const i32 keys = max(Mask::seen_by(args_, rows_end_ - 1), 0);
        const i32 end = (keys + args_.tile_k - 1) / args_.tile_k;
        const i32 first = max(Mask::first_seen(args_, first_row_), 0) / args_.tile_k;
        i32 count = 0;
        for (i32 base = first; base < end; base += kThreads) {
            look_at(base, min(base + kThreads, end));
            ptx::bar_sync();  // all of these blocks have been looked at
            count += write(base, count);
            ptx::bar_sync();  // what was found has been read
        }
        if (threadIdx.x != 0) return;
        // Rows that see no key are written too: one block passes, of which they see nothing.
        const i32 blocks = (args_.k_len + args_.tile_k - 1) / args_.tile_k;
        if (count == 0) put(1, min(first, blocks - 1));
        put(0, max(count, 1));
    }

  private:
    FS_DEVICE void put(i32 word, i32 value) const {
        *static_cast<i32*>(__cvta_global_to_generic(line_ + static_cast<i64>(word) * 4)) = value;
    }

    // Of blocks base .. end - 1 this warp takes every kWarps-th.
    FS_DEVICE void look_at(i32 base, i32 end) {
        found_[threadIdx.x] = 0;
        ptx::bar_sync();  // nothing has been found
        for (i32 block = base + warp_; block < end; block += kWarps) {
            const i32 key = block * args_.tile_k;
            const bool seen = is_seen(key, min(key + args_.tile_k, args_.k_len));
            if (lane_ == 0) found_[block - base] = seen;
        }
    }

    // Writes what was found behind `before` others; returns how many there are.
    FS_DEVICE i32 write(i32 base, i32 before) {
        const i32 own = found_[threadIdx.x];
        i32 sum = own;
        FS_UNROLL
        for (int distance = 1; distance < kWarpLanes; distance *= 2) {
            const i32 other = ptx::shfl_up(sum, distance);
            if (lane_ >= distance) sum += other;
        }
        if (lane_ == kWarpLanes - 1) sums_[warp_] = sum;
        ptx::bar_sync();  // every warp has counted
        i32 all = 0;
        FS_UNROLL
        for (int warp = 0; warp < kWarps; ++warp) {
            if (warp < warp_) before += sums_[warp];
            all += sums_[warp];
        }
        if (own != 0) put(before + sum, base + static_cast<i32>(threadIdx.x));
        return all;
    }

    // Whether some row sees one of the keys key .. key_end - 1; all lanes of a warp together.
    FS_DEVICE bool is_seen(i32 key, i32 key_end) const {
        const i32 rows_end = args_.bias.row_stride == 0 ? first_row_ + 1 : rows_end_;
        if (args_.bias.key_stride == 0) key_end = key + 1;
        const u64 places = matrix_ | args_.bias.row_stride | key;
        const bool by_words = args_.bias.key_stride == 1 && places % 4 == 0;
        for (i32 row = first_row_; row < rows_end; row += kRowsAtOnce) {
            bool seen = false;
            FS_UNROLL
            for (int i = 0; i < kRowsAtOnce; ++i) {
                const i32 at = min(row + i, rows_end - 1);
                const u64 line = matrix_ + at * args_.bias.row_stride;
                seen |= by_words ? sees_words(line, key, key_end) : sees(line, key, key_end);
            }
            if (ptx::vote_any(seen)) return true;
        }
        return false;
    }

    // This lane's keys of one row, one at a time and four at a time.
    FS_DEVICE bool sees(u64 line, i32 key, i32 key_end) const {
        bool seen = false;
        for (i32 at = key + lane_; at < key_end; at += kWarpLanes) {
            seen |= read<unsigned char>(line + at * args_.bias.key_stride) != 0;
        }
        return seen;
    }
    FS_DEVICE bool sees_words(u64 line, i32 key, i32 key_end) const {
        bool seen = false;
        i32 at = key + 4 * lane_;
        for (; at + 4 <= key_end; at += 4 * kWarpLanes) seen |= read<u32>(line + at) != 0;
        for (; at < key_end; ++at) seen |= read<unsigned char>(line + at) != 0;
        return seen;
    }

    template <class T>
    static FS_DEVICE T read(u64 at) {
        return *static_cast<const T*>(__cvta_global_to_generic(at));
    }

    const BlockListArgs& args_;
    i32* const found_;
    i32* const sums_;
    const int lane_, warp_;
    i32 first_row_, rows_end_;
    u64 matrix_;  // address of the mask's first element
    u64 line_;    // address of the line
};

template <BlockListConfig kConfig, Needs kNeeds>
FS_DEVICE void list_blocks(const BlockListArgs& args) {
    using Lister = BlockLister<kConfig, kNeeds>;
    static_assert(Lister::kWords * 4 == kConfig.smem_bytes(), "the host asks for this size.");
    extern __shared__ __align__(16) i32 shared[];
    Lister(args, shared).run();
}

}  // namespace flashsmith
