// A q tile, or a slice of one, as the producer tells it to the consumers through shared memory.
#pragma once

#include "flashsmith/attention/tile_list.cuh"
#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::sm90 {

// n_blocks 0 ends the work.
struct QTile {
    i32 row;       // first query row
    i32 n_blocks;  // kv blocks that any of its rows needs
    i32 head;
    i32 batch;

    FS_DEVICE void put(SmemAddr slot) const {
        const Chunk words{{static_cast<u32>(row), static_cast<u32>(n_blocks),
                           static_cast<u32>(head), static_cast<u32>(batch)}};
        ptx::st_shared_16b(slot, words);
    }

    static FS_DEVICE QTile get(SmemAddr slot) {
        const Chunk words = ptx::ld_shared_16b(slot);
        return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
                static_cast<i32>(words.word[2]), static_cast<i32>(words.word[3])};
    }
};

// The tile in a slot. Where entries name their sequences, `batch` of the slot is the row of the
// sequence's in tables, and the batch is one of one.
template <Needs kNeeds>
FS_DEVICE QTile tile_in(SmemAddr slot) {
    QTile tile = QTile::get(slot);
    if constexpr (kNumbered<kNeeds>) tile.batch = 0;
    return tile;
}

// Which of its keys, where a tile is split among ctas. It lies behind its QTile in the slot.
struct Slice {
    i32 first;   // kv block
    i32 range;   // that it belongs to
    i32 givers;  // ranges before this one whose slices of the tile are added to this one; or:

    static constexpr i32 kWhole = 0;     // the tile is not split
    static constexpr i32 kIsGiven = -1;  // the cta of a later range ends the tile

    FS_DEVICE void put(SmemAddr slot) const {
        ptx::st_shared_16b(slot + 16, {{static_cast<u32>(first), static_cast<u32>(range),
                                        static_cast<u32>(givers)}});
    }

    static FS_DEVICE Slice get(SmemAddr slot) {
        const Chunk words = ptx::ld_shared_16b(slot + 16);
        return {static_cast<i32>(words.word[0]), static_cast<i32>(words.word[1]),
                static_cast<i32>(words.word[2])};
    }
};

}  // namespace flashsmith::sm90
