// What C++ derives from the fields of Sm80BlocksConfig: included inside the struct.

constexpr int threads() const { return n_warps * 32; }
constexpr int stages() const { return buffered ? 2 : 1; }

// Warps that own keys: with roles, each with another that has the same.
constexpr int owners() const { return roles ? n_warps / 2 : n_warps; }
constexpr int keys_per_warp() const { return B_c / owners(); }
constexpr int gradients_held() const { return roles ? 1 : 2; }

// Registers of a thread: gradients, then S and dP, or one of them, of `columns`, and operands.
constexpr int gradient_registers() const {
    return gradients_held() * keys_per_warp() * d_head / 32;
}
constexpr int step_registers(int columns) const {
    return gradient_registers() + gradients_held() * keys_per_warp() * columns / 32 +
           keys_per_warp() / 4 + 4;
}

// Rows of a q tile whose scores a warp holds at a time: as many as fit, 16 at least. With roles all
// must fit: `Sm80BlocksConfig.tile_registers` asks the same of `B_r`.
constexpr int step_rows() const {
    int rows = B_r;
    while (rows > 16 && step_registers(rows) > 208) rows /= 2;
    return rows;
}

// Warps that multiply dQ. With roles and turns they are those of P: the others wait for turns.
constexpr int dq_warps() const { return roles && !unordered ? owners() : n_warps; }
constexpr bool multiplies_dq(bool makes_p) const { return makes_p || dq_warps() == n_warps; }

// A warp's part of dQ of a q tile, and columns of it that are multiplied at a time.
constexpr int dq_rows() const { return 32; }
constexpr int dq_columns() const { return d_head * (B_r / dq_rows()) / dq_warps(); }
constexpr int dq_part_columns() const { return dq_columns() < 64 ? dq_columns() : 64; }

// K and V stay; Q, dO, 8 bytes of statistics a row and dS have stages; with roles, P in float32.
constexpr int smem_bytes(int element_bytes = 2) const {
    const int rows = B_r * (2 * d_head * element_bytes + 8);
    const int scores = B_r * B_c;
    return 2 * B_c * d_head * element_bytes + stages() * (rows + scores * element_bytes) +
           (roles ? 4 * scores : 0);
}

// Blocks that an SM's 65,536 registers hold at 255 a thread.
constexpr int min_blocks() const { return threads() > 128 ? 1 : 256 / threads(); }
