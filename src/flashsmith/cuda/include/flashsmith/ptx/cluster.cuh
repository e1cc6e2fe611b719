// Clusters: blocks that reach each other's shared memory.
//
// PTX ISA "barrier.cluster", "mapa", "Special Registers: %cluster_ctarank". sm_90.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

FS_DEVICE u32 cluster_ctarank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks of the cluster have arrived; what they wrote before is visible.
FS_DEVICE void barrier_cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Writes a word at the same place of block `rank`'s shared memory.
FS_DEVICE void st_shared_cluster_b32(SmemAddr dst, u32 rank, u32 word) {
    asm volatile(
        "{\n\t.reg .b32 remote;\n\tmapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "st.shared::cluster.b32 [remote], %2;\n\t}"
        :
        : "r"(dst.value), "r"(rank), "r"(word)
        : "memory");
}

FS_DEVICE u32 ld_shared_b32(SmemAddr src) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(src.value) : "memory");
    return word;
}

}  // namespace flashsmith::ptx
