// TMA: boxes of a tensor, copied by one thread between global and swizzled shared memory.
//
// PTX ISA "Data Movement and Conversion Instructions: cp.async.bulk.tensor". sm_90.
// Elements outside of the tensor arrive as zeros, count as bytes of the box, and are not stored.
#pragma once

#include "flashsmith/base/tensor_arg.cuh"
#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/cache_policy.cuh"

namespace flashsmith::ptx {

// Where a box begins: innermost dimension first.
struct TmaCoordinates {
    i32 column, row, head, batch;
};

// Starts the copy of one box to `dst`; its bytes complete on `full`.
template <u64 kPolicy = kEvictNormal>
FS_DEVICE void tma_load_4d(SmemAddr dst, const TensorMap& map, const TmaCoordinates& at,
                           SmemAddr full) {
    if constexpr (kPolicy == kEvictNormal) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3, %4, %5}], [%6];"
            :
            : "r"(dst.value), "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch),
              "r"(full.value)
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
            :
            : "r"(dst.value), "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch),
              "r"(full.value), "l"(kPolicy)
            : "memory");
    }
}

// The same into every block of the cluster whose bit is in `blocks`: to the same place, on the
// same barrier of each.
template <u64 kPolicy = kEvictNormal>
FS_DEVICE void tma_load_4d_multicast(SmemAddr dst, const TensorMap& map, const TmaCoordinates& at,
                                     SmemAddr full, u16 blocks) {
    if constexpr (kPolicy == kEvictNormal) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
            :
            : "r"(dst.value), "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch),
              "r"(full.value), "h"(blocks)
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;"
            :
            : "r"(dst.value), "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch),
              "r"(full.value), "h"(blocks), "l"(kPolicy)
            : "memory");
    }
}

// Starts the copy of one box from shared memory, in this thread's bulk group.
template <u64 kPolicy = kEvictNormal>
FS_DEVICE void tma_store_4d_if(bool condition, const TensorMap& map, const TmaCoordinates& at,
                               SmemAddr src) {
    if constexpr (kPolicy == kEvictNormal) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\t"
            "@p cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
            "[%0, {%1, %2, %3, %4}], [%5];\n\t}"
            :
            : "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(src.value),
              "r"(static_cast<u32>(condition))
            : "memory");
    } else {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\t"
            "@p cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint "
            "[%0, {%1, %2, %3, %4}], [%5], %7;\n\t}"
            :
            : "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(src.value),
              "r"(static_cast<u32>(condition)), "l"(kPolicy)
            : "memory");
    }
}

// Closes the group of stores that this thread started since its last commit.
FS_DEVICE void bulk_commit_if(bool condition) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t@p cp.async.bulk.commit_group;\n\t}"
        :
        : "r"(static_cast<u32>(condition))
        : "memory");
}

// This thread's stores have read their shared memory: it may be written again.
FS_DEVICE void bulk_wait_read_if(bool condition) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t@p cp.async.bulk.wait_group.read 0;\n\t}"
        :
        : "r"(static_cast<u32>(condition))
        : "memory");
}

// This thread's stores are complete: the block may exit.
FS_DEVICE void bulk_wait_if(bool condition) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t@p cp.async.bulk.wait_group 0;\n\t}"
        :
        : "r"(static_cast<u32>(condition))
        : "memory");
}

// All but the newest `kPending` groups of this thread's stores are complete.
template <int kPending>
FS_DEVICE void bulk_wait() {
    static_assert(kPending >= 0, "bulk_wait: kPending counts groups, it cannot be negative.");
    asm volatile("cp.async.bulk.wait_group %0;" : : "n"(kPending) : "memory");
}

// What this thread wrote to shared memory is visible to TMA and wgmma after a barrier.
FS_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace flashsmith::ptx
