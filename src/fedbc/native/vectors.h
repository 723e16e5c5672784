// Vectors of floats, in the notation of GCC and Clang, which any processor understands.
#pragma once

#include <cstdint>
#include <vector>

namespace {

constexpr int LANES = 8;  // floats of a vector

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef Floats FloatsAnywhere __attribute__((aligned(4), may_alias));
typedef Ints IntsAnywhere __attribute__((aligned(4), may_alias));

inline Floats load(const float* from) {
  Floats value = *reinterpret_cast<const FloatsAnywhere*>(from);
#if defined(__AVX__)
  asm("" : "+x"(value));  // else GCC reads it from memory again for each multiplication
#endif
  return value;
}
inline Ints load(const int32_t* from) { return *reinterpret_cast<const IntsAnywhere*>(from); }
inline void store(float* to, Floats value) { *reinterpret_cast<FloatsAnywhere*>(to) = value; }
inline void store(int32_t* to, Ints value) { *reinterpret_cast<IntsAnywhere*>(to) = value; }

// Whether a comparison holds anywhere.
inline bool any(Ints holds) {
  typedef int64_t Pairs __attribute__((vector_size(4 * LANES)));
  const Pairs pairs = reinterpret_cast<Pairs>(holds);
  return (pairs[0] | pairs[1] | pairs[2] | pairs[3]) != 0;
}

// Calls `at` with the beginnings of vectors that cover n floats; the last two may overlap.
template <class At>
inline __attribute__((always_inline)) void each_vector(int64_t n, At at) {
  int64_t k = 0;
  for (; k + LANES <= n; k += LANES) at(k);
  if (k < n) at(n - LANES);
}

// Memory that a thread keeps from call to call; fresh pages would cost as much as the work on them. It is aligned only
// as floats are.
template <int PURPOSE>
float* workspace(int64_t size) {
  static thread_local std::vector<float> kept;
  if (static_cast<int64_t>(kept.size()) < size) kept.resize(size);
  return kept.data();
}

}  // namespace
