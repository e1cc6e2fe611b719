// What C++ derives from the fields of Sm80BiasGradientConfig: included inside the struct.

constexpr int threads() const { return 128; }
constexpr int min_blocks() const { return 2; }  // more of them would spill
constexpr int B_r() const { return 64; }

// Q and dO, K and V of one head at a time.
constexpr int smem_bytes(int element_bytes = 2) const {
    return 2 * (B_r() + B_c) * d_head * element_bytes;
}
