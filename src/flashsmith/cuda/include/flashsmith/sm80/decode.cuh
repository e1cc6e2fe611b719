// The decode kernel of the mma.sync family: few query rows on many keys, at the speed of memory.
//
// Query rows of all heads that share a head of K and V are one tile, so that K and V are read once.
// A CTA takes one slice of the keys of one q tile, or several one after the other:
//
//   slice of a sequence   | block 0 | block 1 | block 2 | block 3 | block 4 | …
//   team                  |    0    |    1    |    2    |    3    |    0    | …
//
// A team (a warp for every 16 query rows) copies its kv blocks into a ring of its own, by cp.async,
// and waits for nobody else. In the end the teams of a CTA add up their results, and the last CTA
// of a q tile those of its slices. Both orders are fixed, and so is the length of a slice: the bits
// of a row follow from its own sequence, and neither from the batch nor from the GPU.
#pragma once

#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm80/decode_output.cuh"
#include "flashsmith/sm80/decode_queue.cuh"

namespace flashsmith::sm80 {

template <class Kernel>
FS_DEVICE void compute(const DecodeArgs& args, const DecodeWork& work, SmemAddr smem) {
    using Team = DecodeTeam<Kernel>;
    Team team(args, work, smem);
    team.begin(0);
    copy_q<Kernel>(smem + Kernel::kQ, args, work);  // in the group of the first kv block
    ptx::cp_async_commit();
    FS_UNROLL
    for (int i = 1; i < Team::kAhead; ++i) {
        team.begin(i);
        ptx::cp_async_commit();
    }
    team.look_at_rows(work);
    ptx::cp_async_wait<Team::kAhead - 1>();
    ptx::bar_sync();  // all of Q is in shared memory
    team.read_q();
    team.walk();
    ptx::bar_sync();  // all rings have been read
    team.hand_over(smem);
    ptx::bar_sync();  // all teams have handed over
    const DecodeOutput<Kernel> output(args, work, smem);
    output.add_teams();
    output.add_slices();
}

template <Sm80DecodeConfig kConfig, Needs kNeeds>
FS_DEVICE void decode(const DecodeArgs& args) {
    using Kernel = DecodeKernel<kConfig, kNeeds>;
    static_assert(Kernel::valid());
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    DecodeQueue<Kernel> queue(args);
    DecodeWork work;
    if constexpr (kConfig.persistent) {
        _Pragma("unroll 1") for (u32 n = ptx::ctaid_x(); queue.find(n, work); n += gridDim.x) {
            compute<Kernel>(args, work, start);
            ptx::bar_sync();  // what the teams handed over has been read
        }
    } else {
        if (queue.find(ptx::ctaid_x(), work)) compute<Kernel>(args, work, start);
    }
}

}  // namespace flashsmith::sm80
