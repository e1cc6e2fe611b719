// The q tiles of sequences that have lengths of their own: a list in scratch memory.
//
// One launch writes it (attention/list_tiles.cuh), the next reads it: a load a q tile.
//
//   header   entries | section_bits | 0 | 0
//   entry    q_begin | k_begin | q_len | k_len | row | first | alignment | batch
//
// Entries stand in the order in which they are worked on, for one head: the longest first.
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// Whether a kernel's q tiles come from a list.
template <Needs kNeeds>
inline constexpr bool kListed = kNeeds.sequences || kNeeds.k_lengths;

// Whether entries of the list name their sequences, which have slopes of their own, and not entries
// of the batch: packed sequences are a batch of one.
template <Needs kNeeds>
inline constexpr bool kNumbered = kNeeds.sequences && kNeeds.alibi;

inline constexpr int kListHeaderBytes = 16;
inline constexpr int kListEntryBytes = 32;

struct ListedTile {
    i32 q_begin, k_begin, q_len, k_len;
    i32 row;        // its first one, counted from the sequence's
    i32 first;      // the entry of the sequence's first tile, where its tiles stand together
    i32 alignment;  // row i of the sequence stands at key i + this
    i32 batch;      // or, of a numbered list, the sequence: 0 is what lies before the first

    // Of an entry that names its sequence: which row of a table of all sequences is its own. Rows
    // and keys of no sequence never meet, so that any row will do for them.
    FS_DEVICE i32 table_row() const { return q_len > 0 && k_len > 0 ? batch - 1 : 0; }

    FS_DEVICE void put(u64 entry) const {
        ptx::st_global_16b(entry, {{static_cast<u32>(q_begin), static_cast<u32>(k_begin),
                                    static_cast<u32>(q_len), static_cast<u32>(k_len)}});
        ptx::st_global_16b(entry + 16, {{static_cast<u32>(row), static_cast<u32>(first),
                                         static_cast<u32>(alignment), static_cast<u32>(batch)}});
    }

    static FS_DEVICE ListedTile get(u64 entry) {
        const Chunk place = ptx::ld_global_16b(entry);
        const Chunk tile = ptx::ld_global_16b(entry + 16);
        return {static_cast<i32>(place.word[0]), static_cast<i32>(place.word[1]),
                static_cast<i32>(place.word[2]), static_cast<i32>(place.word[3]),
                static_cast<i32>(tile.word[0]),  static_cast<i32>(tile.word[1]),
                static_cast<i32>(tile.word[2]),  static_cast<i32>(tile.word[3])};
    }
};

// The list as a kernel reads it.
struct TileList {
    u64 address;
    i32 entries;       // q tiles of a head
    i32 section_bits;  // 2 to the power of this: heads whose q tiles are worked on together

    FS_DEVICE explicit TileList(u64 address) : address(address) {
        const Chunk header = ptx::ld_global_16b(address);
        entries = static_cast<i32>(header.word[0]);
        section_bits = static_cast<i32>(header.word[1]);
    }

    FS_DEVICE u64 entry_at(i32 number) const {
        const i64 bytes = static_cast<i64>(number) * kListEntryBytes;
        return address + kListHeaderBytes + bytes;
    }
    FS_DEVICE ListedTile entry(i32 number) const { return ListedTile::get(entry_at(number)); }

    // Tile `number` of a launch over `heads` heads, and in `head` which of them.
    //
    // kAlike: tiles of a sequence see the same keys. All of a head come then before the next
    // head's, so that few heads share L2. Otherwise sections of heads come one after the other,
    // each with the longest tiles of its heads first.
    template <bool kAlike>
    FS_DEVICE ListedTile at(i32 number, i32 heads, i32 tile_rows, i32& head) const {
        const u32 index = static_cast<u32>(number);
        if constexpr (kAlike) {
            ListedTile found = entry(index / static_cast<u32>(heads));
            const u32 rest = index - static_cast<u32>(found.first * heads);
            const u32 tiles = static_cast<u32>(found.q_len + tile_rows - 1) / tile_rows;
            head = rest / tiles;
            found.row = (rest - head * tiles) * tile_rows;
            return found;
        } else {
            const u32 of_section = index >> section_bits;
            const u32 section = of_section / static_cast<u32>(entries);
            head = (section << section_bits) + index - (of_section << section_bits);
            return entry(of_section - section * entries);
        }
    }
};

}  // namespace flashsmith
