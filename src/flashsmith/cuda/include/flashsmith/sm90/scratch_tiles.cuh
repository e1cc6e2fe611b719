// Where q tiles of packed sequences lie in the backward kernels' scratch memory.
//
// Every sequence has q tiles of its own: those of number i begin with q_begin / rows + i, so that
// none is shared, whatever the lengths are. The last one of a head belongs to nobody: its
// statistics are those of rows that do not exist.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/tile_list.cuh"

namespace flashsmith::sm90 {

// The first of a sequence's q tiles in scratch memory, among those of a head.
template <int kRows>
FS_DEVICE i32 first_scratch_tile(const ListedTile& of) {
    return of.q_begin / kRows + of.batch;
}

// A tensor from the first key of a sequence on: itself, of a dense batch.
template <class Sequence>
FS_DEVICE decltype(auto) from_first_key(const TensorArg& tensor, const Sequence& of) {
    if constexpr (requires { of.k_begin; }) {
        TensorArg moved = tensor;
        moved.address += of.k_begin * moved.seq_stride * kElementBytes;
        return moved;
    } else {
        return (tensor);
    }
}

// The q tile that a list of them has at a place; all zeros of a dense batch.
struct ScratchTile {
    i32 q_begin, q_len, k_len;
    i32 row;           // its first one, counted from the sequence's
    i32 tiles_before;  // of the head, before those of the sequence
    i32 alignment;     // row i of the sequence stands at key i + this
    bool is_read;      // whether anybody looks at its statistics

    // Entry `number` of the list of q tiles. Behind its end there is one more, of nobody.
    template <int kRows>
    static FS_DEVICE ScratchTile of_rows(const Sm90BackwardArgs& args, i32 number) {
        const bool is_nobodys = number == args.q_tiles - 1;
        const TileList list(args.q_list);
        if (number >= list.entries) return {0, 0, 0, 0, number, 0, is_nobodys};
        const ListedTile at = list.entry(number);
        return {at.q_begin,   at.q_len, at.k_len, at.row, first_scratch_tile<kRows>(at),
                at.alignment, true};
    }

    // As masks ask for it.
    template <Needs kNeeds>
    FS_DEVICE decltype(auto) sequence(const Sm90BackwardArgs& args) const {
        if constexpr (kListed<kNeeds>) {
            return listed_sequence(args,
                                   ListedTile{q_begin, 0, q_len, k_len, row, 0, alignment, 0});
        } else {
            return (args);
        }
    }
};

}  // namespace flashsmith::sm90
