// One sequence of the batch, as masks and stores ask for it: q_len, k_len and diagonal.
//
// Where the batch is dense all sequences are equal, and the kernel's arguments are the sequence:
// its numbers stay in the constant bank, where reading them takes no register.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith {

template <class Args>
FS_DEVICE const Args& sequence_of(const Args& args, [[maybe_unused]] i32 batch) {
    return args;
}

}  // namespace flashsmith
