// Writes the list of q tiles of packed sequences (attention/tile_list.cuh): one cta.
//
// Boundaries come from memory that a caller wrote. They are clamped into the tensor, and none lies
// before one that precedes it: sequences never overlap, whatever the numbers are. Rows before the
// first and behind the last sequence are two more, without keys: they are written, as zeros.
//
//   item        0        1 … sequences      sequences + 1
//   rows    [0, cu[0])   [cu[i-1], cu[i])   [cu[sequences], q_len)
//
// Where lengths of sequences are in memory too (kLengths), what they leave of a sequence's rows and
// keys is its item, and the rows behind that are one more, without keys. Sequences of a batch that
// is not packed lie in an entry of the batch each: boundaries are then null.
//
//   item    sequences + 2 …   2 · sequences + 1      with q_lengths
//   rows    behind the used ones of sequence 0 …
//
// Tiles are sorted by how many kv blocks they see, in kBuckets steps, the longest first; equal ones
// stay in the order of their rows. Each thread counts and places a range of tiles of its own, so
// that the list is the same every time.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/attention/tile_list.cuh"
#include "flashsmith/ptx/barrier.cuh"

namespace flashsmith {

template <TileListConfig kConfig, Needs kNeeds>
class TileLister {
    static constexpr int kThreads = kConfig.threads();
    static constexpr int kBuckets = 64;
    static constexpr bool kLengths = kNeeds.k_lengths;
    using Mask = flashsmith::Mask<kNeeds.causal, true, kNeeds.window_left>;

  public:
    // Words of shared memory: a count for each bucket and thread, and a room to scan in.
    static constexpr int kWords = (kBuckets + 1) * kThreads;

    FS_DEVICE TileLister(const TileListArgs& args, i32* shared)
        : args_(args), counts_(shared), room_(shared + kBuckets * kThreads) {}

    FS_DEVICE void run() {
        if constexpr (kLengths) {
            write_items_of_lengths();
        } else {
            write_items();
        }
        ptx::bar_sync();  // all items are written
        const i32 begin = min(static_cast<i32>(threadIdx.x) * share(tiles_), tiles_);
        const i32 end = min(begin + share(tiles_), tiles_);
        count_tiles(begin, end);
        ptx::bar_sync();  // all tiles are counted
        counts_to_places();
        ptx::bar_sync();  // every thread knows where its tiles go
        place_tiles(begin, end);
        if (threadIdx.x == 0) {
            ptx::st_global_16b(args_.list, {{static_cast<u32>(tiles_),
                                             static_cast<u32>(args_.section_bits), 0, 0}});
        }
    }

  private:
    // Where an item lies, and the number of its first tile.
    struct Item {
        i32 q_begin, k_begin, q_len, k_len;
        i32 batch;  // or its number
    };

    static FS_DEVICE i32 share(i32 count) { return (count + kThreads - 1) / kThreads; }
    FS_DEVICE i32 items() const {
        if (kLengths && args_.q_lengths != nullptr) return 2 * args_.sequences + 2;
        return args_.sequences + 2;
    }

    // Boundary `index` as it stands in memory, clamped: item i begins at boundary i.
    FS_DEVICE i32 raw(const i32* table, i32 index, i32 length) const {
        if (index == 0) return 0;
        if (index > args_.sequences + 1) return length;
        return max(0, min(table[index - 1], length));
    }

    // Combines what the threads before this one say; `all`: what all of them do.
    template <class Combine>
    FS_DEVICE i32 combined_before(i32 value, i32& all, Combine combine) {
        ptx::bar_sync();  // the room has been read
        room_[threadIdx.x] = value;
        for (int distance = 1; distance < kThreads; distance *= 2) {
            ptx::bar_sync();  // the step before is complete
            const bool adds = static_cast<int>(threadIdx.x) >= distance;
            const i32 other = adds ? room_[threadIdx.x - distance] : 0;
            ptx::bar_sync();  // all have read it
            if (adds) room_[threadIdx.x] = value = combine(value, other);
        }
        ptx::bar_sync();
        all = room_[kThreads - 1];
        return threadIdx.x > 0 ? room_[threadIdx.x - 1] : 0;
    }
    FS_DEVICE i32 largest_before(i32 value, i32& all) {
        return combined_before(value, all, [](i32 a, i32 b) { return a > b ? a : b; });
    }
    FS_DEVICE i32 sum_before(i32 value, i32& all) {
        return combined_before(value, all, [](i32 a, i32 b) { return a + b; });
    }

    FS_DEVICE u64 item_at(i32 index) const { return args_.items + static_cast<i64>(index) * 16; }
    FS_DEVICE Item item(i32 index) const {
        const Chunk words = ptx::ld_global_16b(item_at(index));
        return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
                static_cast<i32>(words.word[2]), static_cast<i32>(words.word[3]),
                kConfig.numbered ? index
                : kLengths       ? batch_of(index)
                                 : 0};
    }
    // The entry of the batch that an item lies in.
    FS_DEVICE i32 batch_of(i32 index) const {
        if (args_.cu_seqlens_q != nullptr) return 0;
        const i32 sequence = index - (index > args_.sequences + 1 ? args_.sequences + 2 : 1);
        return max(0, min(sequence, args_.sequences - 1));
    }
    // The number of an item's first tile, before they are sorted.
    FS_DEVICE i32& first_tile(i32 index) const { return args_.first_tiles[index]; }

    FS_DEVICE i32 tiles_of(i32 q_len) const { return (q_len + args_.tile_q - 1) / args_.tile_q; }
    FS_DEVICE i32 blocks_of(i32 keys) const { return (keys + args_.tile_k - 1) / args_.tile_k; }

    // Every item, by this thread or another.
    FS_DEVICE void write_items() {
        const i32 begin = min(static_cast<i32>(threadIdx.x) * share(items()), items());
        const i32 end = min(begin + share(items()), items());
        i32 q = 0, k = 0, all;
        for (i32 i = begin; i < end; ++i) {
            q = max(q, raw(args_.cu_seqlens_q, i, args_.q_len));
            k = max(k, raw(args_.cu_seqlens_k, i, args_.k_len));
        }
        q = largest_before(q, all);
        k = largest_before(k, all);
        i32 tiles = 0, longest = 0;
        for (i32 i = begin; i < end; ++i) {
            q = max(q, raw(args_.cu_seqlens_q, i, args_.q_len));
            k = max(k, raw(args_.cu_seqlens_k, i, args_.k_len));
            const bool has_keys = i > 0 && i <= args_.sequences;
            const i32 q_len = max(raw(args_.cu_seqlens_q, i + 1, args_.q_len) - q, 0);
            const i32 keys = max(raw(args_.cu_seqlens_k, i + 1, args_.k_len) - k, 0);
            const i32 k_len = has_keys ? keys : 0;
            ptx::st_global_16b(item_at(i), {{static_cast<u32>(q), static_cast<u32>(k),
                                             static_cast<u32>(q_len), static_cast<u32>(k_len)}});
            tiles += tiles_of(q_len);
            if (q_len > 0) longest = max(longest, blocks_of(k_len));
        }
        i32 first = sum_before(tiles, tiles_);
        for (i32 i = begin; i < end; ++i) {
            first_tile(i) = first;
            first += tiles_of(item(i).q_len);
        }
        if (threadIdx.x == 0) first_tile(items()) = tiles_;
        largest_before(longest, longest_);
    }

    // A length in memory, from 0 to `most`; where there is no table, `absent`.
    static FS_DEVICE i32 length_in(const i32* table, i32 sequence, i32 absent, i32 most) {
        return table == nullptr ? absent : max(0, min(table[sequence], most));
    }

    FS_DEVICE void put_item(i32 index, i32 q, i32 k, i32 q_len, i32 k_len) const {
        ptx::st_global_16b(item_at(index), {{static_cast<u32>(q), static_cast<u32>(k),
                                             static_cast<u32>(q_len), static_cast<u32>(k_len)}});
    }

    // The same as write_items, where lengths of sequences are in memory.
    FS_DEVICE void write_items_of_lengths() {
        const i32 outer = args_.sequences + 2;
        const i32 begin = min(static_cast<i32>(threadIdx.x) * share(outer), outer);
        const i32 end = min(begin + share(outer), outer);
        const bool is_packed = args_.cu_seqlens_q != nullptr;
        i32 q = 0, k = 0, all;
        for (i32 i = begin; is_packed && i < end; ++i) {
            q = max(q, raw(args_.cu_seqlens_q, i, args_.q_len));
            k = max(k, raw(args_.cu_seqlens_k, i, args_.k_len));
        }
        q = largest_before(q, all);
        k = largest_before(k, all);
        for (i32 i = begin; i < end; ++i) {
            i32 q_len = 0, k_len = 0;
            if (is_packed) {
                q = max(q, raw(args_.cu_seqlens_q, i, args_.q_len));
                k = max(k, raw(args_.cu_seqlens_k, i, args_.k_len));
                q_len = max(raw(args_.cu_seqlens_q, i + 1, args_.q_len) - q, 0);
                k_len = max(raw(args_.cu_seqlens_k, i + 1, args_.k_len) - k, 0);
            }
            if (i == 0 || i > args_.sequences) {
                put_item(i, q, k, q_len, 0);
                continue;
            }
            if (!is_packed) q_len = args_.q_len, k_len = args_.k_len;
            const i32 used = length_in(args_.q_lengths, i - 1, q_len, q_len);
            const i32 k_end = length_in(args_.k_lengths, i - 1, k_len, k_len);
            const i32 k_first = length_in(args_.k_starts, i - 1, 0, k_end);
            put_item(i, q, k + k_first, used, k_end - k_first);
            if (args_.q_lengths != nullptr) put_item(outer + i - 1, q + used, k, q_len - used, 0);
        }
        ptx::bar_sync();  // all items are written
        count_items();
    }

    // Numbers of the items' first tiles, and the most kv blocks of one.
    FS_DEVICE void count_items() {
        const i32 begin = min(static_cast<i32>(threadIdx.x) * share(items()), items());
        const i32 end = min(begin + share(items()), items());
        i32 tiles = 0, longest = 0;
        for (i32 i = begin; i < end; ++i) {
            const Item of = item(i);
            tiles += tiles_of(of.q_len);
            if (of.q_len > 0) longest = max(longest, blocks_of(of.k_len));
        }
        i32 first = sum_before(tiles, tiles_);
        for (i32 i = begin; i < end; ++i) {
            first_tile(i) = first;
            first += tiles_of(item(i).q_len);
        }
        if (threadIdx.x == 0) first_tile(items()) = tiles_;
        largest_before(longest, longest_);
    }

    // The item that tile `tile` is of: the last that begins with it or before it.
    FS_DEVICE i32 item_of(i32 tile) const {
        i32 low = 0, high = items();
        while (high - low > 1) {
            const i32 middle = (low + high) / 2;
            if (first_tile(middle) <= tile) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return low;
    }

    // Calls `use` with tiles begin .. end - 1, the item each is of, and its number in that.
    template <class Use>
    FS_DEVICE void each_tile(i32 begin, i32 end, Use use) const {
        if (begin >= end) return;
        i32 index = item_of(begin);
        Item of = item(index);
        i32 first = first_tile(index), next = first_tile(index + 1);
        for (i32 tile = begin; tile < end; ++tile) {
            while (tile >= next) {
                of = item(++index);
                first = next;
                next = first_tile(index + 1);
            }
            use(of, tile - first);
        }
    }

    FS_DEVICE ListedTile listed(const Item& of, i32 row, i32 first) const {
        const i32 alignment = args_.bottom_right ? of.k_len - of.q_len : 0;
        return {of.q_begin, of.k_begin, of.q_len, of.k_len, row, first, alignment, of.batch};
    }

    // 0: tiles with the most kv blocks.
    FS_DEVICE i32 bucket(const Item& of, i32 tile) const {
        const i32 row = tile * args_.tile_q;
        const ListedSequence sequence = listed_sequence(args_, listed(of, row, 0));
        const i32 last = min(row + args_.tile_q, of.q_len) - 1;
        const i32 end = blocks_of(max(Mask::seen_by(sequence, last), 0));
        const i32 seen = max(end - max(Mask::first_seen(sequence, row), 0) / args_.tile_k, 0);
        // In 64 bits: a block may be as short as a key.
        const i64 steps = static_cast<i64>(seen) * (kBuckets - 1);
        return kBuckets - 1 - static_cast<i32>(steps / max(longest_, 1));
    }

    FS_DEVICE i32& count(i32 bucket) const { return counts_[bucket * kThreads + threadIdx.x]; }

    FS_DEVICE void count_tiles(i32 begin, i32 end) {
        for (int b = 0; b < kBuckets; ++b) count(b) = 0;
        each_tile(begin, end, [&](const Item& of, i32 tile) { ++count(bucket(of, tile)); });
    }

    // From how many tiles a thread has in a bucket to where the first of them goes.
    FS_DEVICE void counts_to_places() {
        i32* const own = counts_ + threadIdx.x * kBuckets;  // in the order of the list
        i32 sum = 0, all;
        for (int i = 0; i < kBuckets; ++i) sum += own[i];
        i32 place = sum_before(sum, all);
        for (int i = 0; i < kBuckets; ++i) {
            const i32 here = own[i];
            own[i] = place;
            place += here;
        }
    }

    FS_DEVICE void place_tiles(i32 begin, i32 end) {
        each_tile(begin, end, [&](const Item& of, i32 tile) {
            const i32 place = count(bucket(of, tile))++;
            const u64 entry =
                args_.list + kListHeaderBytes + static_cast<i64>(place) * kListEntryBytes;
            listed(of, tile * args_.tile_q, place - tile).put(entry);
        });
    }

    const TileListArgs& args_;
    i32* const counts_;
    i32* const room_;
    i32 tiles_;    // of all items
    i32 longest_;  // kv blocks of one
};

template <TileListConfig kConfig, Needs kNeeds>
FS_DEVICE void list_tiles(const TileListArgs& args) {
    using Lister = TileLister<kConfig, kNeeds>;
    static_assert(Lister::kWords * 4 == kConfig.smem_bytes(), "the host asks for this size.");
    extern __shared__ __align__(16) i32 shared[];
    Lister(args, shared).run();
}

}  // namespace flashsmith
