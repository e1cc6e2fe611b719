// One sequence of the batch, as masks and stores ask for it: q_len, k_len and diagonal.
//
// Where the batch is dense all sequences are equal, and the kernel's arguments are the sequence:
// its numbers stay in the constant bank, where reading them takes no register. Where sequences have
// lengths of their own, the tile list (attention/tile_list.cuh) says which one a q tile is of.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith {

// A sequence with lengths of its own; rows and keys are counted from its first ones.
struct ListedSequence {
    i32 q_begin, k_begin;  // its first row of Q and O, its first key
    i32 q_len, k_len;
    i32 diagonal, left_diagonal, position;  // as those of a kernel's arguments
};

template <class Args>
FS_DEVICE const Args& sequence_of(const Args& args, [[maybe_unused]] i32 batch) {
    return args;
}

// Rows of Q and O before those of a sequence, in its entry of the batch.
template <class Sequence>
FS_DEVICE i32 rows_before(const Sequence& sequence) {
    if constexpr (requires { sequence.q_begin; }) return sequence.q_begin;
    return 0;
}

// Keys before those of a sequence.
template <class Sequence>
FS_DEVICE i32 keys_before(const Sequence& sequence) {
    if constexpr (requires { sequence.k_begin; }) return sequence.k_begin;
    return 0;
}

// Columns of V and O, which may be fewer than those of Q and K.
template <Needs kNeeds, class Args>
FS_DEVICE i32 v_columns(const Args& args) {
    if constexpr (kNeeds.d_v) return args.v_width;
    return args.d_head;
}

}  // namespace flashsmith
