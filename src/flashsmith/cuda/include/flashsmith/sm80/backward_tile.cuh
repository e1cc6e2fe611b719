// Parts that both backward kernels use: pairs of tiles that come in by cp.async, gradients that go
// out through the owned rows' room.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/tile_list.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/sm80/gmem_to_smem.cuh"
#include "flashsmith/tile/fragment.cuh"
#include "flashsmith/tile/smem_tile.cuh"

namespace flashsmith::sm80 {

// Starts the copy of one tile whose rows begin at `first_row`; rows from `end_row` on are zeros.
template <class Tile, int kThreads, CopyChecks kChecks>
FS_DEVICE void copy_tile(SmemAddr room, const TensorArg& tensor, i64 batch, i64 head, i32 first_row,
                         i32 end_row, i32 d_head) {
    TileStream<Tile, kThreads> stream(tensor, batch, head,
                                      static_cast<i64>(first_row) + Tile::kRows);
    const TileBounds bounds{end_row - first_row, stream.column_exists(d_head)};
    stream.template copy_async<kChecks>(room, bounds);
}

// Where a gradient's rows belong.
struct RowsPosition {
    i64 batch;
    i64 head;
    i32 first_row;
    i32 end_row;  // of the sequence
};

// A warp stages its rows, from `warp_row` on, in the room of rows that nobody else reads any more,
// then stores them 16 bytes a lane.
template <class Tile, DType kDType, CopyChecks kChecks, int kRowTiles, int kColTiles>
FS_DEVICE void store_gradient_from(int warp_row, const Accumulator<kRowTiles, kColTiles>& acc,
                                   float factor, SmemAddr room, const TensorArg& tensor,
                                   const RowsPosition& at, i32 d_head) {
    constexpr int kWarpRows = kRowTiles * kMatrixSpan;
    constexpr int kRowsAtOnce = kWarpLanes / Tile::kChunks > 1 ? kWarpLanes / Tile::kChunks : 1;
    const int lane = threadIdx.x % kWarpLanes;
    FS_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
        FS_UNROLL
        for (int n = 0; n < kColTiles; ++n) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + i * kMatrixSpan + half * 8 + lane / 4;
                const u32 pair =
                    ptx::pack2<kDType>(ptx::mul_rn(acc.at[i][n][2 * half], factor),
                                       ptx::mul_rn(acc.at[i][n][2 * half + 1], factor));
                ptx::st_shared_b32(room + Tile::offset(row, n) + lane % 4 * 4, pair);
            }
        }
    }
    ptx::bar_warp_sync();  // the warp's rows are staged

    const int chunk = lane % Tile::kChunks;
    const bool column = !kChecks.columns || chunk * kChunkElements < d_head;
    FS_UNROLL
    for (int done = 0; done < kWarpRows; done += kRowsAtOnce) {
        const int row = warp_row + done + lane / Tile::kChunks;
        const Chunk held = ptx::ld_shared_16b(room + Tile::offset(row, chunk));
        const i64 element = at.batch * tensor.batch_stride + at.head * tensor.head_stride +
                            (static_cast<i64>(at.first_row) + row) * tensor.seq_stride +
                            chunk * kChunkElements;
        const bool exists = !kChecks.rows || at.first_row + row < at.end_row;
        ptx::st_global_16b_if(tensor.address + element * kElementBytes, held, exists && column);
    }
}

// The same of warps that own rows one after the other, in room that each has read alone.
template <class Tile, DType kDType, CopyChecks kChecks, int kRowTiles, int kColTiles>
FS_DEVICE void store_gradient(const Accumulator<kRowTiles, kColTiles>& acc, float factor,
                              SmemAddr room, const TensorArg& tensor, const RowsPosition& at,
                              i32 d_head) {
    const int warp_row = threadIdx.x / kWarpLanes * (kRowTiles * kMatrixSpan);
    store_gradient_from<Tile, kDType, kChecks>(warp_row, acc, factor, room, tensor, at, d_head);
}

// Removes keys that rows of a warp do not see, and those beyond the sequence.
template <class Mask, int kRowTiles, int kColTiles, class Sequence>
FS_DEVICE void hide_keys(Accumulator<kRowTiles, kColTiles>& s, const Sequence& sequence,
                         const i32& first_row, const i32& warp_row, i32 first_key) {
    const i32 lane = threadIdx.x % kWarpLanes;
    FS_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 row = first_row + warp_row + i * kMatrixSpan + half * 8 + lane / 4;
            const i32 seen = Mask::seen_by(sequence, row);
            hide_columns_of_row<0, 4 * kColTiles>(s.row_tile(i), half,
                                                  seen - first_key - lane % 4 * 2);
            if constexpr (Mask::kHasLeft) {
                const i32 first = Mask::first_seen(sequence, row);
                hide_columns_before(s.row_tile(i), half, first - first_key - lane % 4 * 2);
            }
        }
    }
}

// Which block of rows of which head a cta owns: all blocks of a head, then the next head. Where
// they have uneven work, as under a causal mask: block by block over all heads, most work first.
struct OwnedBlock {
    struct Sequence {};  // the kernel's arguments are the sequence
    u32 batch;
    u32 head;
    u32 block;
    Sequence sequence = {};
};

template <bool kUneven, bool kLastFirst>
FS_DEVICE OwnedBlock owned_block(u32 cta, u32 blocks, u32 heads, u32 batches) {
    const u32 all_heads = heads * batches;
    const u32 turn = kUneven ? cta / all_heads : cta % blocks;
    const u32 head = kUneven ? cta % all_heads : cta / blocks;
    return {head / heads, head % heads, kLastFirst ? blocks - 1 - turn : turn};
}

// The same of sequences that have lengths of their own.
struct ListedBlock {
    using Sequence = ListedSequence;
    u32 batch;
    u32 head;
    u32 block;
    Sequence sequence;
    i32 table_row;  // of tables that have one for each sequence
    bool exists;  // a list may be shorter than the grid: the host only knows how long it is at most
};

// The row of a block's sequence in tables that have one for each.
FS_DEVICE u32 table_row_of(const OwnedBlock& own) { return own.batch; }
FS_DEVICE u32 table_row_of(const ListedBlock& own) { return static_cast<u32>(own.table_row); }

template <bool kOfAList>
struct OwnedOf {
    using Type = OwnedBlock;
};
template <>
struct OwnedOf<true> {
    using Type = ListedBlock;
};
template <Needs kNeeds>
using OwnedBy = typename OwnedOf<kListed<kNeeds>>::Type;

template <class Args>
FS_DEVICE const Args& sequence_of(const Args& args, const OwnedBlock::Sequence&) {
    return args;
}
template <class Args>
FS_DEVICE const ListedSequence& sequence_of(const Args&, const ListedSequence& own) {
    return own;
}

// The q tile of a cta, from the list of q tiles.
template <bool kAlike, int kRows, class Args>
FS_DEVICE ListedBlock listed_q_tile(const Args& args, u32 cta) {
    const TileList list(args.q_list);
    if (cta >= static_cast<u32>(list.entries) * args.heads) return {};
    i32 head;
    const ListedTile found = list.template at<kAlike>(cta, args.heads, kRows, head);
    return {0,
            static_cast<u32>(head),
            static_cast<u32>(found.row) / kRows,
            listed_sequence(args, found),
            found.table_row(),
            true};
}

// The kv block of a cta, from the list of kv blocks: one of q tiles in which queries and keys have
// changed places, so that it also holds the keys of no sequence, which have no queries.
template <int kRows, class Args>
FS_DEVICE ListedBlock listed_kv_block(const Args& args, u32 cta) {
    const TileList list(args.k_list);
    if (cta >= static_cast<u32>(list.entries) * args.kv_heads) return {};
    i32 head;
    ListedTile found = list.template at<true>(cta, args.kv_heads, kRows, head);
    const u32 block = static_cast<u32>(found.row) / kRows;
    return {0,
            static_cast<u32>(head),
            block,
            listed_sequence(args, transposed(found)),
            found.table_row(),
            true};
}

}  // namespace flashsmith::sm80
