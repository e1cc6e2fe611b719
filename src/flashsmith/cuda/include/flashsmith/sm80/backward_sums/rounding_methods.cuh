// What C++ derives from the fields of Sm80RoundingConfig: included inside the struct.

constexpr int rows() const { return 64; }
constexpr int threads() const { return rows() / 16 * 32; }
constexpr int min_blocks() const { return 1; }
