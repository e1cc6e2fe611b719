// What a warp holds in registers, and where its lanes read it in shared memory.
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/ldmatrix.cuh"

namespace flashsmith {

// Rows, and columns of 16-bit elements, that one ldmatrix.x4 brings.
inline constexpr int kMatrixSpan = 16;

// kRowTiles x kColTiles fp32 tiles of 16 x 8: the result of mma.
template <int kRowTiles, int kColTiles>
struct Accumulator {
    float at[kRowTiles][kColTiles][4];

    FS_DEVICE void clear() {
        FS_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
            FS_UNROLL
            for (int n = 0; n < kColTiles; ++n) {
                FS_UNROLL
                for (int e = 0; e < 4; ++e) at[i][n][e] = 0.0f;
            }
        }
    }
};

// kSpans pieces of 16 x 16 16-bit elements: operands of mma.
template <int kSpans>
struct Fragments {
    u32 at[kSpans][4];
};

// Where a lane reads 16 x 16 pieces of a tile: lane l asks for row l % 16, chunk l / 16.
//
// The chunk of column span s is (2 s + l / 16) ^ (row % 8): only its two middle bits depend on both
// s and the lane. So four addresses, kept in registers, and constants reach every span.
template <class Tile>
class FragmentReader {
  public:
    FS_DEVICE FragmentReader(SmemAddr tile, u32 first_row) {
        const u32 lane = threadIdx.x % kWarpLanes;
        const SmemAddr start =
            tile + Tile::offset(first_row + lane % kMatrixSpan, lane / kMatrixSpan);
        FS_UNROLL
        for (int i = 0; i < kAddresses; ++i) address_[i] = {start.value ^ (i * kSpanBytes)};
    }

    // The piece `row_span` spans below and `col_span` spans right of the first.
    template <int kTileOffset = 0>
    FS_DEVICE void read(u32 (&dst)[4], int row_span, int col_span) const {
        ptx::ldmatrix_x4(dst, at(kTileOffset, row_span, col_span));
    }
    template <int kTileOffset = 0>
    FS_DEVICE void read_transposed(u32 (&dst)[4], int row_span, int col_span) const {
        ptx::ldmatrix_x4_trans(dst, at(kTileOffset, row_span, col_span));
    }

    // A reader of the same tile that starts `rows` rows lower.
    FS_DEVICE FragmentReader below(u32 rows) const {
        FragmentReader reader = *this;
        FS_UNROLL
        for (int i = 0; i < kAddresses; ++i) {
            reader.address_[i] = address_[i] + rows * Tile::kRowBytes;
        }
        return reader;
    }

  private:
    static constexpr int kSpanBytes = kMatrixSpan * kElementBytes;
    static constexpr int kAddresses =
        Tile::kSwizzled ? Tile::kSwizzleRows * kChunkBytes / kSpanBytes : 1;

    FS_DEVICE SmemAddr at(int tile_offset, int row_span, int col_span) const {
        return address_[col_span % kAddresses] +
               (tile_offset + row_span * kMatrixSpan * Tile::kRowBytes +
                col_span / kAddresses * kAddresses * kSpanBytes);
    }

    SmemAddr address_[kAddresses];
};

}  // namespace flashsmith
