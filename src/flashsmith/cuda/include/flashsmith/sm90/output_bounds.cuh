// Where an output ends, for stores from registers.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::sm90 {

// How many rows and columns of an output there are.
struct OutputBounds {
    i32 row_end, column_end;

    FS_DEVICE i32 rows() const { return row_end; }
    FS_DEVICE i32 columns() const { return column_end; }
};

}  // namespace flashsmith::sm90
