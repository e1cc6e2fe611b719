// What C++ derives from the fields of FlashForwardKernelConfig: included inside the struct, whose
// fields are written from kernels/sm80_forward/config.py.

constexpr int threads() const { return n_warps * 32; }
constexpr int rows_per_warp() const { return B_r / n_warps; }

// Columns of V and O that a cta computes: all, or the 256 that a warp's registers hold.
constexpr int v_cols() const { return d_head < 256 ? d_head : 256; }

// Q stays for the whole kernel and its room takes O at the end; K and V hold one block each.
constexpr int smem_bytes(int element_bytes = 2) const {
    return (B_r * d_head + B_c * (d_head + v_cols())) * element_bytes;
}

// How many blocks of this kernel the shared memory of one SM has room for.
constexpr int num_ctas_per_sm(int max_smem_bytes) const { return max_smem_bytes / smem_bytes(); }

// Registers of one thread by role; addresses, maxima and sums come on top.
constexpr int O_registers() const { return rows_per_warp() * v_cols() / 32; }
constexpr int Q_registers() const { return Q_mma_load_K_tiles ? 0 : rows_per_warp() * d_head / 64; }

// Columns of S that a warp holds at a time: as many of B_c as fit the registers beside O, a
// held Q, and one span of fragments; at least the 16 of one span.
constexpr int step_cols() const {
    int cols = B_c;
    while (cols > 16 && step_registers(cols) > 224) cols /= 2;
    return cols;
}
constexpr int step_registers(int cols) const {
    const int q_span = Q_mma_load_K_tiles ? rows_per_warp() / 4 : 0;
    return O_registers() + Q_registers() + rows_per_warp() * cols / 32 + q_span + cols / 4;
}

// Blocks that an SM's 65,536 registers hold, up to 16 warps: ptxas stays below the register
// count that follows. 28 more than a step needs suffice without spills (NVRTC 13.4).
constexpr int min_blocks() const {
    const int registers = (step_registers(step_cols()) + 28 + 7) / 8 * 8;
    const int blocks = 65536 / (threads() * registers);
    const int most = 512 / threads();
    return blocks < 1 ? 1 : blocks < most ? blocks : most;
}
