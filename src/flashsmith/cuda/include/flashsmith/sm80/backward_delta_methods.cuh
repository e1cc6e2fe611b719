// What C++ derives from the fields of Sm80DeltaConfig: included inside the struct.

constexpr int threads() const { return 256; }
constexpr int min_blocks() const { return 1; }
