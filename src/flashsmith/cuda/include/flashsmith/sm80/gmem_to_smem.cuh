// Copies tiles from global to shared memory: by cp.async, or through registers.
#pragma once

#include "flashsmith/base/tensor_arg.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::sm80 {

// What of a tile exists in global memory; the rest is filled with zeros.
struct TileBounds {
    int rows;     // the first `rows` rows
    bool column;  // whether the chunk column of this thread does
};

// What a copy has to check.
struct CopyChecks {
    bool rows;
    bool columns;
};

// One thread's part in copying the tiles of a tensor, the last tile first.
//
// A thread keeps its chunk column and takes every kRowStep-th row, from the bottom of a tile to its
// top. Tiles adjoin, so after a tile the pointer stands where the tile above begins.
template <class Tile, int kThreads>
class TileStream {
  public:
    static constexpr int kRowStep = kThreads / Tile::kChunks;
    static constexpr int kPasses = Tile::kRows / kRowStep;

    static_assert(kThreads % Tile::kChunks == 0, "a pass of all threads must copy whole rows.");
    static_assert(Tile::kRows % kRowStep == 0, "a tile must be a whole number of passes.");

    // Starts at the tile whose last row is `end_row` - 1.
    FS_DEVICE TileStream(const TensorArg& tensor, i64 batch, i64 head, i64 end_row)
        : row_(threadIdx.x / Tile::kChunks), chunk_(threadIdx.x % Tile::kChunks) {
        const i64 element = batch * tensor.batch_stride + head * tensor.head_stride +
                            (end_row - kRowStep + row_) * tensor.seq_stride +
                            chunk_ * kChunkElements;
        source_ = tensor.address + element * kElementBytes;
        step_bytes_ = tensor.seq_stride * (kRowStep * kElementBytes);
    }

    // Passes by the next `count` tiles.
    FS_DEVICE void skip(i64 count) { source_ -= count * kPasses * step_bytes_; }

    // Begins further right; `columns` is a multiple of a chunk's.
    FS_DEVICE void skip_columns(int columns) { source_ += columns * kElementBytes; }

    FS_DEVICE bool column_exists(int d_head) const { return chunk_ * kChunkElements < d_head; }

    // Starts the copy of the next tile; it has landed after a commit and a wait.
    template <CopyChecks kChecks>
    FS_DEVICE void copy_async(SmemAddr tile, const TileBounds& bounds) {
        const SmemAddr start = tile + Tile::offset(row_, chunk_);
        FS_UNROLL
        for (int pass = kPasses - 1; pass >= 0; --pass) {
            if constexpr (kChecks.rows || kChecks.columns) {
                ptx::cp_async_16b_or_zero(at(start, pass), source_, exists<kChecks>(pass, bounds));
            } else {
                ptx::cp_async_16b(at(start, pass), source_);
            }
            source_ -= step_bytes_;
        }
    }

    // Copies the next tile through registers, a few chunks at a time.
    template <CopyChecks kChecks>
    FS_DEVICE void copy_sync(SmemAddr tile, const TileBounds& bounds) {
        constexpr int kBatch = kPasses < 4 ? kPasses : 4;  // 16 registers
        const SmemAddr start = tile + Tile::offset(row_, chunk_);
        FS_UNROLL
        for (int last = kPasses - 1; last >= 0; last -= kBatch) {
            Chunk held[kBatch];
            FS_UNROLL
            for (int i = 0; i < kBatch; ++i) {
                held[i] = {{0, 0, 0, 0}};
                if (exists<kChecks>(last - i, bounds)) held[i] = ptx::ld_global_16b(source_);
                source_ -= step_bytes_;
            }
            FS_UNROLL
            for (int i = 0; i < kBatch; ++i) ptx::st_shared_16b(at(start, last - i), held[i]);
        }
    }

  private:
    // The swizzle of row_ + pass * kRowStep is that of row_ XOR a constant: row_ < kRowStep, and
    // both are powers of two.
    FS_DEVICE static SmemAddr at(SmemAddr start, int pass) {
        const u32 turn = Tile::kSwizzled ? pass * kRowStep % Tile::kSwizzleRows * kChunkBytes : 0;
        return SmemAddr{start.value ^ turn} + pass * kRowStep * Tile::kRowBytes;
    }

    template <CopyChecks kChecks>
    FS_DEVICE bool exists(int pass, const TileBounds& bounds) const {
        const bool row = !kChecks.rows || static_cast<int>(row_) + pass * kRowStep < bounds.rows;
        return row && (!kChecks.columns || bounds.column);
    }

    u64 source_;  // the chunk that this thread copies next
    i64 step_bytes_;
    u32 row_;
    u32 chunk_;
};

}  // namespace flashsmith::sm80
