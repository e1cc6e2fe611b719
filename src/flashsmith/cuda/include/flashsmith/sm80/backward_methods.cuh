// What C++ derives from the fields of a backward kernel's configuration: included inside the
// struct, whose fields are written from kernels/sm80_backward/parts.py. `owned` rows stay for the
// whole kernel; `walked` ones are a tile of the other side.

constexpr int threads() const { return n_warps * 32; }
constexpr int rows_per_warp() const { return owned() / n_warps; }
constexpr int stages() const { return buffered ? 2 : 1; }

// Registers of a thread: gradients, then S and dP of `columns` and what multiplies them.
constexpr int gradient_registers() const {
    return gradients_held() * rows_per_warp() * d_head / 32;
}
constexpr int step_registers(int columns) const {
    return gradient_registers() + rows_per_warp() * columns / 16 + rows_per_warp() / 4 + 4;
}

// Rows of a walked tile whose scores a warp holds at a time: as many as fit, 16 at least. Elements
// of a bias and their addresses take registers too: without fewer rows ptxas spills.
constexpr int step_rows(bool has_bias) const {
    int rows = walked();
    while (rows > 16 && step_registers(rows) > (has_bias ? 180 : 208)) rows /= 2;
    return rows;
}

// Blocks that an SM's 65,536 registers hold at 255 a thread.
constexpr int min_blocks() const { return threads() > 128 ? 1 : 256 / threads(); }
