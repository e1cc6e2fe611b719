// What a cta of a decode kernel does: few query rows on many keys, at the speed of memory.
//
// Query rows of all heads that share a head of K and V are one tile, so that K and V are read once.
// A cta takes one slice of the keys of one q tile, or several one after the other:
//
//   slice of a sequence   | block 0 | block 1 | block 2 | block 3 | block 4 | …
//   team                  |    0    |    1    |    2    |    3    |    0    | …
//
// A team (a warp for every 16 query rows) copies its kv blocks into a ring of its own and waits for
// nobody else. In the end the teams of a cta add up their results, and the last cta of a q tile
// those of its slices. Both orders are fixed, and so is the length of a slice: the bits of a row
// follow from its own sequence, and neither from the batch nor from the GPU.
#pragma once

#include "flashsmith/decode/output.cuh"
#include "flashsmith/decode/queue.cuh"
#include "flashsmith/decode/runs.cuh"
#include "flashsmith/decode/weighed_output.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/special_register.cuh"

namespace flashsmith::decode {

// Starts the copy of a q tile: rows gathered from the heads of a group; those that do not exist are
// zeros.
template <class Kernel>
FS_DEVICE void copy_q(SmemAddr room, const typename Kernel::Args& args, const DecodeWork& work) {
    using Tile = typename Kernel::QTile;
    const i32 rows = q_len_of<Kernel>(args, work) * args.group;
    _Pragma("unroll 1") for (u32 i = threadIdx.x; i < Tile::kRows * Tile::kChunks;
                             i += Kernel::kThreads) {
        const u32 row = i / Tile::kChunks;
        const u32 chunk = i % Tile::kChunks;
        const i32 packed = work.tile * Kernel::kBr + row;
        const QueryRow at = QueryRow::of<Kernel>(args, work, packed);
        const i64 element = element_of<Kernel>(args.q, work, at) + chunk * kChunkElements;
        const bool exists = packed < rows && chunk * kChunkElements < args.d_head;
        ptx::cp_async_16b_or_zero(room + Tile::offset(row, chunk),
                                  args.q.address + element * kElementBytes, exists);
    }
}

// How results are added up.
template <class Kernel, bool kWeighed = Kernel::kConfig.quick_end>
struct DecodeSums {
    using Type = DecodeOutput<Kernel>;
};
template <class Kernel>
struct DecodeSums<Kernel, true> {
    using Type = WeighedOutput<Kernel>;
};

// Starts copies; then all of Q is in registers, or shared memory.
template <class Kernel>
FS_DEVICE void begin(DecodeTeam<Kernel>& team, const typename Kernel::Args& args,
                     const DecodeWork& work, SmemAddr smem) {
    using Team = DecodeTeam<Kernel>;
    team.begin(0);
    copy_q<Kernel>(smem + Kernel::kQ, args, work);  // in the group of the first kv block
    ptx::cp_async_commit();
    FS_UNROLL
    for (int i = 1; i < Team::kAhead; ++i) {
        team.begin(i);
        team.close();
    }
    team.look_at_rows(work);
    Kernel::Memory::template await_q<Team::kAhead>();
    ptx::bar_sync();  // all of Q is in shared memory
    team.read_q();
}

template <class Kernel>
FS_DEVICE void compute(const typename Kernel::Args& args, const DecodeWork& work, SmemAddr smem,
                       typename Kernel::Memory::Ring& ring) {
    DecodeTeam<Kernel> team(args, work, smem, ring);
    begin<Kernel>(team, args, work, smem);
    team.walk();
    ring = team.ring();
    ptx::bar_sync();  // all rings have been read
    team.hand_over(smem, work);
    ptx::bar_sync();  // all teams have handed over
    const typename DecodeSums<Kernel>::Type output(args, work, smem);
    output.add_teams();
    output.add_slices();
}

// The same for `count` slices of a sequence, from the work's on. Rings go on from slice to slice:
// while teams add up what they found in one, kv blocks of the next are under way.
template <class Kernel>
FS_DEVICE void compute_run(const typename Kernel::Args& args, DecodeWork& work, i32 count,
                           SmemAddr smem, typename Kernel::Memory::Ring& ring) {
    DecodeTeam<Kernel> team(args, work, smem, ring, count);
    begin<Kernel>(team, args, work, smem);
    const typename DecodeSums<Kernel>::Type output(args, work, smem);
    TeamPlace place = team.start();
    _Pragma("unroll 1") for (i32 i = 1; i <= count; ++i) {
        team.walk_slice(place, i * work.slice_keys);
        team.hand_over(smem, work, place.stage);
        Kernel::Memory::end_work();
        ptx::bar_sync();  // all teams have handed over
        output.add_teams();
        ptx::bar_sync();  // what they handed over has been read: copies may follow
        team.forget();
        ++work.slice;
    }
    ring = team.ring();
    output.add_slices(count);
}

template <class Kernel>
FS_DEVICE void run(const typename Kernel::Args& args, SmemAddr smem) {
    static_assert(Kernel::valid());
    DecodeQueue<Kernel> queue(args);
    DecodeWork work;
    typename Kernel::Memory::Ring ring{};
    if constexpr (Kernel::kConfig.persistent) {
        _Pragma("unroll 1") for (u32 n = ptx::ctaid_x(); queue.find(n, work); n += gridDim.x) {
            compute<Kernel>(args, work, smem, ring);
            Kernel::Memory::end_work();
            ptx::bar_sync();  // what the teams handed over has been read
        }
    } else if constexpr (Kernel::kRuns) {
        RunQueue<Kernel> runs(args);
        i32 count;
        _Pragma("unroll 1") while (runs.find(work, count)) {
            compute_run<Kernel>(args, work, count, smem, ring);
            ptx::bar_sync();  // Q, and the word for all threads, have been read
        }
    } else if constexpr (Kernel::kPlaced) {
        if (queue.find_placed(work)) compute<Kernel>(args, work, smem, ring);
    } else {
        if (queue.find(ptx::ctaid_x(), work)) compute<Kernel>(args, work, smem, ring);
    }
}

}  // namespace flashsmith::decode
