// The element types of Q, K, V and O, and the one way to say that a field must be given.
#pragma once

namespace flashsmith {

// The numbers of torch's ScalarType.
enum class DType : int { kFP16 = 5, kBF16 = 15 };

// Declared and never defined: a field that an initialiser leaves out is then a compile error.
template <class T>
T required();

}  // namespace flashsmith
