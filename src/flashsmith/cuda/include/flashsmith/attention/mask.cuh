// Which keys a query row sees: the only mask arithmetic in device code.
//
//            keys →        span of a q tile: the kv blocks that some row of it sees
//   row 0  | x x . . |     whole: blocks, from the first on, that every row of it sees all of
//   row 1  | x x x . |
//   row 2  | x x x x |     Row i sees the keys up to i + diagonal, and none from k_len on.
//   row 3  | . x x x |     With a left edge, it sees none before i + left_diagonal.
//
// A sequence (attention/sequence.cuh) says how many keys there are and where the diagonal lies.
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/base/types.cuh"

namespace flashsmith {

// kv blocks of a q tile: [first, first + count). Counted from block 0, those before `whole` need no
// mask, except the ones before `cut`, where there is a left edge.
struct Span {
    i32 first;
    i32 count;
    i32 whole;
    i32 cut = 0;
};

// A sequence of the tile list. The diagonals of `args` are then counted from the alignment.
template <class Args, class Tile>
FS_DEVICE ListedSequence listed_sequence(const Args& args, const Tile& tile) {
    return {tile.q_begin,
            tile.k_begin,
            tile.q_len,
            tile.k_len,
            tile.alignment + args.diagonal,
            tile.alignment + args.left_diagonal,
            tile.alignment + args.position};
}

// An entry of a list in which queries and keys have changed places, as one of a list of q tiles.
template <class Tile>
FS_DEVICE Tile transposed(const Tile& tile) {
    return {tile.k_begin, tile.q_begin, tile.k_len,      tile.q_len,
            tile.row,     tile.first,   -tile.alignment, tile.batch};
}

// Where a diagonal lies in a sequence that has `fewer` keys, if it is aligned with its last key.
FS_DEVICE i32 aligned_diagonal(i32 diagonal, i32 fewer) { return diagonal - fewer; }

// kCausal: rows do not see keys right of the diagonal. kRagged: the last kv block may end early.
// kLeft: rows do not see keys left of another diagonal.
template <bool kCausal, bool kRagged, bool kLeft = false>
struct Mask {
    // Whether anything is ever hidden.
    static constexpr bool kHides = kCausal || kRagged || kLeft;
    static constexpr bool kHasLeft = kLeft;

    // Keys, from the first on, that `row` sees; not above 0 where it sees none.
    template <class Sequence>
    static FS_DEVICE i32 seen_by(const Sequence& sequence, i32 row) {
        if constexpr (!kCausal) return sequence.k_len;
        const i32 seen = row + sequence.diagonal + 1;
        return seen < sequence.k_len ? seen : sequence.k_len;
    }

    // The same of the rows before `row_end`.
    template <class Sequence>
    static FS_DEVICE i32 seen_before(const Sequence& sequence, i32 row_end) {
        return kCausal ? min(sequence.k_len, row_end + sequence.diagonal) : sequence.k_len;
    }

    // Whether `row` sees `key`, which is below k_len.
    template <class Sequence>
    static FS_DEVICE bool sees(const Sequence& sequence, i32 row, i32 key) {
        return key <= row + sequence.diagonal;
    }

    // What rows first_row .. last_row see, in kv blocks of kBlock keys.
    template <int kBlock, class Sequence>
    static FS_DEVICE Span span(const Sequence& sequence, i32 first_row, i32 last_row) {
        const i32 seen_by_last = seen_by(sequence, last_row);
        const i32 seen_by_first = seen_by(sequence, first_row);
        if (kCausal && seen_by_last <= 0) return {0, 0, 0};
        Span span{0, (seen_by_last + kBlock - 1) / kBlock,
                  seen_by_first > 0 ? seen_by_first / kBlock : 0};
        if constexpr (kLeft) {
            const i32 first_key = max(first_seen(sequence, first_row), 0);
            if (first_key >= seen_by_last) return {0, 0, 0};
            span.first = first_key / kBlock;
            span.count -= span.first;
            span.cut = blocks_cut<kBlock>(sequence, last_row);
        }
        return span;
    }

    // The first key that `row` sees; negative where it sees all from the first on.
    template <class Sequence>
    static FS_DEVICE i32 first_seen(const Sequence& sequence, i32 row) {
        return kLeft ? row + sequence.left_diagonal : 0;
    }

    // kv blocks, from the first on, that rows up to `last_row` do not all see the beginning of.
    template <int kBlock, class Sequence>
    static FS_DEVICE i32 blocks_cut(const Sequence& sequence, i32 last_row) {
        return (max(first_seen(sequence, last_row), 0) + kBlock - 1) / kBlock;
    }

    // The first kv block that rows from `first_row` on see, before the end of the keys.
    template <int kBlock, class Sequence>
    static FS_DEVICE i32 first_block(const Sequence& sequence, i32 first_row) {
        if constexpr (!kLeft) return 0;
        return min(max(first_seen(sequence, first_row), 0), sequence.k_len - 1) / kBlock;
    }

    // kv blocks that rows before `row_end` see; at least one, so that rows that see no key are
    // written too.
    template <int kBlock, class Sequence>
    static FS_DEVICE i32 blocks_seen(const Sequence& sequence, i32 row_end) {
        return (max(seen_before(sequence, row_end), 1) + kBlock - 1) / kBlock;
    }

    // q tiles of kTile rows in which some row sees one of the keys first_key .. last_key: [first,
    // first + count), of which the last `whole` need no mask, except those from `cut` on, where
    // there is a left edge.
    template <int kTile, class Sequence>
    static FS_DEVICE Span tiles_that_see(const Sequence& sequence, i32 first_key, i32 last_key) {
        const i32 tiles = (sequence.q_len + kTile - 1) / kTile;
        if constexpr (!kCausal && !kLeft) return {0, tiles, tiles};
        const i32 end =
            kLeft ? min((max(last_row_of(sequence, last_key), -1) + kTile) / kTile, tiles) : tiles;
        const i32 sees_first = max(first_row_of(sequence, first_key), 0);
        const i32 sees_all = max(first_row_of(sequence, last_key), 0);
        const i32 first = min(sees_first / kTile, end);
        Span span{first, end - first, end - min((sees_all + kTile - 1) / kTile, end)};
        if constexpr (kLeft) span.cut = max(last_row_of(sequence, first_key) + 1, 0) / kTile;
        return span;
    }

    // The first query row that sees `key`.
    template <class Sequence>
    static FS_DEVICE i32 first_row_of(const Sequence& sequence, i32 key) {
        return kCausal ? key - sequence.diagonal : 0;
    }

    // The last query row that sees `key`; negative where none does.
    template <class Sequence>
    static FS_DEVICE i32 last_row_of(const Sequence& sequence, i32 key) {
        return kLeft ? key - sequence.left_diagonal : sequence.q_len - 1;
    }

    // kv blocks, from the first on, of which rows from `first_row` on see no key.
    template <int kBlock, class Sequence>
    static FS_DEVICE i32 blocks_before(const Sequence& sequence, i32 first_row) {
        return max(first_seen(sequence, first_row), 0) / kBlock;
    }

    // Whether some row from row + kRows * part on does not see the last key before `key_end`.
    template <int kRows, class Sequence>
    static FS_DEVICE bool hides_before(const Sequence& sequence, i32 key_end, i32 row, int part) {
        bool hidden = false;
        if constexpr (kRagged) hidden |= key_end > sequence.k_len;
        if constexpr (kCausal) hidden |= key_end - 1 > row + part * kRows + sequence.diagonal;
        return hidden;
    }

    // Whether some row before row + kRows * (part + 1) does not see `key`, for its left edge.
    template <int kRows, class Sequence>
    static FS_DEVICE bool hides_after(const Sequence& sequence, i32 key, i32 row, int part) {
        return kLeft && key < first_seen(sequence, row + (part + 1) * kRows - 1);
    }
};

// Of the accumulators of mma and wgmma a thread has two rows, 8 apart, and of both these columns,
// counted from its first:
//
//   column       0     1     8     9    16    17  …
//   row        s[0]  s[1]  s[4]  s[5]  s[8]  s[9] …    half 0
//   row + 8    s[2]  s[3]  s[6]  s[7]  …               half 1

// Removes columns from `limit` on of one row; of elements kFrom .. kTo - 1.
template <int kFrom, int kTo, int kCount>
FS_DEVICE void hide_columns_of_row(float (&s)[kCount], int half, i32 limit) {
    FS_UNROLL
    for (int n = kFrom / 4; n < kTo / 4; ++n) {
        FS_UNROLL
        for (int e = 0; e < 2; ++e) {
            float& x = s[4 * n + 2 * half + e];
            x = n * 8 + e < limit ? x : kNegativeInfinity;
        }
    }
}

// Removes columns before `limit` of one row.
template <int kCount>
FS_DEVICE void hide_columns_before(float (&s)[kCount], int half, i32 limit) {
    FS_UNROLL
    for (int n = 0; n < kCount / 4; ++n) {
        FS_UNROLL
        for (int e = 0; e < 2; ++e) {
            float& x = s[4 * n + 2 * half + e];
            x = n * 8 + e < limit ? kNegativeInfinity : x;
        }
    }
}

// Removes columns before a limit, of both rows; of elements kFrom .. kTo - 1.
template <int kFrom, int kTo, int kCount>
FS_DEVICE void hide_columns_before(float (&s)[kCount], i32 limit_low, i32 limit_high) {
    FS_UNROLL
    for (int i = kFrom; i < kTo; ++i) {
        const int column = (i / 4) * 8 + (i & 1);
        if (column < ((i & 2) ? limit_high : limit_low)) s[i] = kNegativeInfinity;
    }
}

// Removes columns from a limit on, of both rows.
template <int kFrom, int kTo, int kCount>
FS_DEVICE void hide_columns(float (&s)[kCount], i32 limit_low, i32 limit_high) {
    FS_UNROLL
    for (int i = kFrom; i < kTo; ++i) {
        const int column = (i / 4) * 8 + (i & 1);
        if (column >= ((i & 2) ? limit_high : limit_low)) s[i] = kNegativeInfinity;
    }
}

}  // namespace flashsmith
