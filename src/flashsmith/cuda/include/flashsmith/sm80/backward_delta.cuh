// What the backward kernels need to know of every query row: 8 bytes in scratch memory.
//
//   shift = -log2(e) LSE (P = 2^(c s + shift)),  delta = sum of dO ∘ O - dLSE
//
// Rows are padded to a multiple of kRowPadding a head, with shift -inf and delta 0: rows that a
// tile has beyond the sequence then have P = 0 and dS = 0.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/warp.cuh"

namespace flashsmith::sm80 {

template <Sm80DeltaConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_delta(const BackwardArgs& args) {
    constexpr int kLanes = kConfig.d_head / kChunkElements;  // of a row
    constexpr int kRows = kConfig.threads() / kLanes;        // of a cta
    static_assert(kLanes <= kWarpLanes, "a row must lie in one warp.");
    const u32 chunk = threadIdx.x % kLanes;
    const u32 blocks = args.padded_rows / kRows;
    const u32 head = ptx::ctaid_x() / blocks;  // of all sequences
    const i32 row = (ptx::ctaid_x() - head * blocks) * kRows + threadIdx.x / kLanes;
    const u32 batch = head / args.heads;
    const bool exists = row < args.q_len;
    if constexpr (kConfig.zeros) {
        const i64 first = static_cast<i64>(ptx::ctaid_x()) * kConfig.threads() + threadIdx.x;
        const u64 sums = reinterpret_cast<u64>(args.dq_sums) + first * (4 * kChunkElements);
        ptx::st_global_16b(sums, {{0, 0, 0, 0}});
        ptx::st_global_16b(sums + kChunkBytes, {{0, 0, 0, 0}});
    }
    if constexpr (kConfig.clears) {
        const u32 counter = ptx::ctaid_x() * kConfig.threads() + threadIdx.x;
        if (counter < static_cast<u32>(args.n_counters)) args.counters[counter] = 0;
    }
    if constexpr (kConfig.unseen_rows > 0) {
        // No kv block rounds dQ of a q tile that sees none.
        using Mask = flashsmith::Mask<kNeeds.causal, false, kNeeds.window_left>;
        const i32 tile = row / kConfig.unseen_rows * kConfig.unseen_rows;
        const i32 seen = Mask::seen_before(args, tile + kConfig.unseen_rows);
        const bool unseen = seen <= max(Mask::first_seen(args, tile), 0);
        const i64 element = batch * args.dq.batch_stride +
                            (head - batch * args.heads) * args.dq.head_stride +
                            row * args.dq.seq_stride + chunk * kChunkElements;
        const bool column = !kNeeds.narrow_d || chunk * kChunkElements < args.d_head;
        ptx::st_global_16b_if(args.dq.address + element * kElementBytes, {{0, 0, 0, 0}},
                              exists && unseen && column);
    }

    float sum = 0.0f;
    if (exists && (!kNeeds.narrow_d || chunk * kChunkElements < args.d_head)) {
        const auto place = [&](const TensorArg& tensor) {
            const i64 element = batch * tensor.batch_stride +
                                (head - batch * args.heads) * tensor.head_stride +
                                row * tensor.seq_stride + chunk * kChunkElements;
            return tensor.address + element * kElementBytes;
        };
        const Chunk o = ptx::ld_global_16b(place(args.o));
        const Chunk d_o = ptx::ld_global_16b(place(args.d_o));
        FS_UNROLL
        for (int i = 0; i < 4; ++i) {
            float a[2], b[2];
            ptx::unpack2<kConfig.dtype>(a[0], a[1], o.word[i]);
            ptx::unpack2<kConfig.dtype>(b[0], b[1], d_o.word[i]);
            sum = ptx::fma_rn(a[0], b[0], sum);
            sum = ptx::fma_rn(a[1], b[1], sum);
        }
    }
    FS_UNROLL
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        sum = ptx::add_rn(sum, ptx::shfl_bfly(sum, distance));
    }
    if (chunk != 0) return;
    float shift = kNegativeInfinity;
    if (exists) {
        const i64 at = static_cast<i64>(head) * args.q_len + row;
        const float lse = ptx::ld_global_f32(args.lse + at);
        if (args.dlse != nullptr) sum = ptx::sub_rn(sum, ptx::ld_global_f32(args.dlse + at));
        if (lse != kNegativeInfinity) shift = ptx::mul_rn(lse, -kLog2E);
    }
    const i64 at = static_cast<i64>(head) * args.padded_rows + row;
    ptx::st_global_f32x2(args.statistics + 2 * at, shift, sum);
}

}  // namespace flashsmith::sm80
