// What C++ derives from the fields of BlockListConfig: included inside the struct.

constexpr int threads() const { return n_threads; }
constexpr int min_blocks() const { return 1; }
constexpr int smem_bytes() const { return 4 * (n_threads + n_threads / 32); }
