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

    // The elements of one row tile, column tile after column tile.
    FS_DEVICE float (&row_tile(int i))[4 * kColTiles] {
        return reinterpret_cast<float (&)[4 * kColTiles]>(at[i]);
    }

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

// Which 8 x 8 matrix of a 16 x 16 piece goes to which register of ldmatrix.x4: the two registers of
// a B operand must adjoin.
//
//   kRowsFirst:  0 2     A of mma, and B read transposed      kColsFirst:  0 1     B read as it
//   lies
//                1 3                                                       2 3
enum class MatrixOrder { kRowsFirst, kColsFirst };

// Where a lane reads 16 x 16 pieces of a tile.
//
// The chunk of column span s is (2 s + lane's) ^ (row % 8): only its two middle bits depend on both
// s and the lane. So four addresses, kept in registers, and constants reach every span.
template <class Tile, MatrixOrder kOrder>
class FragmentReader {
  public:
    // `first_chunk` is a multiple of as many chunks as the spans that are read have.
    FS_DEVICE FragmentReader(SmemAddr tile, u32 first_row, u32 first_chunk = 0) {
        const u32 lane = threadIdx.x % kWarpLanes;
        const u32 inner = lane / 8 % 2;
        const u32 outer = lane / 16;
        const u32 row = lane % 8 + 8 * (kOrder == MatrixOrder::kRowsFirst ? inner : outer);
        const u32 chunk = kOrder == MatrixOrder::kRowsFirst ? outer : inner;
        const SmemAddr start = tile + Tile::offset(first_row + row, first_chunk + chunk);
        FS_UNROLL
        for (int i = 0; i < kAddresses; ++i) address_[i] = {start.value ^ (i * kSpanBytes)};
    }

    // The piece `row_span` spans below and `col_span` spans right of the first.
    FS_DEVICE void read(u32 (&dst)[4], int row_span, int col_span) const {
        ptx::ldmatrix_x4(dst, at(row_span, col_span));
    }
    FS_DEVICE void read_transposed(u32 (&dst)[4], int row_span, int col_span) const {
        ptx::ldmatrix_x4_trans(dst, at(row_span, col_span));
    }

    // A reader of the same tile that starts `rows` rows lower.
    FS_DEVICE FragmentReader below(u32 rows) const { return further(rows * Tile::kRowBytes); }

    // A reader of a tile that lies `bytes` further.
    FS_DEVICE FragmentReader further(u32 bytes) const {
        FragmentReader reader = *this;
        FS_UNROLL
        for (int i = 0; i < kAddresses; ++i) reader.address_[i] = address_[i] + bytes;
        return reader;
    }

  private:
    static constexpr int kSpanBytes = kMatrixSpan * kElementBytes;
    static constexpr int kAddresses =
        Tile::kSwizzled ? Tile::kSwizzleRows * kChunkBytes / kSpanBytes : 1;
    // To the spans behind those: in the same row, or in the next panel.
    static constexpr int kGroupBytes =
        Tile::kPanelBytes ? Tile::kPanelBytes : kAddresses * kSpanBytes;

    FS_DEVICE SmemAddr at(int row_span, int col_span) const {
        return address_[col_span % kAddresses] +
               (row_span * kMatrixSpan * Tile::kRowBytes + col_span / kAddresses * kGroupBytes);
    }

    SmemAddr address_[kAddresses];
};

}  // namespace flashsmith
