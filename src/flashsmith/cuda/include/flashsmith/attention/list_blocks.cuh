// Writes the list of kv blocks that q tiles see under a boolean mask (attention/block_list.cuh).
//
// One cta a line. Its warps look at the kv blocks that the other masks leave the tile, each at one
// at a time, until an element that is 0 and one that is not have been seen, or the block ends.
// A row of the mask that all rows share is read once, and so is a key that all keys share.
#pragma once

#include "flashsmith/attention/block_list.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
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
        if (count == 0) put(1, BlockEntry::of(min(first, blocks - 1), false).word);
        put(0, static_cast<u32>(max(count, 1)));
    }

  private:
    // What was found of a block, or of a part of it.
    struct Found {
        bool seen, hidden;  // some element is not 0, some is

        FS_DEVICE void look(u32 element) {
            seen |= element != 0;
            hidden |= element == 0;
        }
        // A bool is a byte, 0 or 1.
        FS_DEVICE void look_at_four(u32 word) {
            seen |= word != 0;
            hidden |= word != kFourSeen;
        }
    };
    static constexpr u32 kFourSeen = 0x01010101;

    FS_DEVICE void put(i32 word, u32 value) const {
        *static_cast<u32*>(__cvta_global_to_generic(line_ + static_cast<i64>(word) * 4)) = value;
    }

    // Of blocks base .. end - 1 this warp takes every kWarps-th.
    FS_DEVICE void look_at(i32 base, i32 end) {
        found_[threadIdx.x] = 0;
        ptx::bar_sync();  // nothing has been found
        for (i32 block = base + warp_; block < end; block += kWarps) {
            const i32 key = block * args_.tile_k;
            const Found found = look_at_block(key, min(key + args_.tile_k, args_.k_len));
            if (lane_ == 0) found_[block - base] = found.seen ? (found.hidden ? 1 : 2) : 0;
        }
    }

    // Writes what was found behind `before` others; returns how many there are.
    FS_DEVICE i32 write(i32 base, i32 before) {
        const i32 own = found_[threadIdx.x];
        i32 sum = own != 0;
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
        if (own != 0) {
            const i32 block = base + static_cast<i32>(threadIdx.x);
            put(before + sum, BlockEntry::of(block, own == 2).word);
        }
        return all;
    }

    // Keys key .. key_end - 1 of all rows of the tile; all lanes of a warp together.
    FS_DEVICE Found look_at_block(i32 key, i32 key_end) const {
        const i32 rows_end = args_.bias.row_stride == 0 ? first_row_ + 1 : rows_end_;
        if (args_.bias.key_stride == 0) key_end = key + 1;
        const u64 places = matrix_ | args_.bias.row_stride | key;
        const i32 keys = key_end - key;
        const bool in_chunks = args_.bias.key_stride == 1 && (places | keys) % kChunkBytes == 0 &&
                               keys <= kChunkBytes * kWarpLanes;
        if (in_chunks) return look_at_chunks(rows_end, key, keys / kChunkBytes);
        const bool by_words = args_.bias.key_stride == 1 && places % 4 == 0;
        Found all{false, false};
        for (i32 row = first_row_; row < rows_end; row += kRowsAtOnce) {
            Found found{false, false};
            FS_UNROLL
            for (int i = 0; i < kRowsAtOnce; ++i) {
                const i32 at = min(row + i, rows_end - 1);
                const u64 line = matrix_ + at * args_.bias.row_stride;
                by_words ? look_at_words(found, line, key, key_end)
                         : look_at_keys(found, line, key, key_end);
            }
            if (is_mixed(all, found)) return all;
        }
        return all;
    }

    // 16 keys a lane, and as many rows at once as the warp has lanes for.
    FS_DEVICE Found look_at_chunks(i32 rows_end, i32 key, i32 chunks) const {
        const i32 rows = kWarpLanes / chunks;
        const i32 own = min(lane_ / chunks, rows - 1);
        const u64 first = matrix_ + key + (lane_ - own * chunks) % chunks * kChunkBytes;
        Found all{false, false};
        for (i32 row = first_row_; row < rows_end; row += rows * kRowsAtOnce) {
            Chunk read[kRowsAtOnce];
            FS_UNROLL
            for (int i = 0; i < kRowsAtOnce; ++i) {
                const i32 at = min(row + own + i * rows, rows_end - 1);
                read[i] = ptx::ld_global_16b(first + at * args_.bias.row_stride);
            }
            Found found{false, false};
            FS_UNROLL
            for (int i = 0; i < kRowsAtOnce; ++i) {
                FS_UNROLL
                for (int word = 0; word < 4; ++word) found.look_at_four(read[i].word[word]);
            }
            if (is_mixed(all, found)) return all;
        }
        return all;
    }

    // Adds what lanes found to what is known; whether both kinds are now.
    static FS_DEVICE bool is_mixed(Found& all, const Found& found) {
        all.seen |= ptx::vote_any(found.seen);
        all.hidden |= ptx::vote_any(found.hidden);
        return all.seen && all.hidden;
    }

    // This lane's keys of one row, one at a time and four at a time.
    FS_DEVICE void look_at_keys(Found& found, u64 line, i32 key, i32 key_end) const {
        for (i32 at = key + lane_; at < key_end; at += kWarpLanes) {
            found.look(read<unsigned char>(line + at * args_.bias.key_stride));
        }
    }
    FS_DEVICE void look_at_words(Found& found, u64 line, i32 key, i32 key_end) const {
        i32 at = key + 4 * lane_;
        for (; at + 4 <= key_end; at += 4 * kWarpLanes) found.look_at_four(read<u32>(line + at));
        for (; at < key_end; ++at) found.look(read<unsigned char>(line + at));
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
