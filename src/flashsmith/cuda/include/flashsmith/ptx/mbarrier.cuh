// mbarrier: counters in shared memory that threads and TMA copies arrive on.
//
// PTX ISA "Parallel Synchronization and Communication Instructions: mbarrier". sm_90.
// A phase ends when all expected arrivals and bytes are in. Waiting for parity P returns once the
// phase of parity P has ended; a fresh barrier is in phase 0, so parity 1 does not wait.
//
// Arrivals that only some lanes make are predicated inside the asm: a branch would make ptxas
// treat the code around it as divergent and move wgmma descriptors out of uniform registers.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

FS_DEVICE void mbarrier_init(SmemAddr barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(barrier.value), "r"(arrivals)
                 : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster and to TMA.
FS_DEVICE void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once and announces bytes that copies will complete in this phase.
FS_DEVICE void mbarrier_arrive_expect_tx(SmemAddr barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier.value), "r"(bytes)
                 : "memory");
}

FS_DEVICE void mbarrier_arrive(SmemAddr barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier.value) : "memory");
}

FS_DEVICE void mbarrier_arrive_if(bool condition, SmemAddr barrier) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %1, 0;\n\t"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}"
        :
        : "r"(barrier.value), "r"(static_cast<u32>(condition))
        : "memory");
}

// Arrives on the barrier at the same place in block `rank` of the cluster.
FS_DEVICE void mbarrier_arrive_remote_if(bool condition, SmemAddr barrier, u32 rank) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b32 remote;\n\tsetp.ne.b32 p, %2, 0;\n\t"
        "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "@p mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}"
        :
        : "r"(barrier.value), "r"(rank), "r"(static_cast<u32>(condition))
        : "memory");
}

// The same, for a block that then reads what this thread wrote to its shared memory.
FS_DEVICE void mbarrier_arrive_release_cluster(SmemAddr barrier, u32 rank) {
    asm volatile(
        "{\n\t.reg .b32 remote;\n\tmapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t}"
        :
        : "r"(barrier.value), "r"(rank)
        : "memory");
}

// Whether the phase of `parity` has ended, without waiting for it.
FS_DEVICE bool mbarrier_test(SmemAddr barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier.value), "r"(parity)
        : "memory");
    return done != 0;
}

// Returns once the phase of `parity` has ended; what its arrivals released is visible then.
FS_DEVICE void mbarrier_wait(SmemAddr barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(barrier.value), "r"(parity)
            : "memory");
    } while (!done);
}

// The same for arrivals that blocks of the cluster released.
FS_DEVICE void mbarrier_wait_cluster(SmemAddr barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(barrier.value), "r"(parity)
            : "memory");
    } while (!done);
}

}  // namespace flashsmith::ptx
