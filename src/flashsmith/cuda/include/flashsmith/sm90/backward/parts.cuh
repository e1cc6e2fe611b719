// A group's heads in parts: with `in_parts` a kv block is walked several times, with some heads of
// its group each time, by whichever ctas draw it. What a walk has of dK and dV is added to what the
// walks before it had:
//
//   part 0    dK, dV of its heads            ──► memory, in float32
//   part 1    dK, dV of its heads + memory   ──► memory
//   part 2    dK, dV of its heads + memory   ──► rounded: the gradients
//
// A group is then no longer than L2 holds, and a launch has more and shorter walks to share out
// among its ctas. Sums have one order, whoever makes them. Part 0 of all heads of K and V comes
// first, then part 1 of all; sections are cut from that row, so that one may hold several parts. Of
// each kv block a part has a lower number than the next: who waits for the part before its own
// waits for one that was drawn before.
// How dK and dV are handed on: part_sums.cuh.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::sm90 {

// Heads of Q that one walk of a kv block takes.
template <class Kernel>
FS_DEVICE i32 walked_heads(const typename Kernel::Args& args) {
    if constexpr (Kernel::kConfig.in_parts) return args.part_heads;
    return args.kv_group;
}

// The head of K and V that number `head` of a KvBlock stands for: in parts, those of one follow
// each other, as their heads of Q do.
template <class Kernel>
FS_DEVICE i32 kv_head_of(const typename Kernel::Args& args, i32 head) {
    if constexpr (Kernel::kConfig.in_parts) return head / args.parts;
    return head;
}

// Heads of K and V, or parts of their groups, of all sequences.
template <class Kernel>
FS_DEVICE u32 drawn_heads(const typename Kernel::Args& args) {
    return args.all_kv_blocks / args.kv_blocks;
}

// Heads are drawn part by part, and lie in memory head by head: from the one number to the other.
template <class Kernel>
FS_DEVICE u32 lying_at(const typename Kernel::Args& args, u32 drawn) {
    if constexpr (!Kernel::kConfig.in_parts) return drawn;
    const u32 of_part = drawn_heads<Kernel>(args) / args.parts, part = drawn / of_part;
    return (drawn - part * of_part) * args.parts + part;
}
template <class Kernel>
FS_DEVICE i32 drawn_at(const typename Kernel::Args& args, i32 lying) {
    if constexpr (!Kernel::kConfig.in_parts) return lying;
    const i32 head = lying / args.parts, of_part = drawn_heads<Kernel>(args) / args.parts;
    return (lying - head * args.parts) * of_part + head;
}

}  // namespace flashsmith::sm90
