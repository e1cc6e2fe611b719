// What the backward kernel on wgmma needs to know of every query row, laid out as in its shared
// memory, `statistics_bytes` for each q tile:
//
//   fold:   a = -LSE / scale, b = -delta, each 16 bytes: three bf16 numbers whose sum it is, zeros
//           | a of row 0 | a of row 1 | … | b of row 0 | …     an operand of wgmma, no swizzle
//   else:   a = log2(e) LSE, b = delta, float32, in the order in which the lanes of a quad, which
//           hold columns 8 j + 2 lane + e of an accumulator, load four at a time
//
// delta = sum of dO ∘ O - dLSE. Rows that do not exist or see no key have a of ∓infinity: P = 0.
// Where sequences are packed, each has q tiles of its own (sm90/scratch_tiles.cuh).
// Counters are cleared too, and dQ's sums where nobody stores the first one.
#pragma once

#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/grid_dependency.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/sm90/scratch_tiles.cuh"

namespace flashsmith::sm90 {

// Three bf16 numbers, largest first, whose sum is x to 24 bits.
FS_DEVICE Chunk three_parts(float x) {
    u32 part[3];
    FS_UNROLL
    for (int i = 0; i < 3; ++i) {
        part[i] = ptx::cvt_rn_bf16x2(x, 0.0f) & 0xffff;
        x = ptx::sub_rn(x, __builtin_bit_cast(float, part[i] << 16));
    }
    return {{part[0] | part[1] << 16, part[2], 0, 0}};
}

template <Sm90RowsConfig kConfig, Needs kNeeds>
struct QueryRow {
    static constexpr int kTile = kConfig.q_tile_rows();

    const Sm90BackwardArgs& args;
    u32 batch_head, batch;
    i32 row;  // of its sequence
    ScratchTile of;

    FS_DEVICE bool exists() const {
        if constexpr (kListed<kNeeds>) return row < of.q_len;
        return row < args.q_len;
    }

    FS_DEVICE u64 address_of(const TensorArg& tensor, u32 chunk) const {
        const i64 element =
            batch * tensor.batch_stride + (batch_head - batch * args.heads) * tensor.head_stride +
            static_cast<i64>(row + of.q_begin) * tensor.seq_stride + chunk * kChunkElements;
        return tensor.address + element * kElementBytes;
    }

    // A lane's part of the sum of dO ∘ O.
    FS_DEVICE float product(u32 chunk) const {
        float sum = 0.0f;
        if (!exists() || (kNeeds.narrow_d && chunk * kChunkElements >= args.d_head)) return sum;
        const Chunk o = ptx::ld_global_16b(address_of(args.o, chunk));
        const Chunk d_o = ptx::ld_global_16b(address_of(args.d_o, chunk));
        FS_UNROLL
        for (int i = 0; i < 4; ++i) {
            float a[2], b[2];
            ptx::unpack2<kConfig.dtype>(a[0], a[1], o.word[i]);
            ptx::unpack2<kConfig.dtype>(b[0], b[1], d_o.word[i]);
            sum = ptx::fma_rn(a[0], b[0], sum);
            sum = ptx::fma_rn(a[1], b[1], sum);
        }
        return sum;
    }

    FS_DEVICE void store(float delta) const {
        float lse = kNegativeInfinity;
        if (exists()) {
            const i64 at = static_cast<i64>(batch_head) * args.q_len + row + of.q_begin;
            lse = ptx::ld_global_f32(args.lse + at);
            if (args.dlse != nullptr) {
                delta = ptx::sub_rn(delta, ptx::ld_global_f32(args.dlse + at));
            }
        }
        const bool sees_none = lse == kNegativeInfinity;
        const i32 tile = row / kTile + of.tiles_before, column = row % kTile;
        const u64 of_tile = reinterpret_cast<u64>(args.statistics) +
                            (static_cast<u64>(batch_head) * args.q_tiles + tile) *
                                static_cast<u64>(kConfig.statistics_bytes());
        if constexpr (kConfig.fold) {
            constexpr u32 kMinusInfinity = 0xff80;  // and its other parts are zero
            const Chunk shift = sees_none ? Chunk{{kMinusInfinity, 0, 0, 0}}
                                          : three_parts(ptx::mul_rn(lse, args.minus_inverse_scale));
            ptx::st_global_16b(of_tile + column * 16, shift);
            ptx::st_global_16b(of_tile + (kTile + column) * 16, three_parts(-delta));
        } else {
            const i32 group = column / 8;
            const i32 at = group / 2 * 16 + column / 2 % 4 * 4 + group % 2 * 2 + column % 2;
            float* const numbers = reinterpret_cast<float*>(of_tile);
            const float shift = sees_none ? -kNegativeInfinity : ptx::mul_rn(lse, kLog2E);
            ptx::st_global_f32_if(numbers + at, shift, true);
            ptx::st_global_f32_if(numbers + kTile + at, delta, true);
        }
    }
};

template <Sm90RowsConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_rows(const Sm90BackwardArgs& args) {
    constexpr int kLanes = kConfig.d_head / kChunkElements;  // of a row
    constexpr int kRows = kConfig.threads() / kLanes;        // of a cta
    static_assert(kLanes <= kWarpLanes, "a row must lie in one warp.");
    static_assert(kConfig.q_tile_rows() % kRows == 0, "a cta must lie in one q tile.");
    if constexpr (kConfig.early_start) ptx::launch_dependents();
    const u32 chunk = threadIdx.x % kLanes;
    const u32 ctas = args.q_tiles * (kConfig.q_tile_rows() / kRows);  // of one head
    u32 batch_head = ptx::ctaid_x() / ctas;
    u32 cta = ptx::ctaid_x() - batch_head * ctas;
    if (kConfig.heads_inner && args.o.head_stride < args.o.seq_stride) {
        const u32 rest = ptx::ctaid_x() / args.heads, batch = rest / ctas;
        batch_head = batch * args.heads + ptx::ctaid_x() - rest * args.heads;
        cta = rest - batch * ctas;
    }
    i32 first = cta * kRows;
    ScratchTile of{};
    if constexpr (kListed<kNeeds>) {
        constexpr i32 kTile = kConfig.q_tile_rows();
        of = ScratchTile::of_rows<kTile>(args, first / kTile);
        first = of.row + first % kTile;
    }
    const QueryRow<kConfig, kNeeds> row{args, batch_head, batch_head / args.heads,
                                        first + static_cast<i32>(threadIdx.x / kLanes), of};

    float delta = row.product(chunk);
    FS_UNROLL
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        delta = ptx::add_rn(delta, ptx::shfl_bfly(delta, distance));
    }
    if (chunk == 0 && (!kListed<kNeeds> || of.is_read)) row.store(delta);

    const u64 thread = static_cast<u64>(ptx::ctaid_x()) * kConfig.threads() + threadIdx.x;
    if (thread < args.n_counters) args.counters[thread] = 0;
    if constexpr (kConfig.unordered) {
        // As many threads as there are groups of 8 sums.
        const u64 sums = reinterpret_cast<u64>(args.dq_sums) + thread * 32;
        ptx::st_global_16b(sums, {{0, 0, 0, 0}});
        ptx::st_global_16b(sums + 16, {{0, 0, 0, 0}});
    }
}

}  // namespace flashsmith::sm90
