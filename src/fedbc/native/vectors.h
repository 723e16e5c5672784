// Vectors of floats, in the notation of GCC and Clang, which any processor understands.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;      // floats of a vector
constexpr int REGISTERS = 32;  // vectors that the processor holds
#else
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#endif
constexpr int FEW = 8;  // floats of a short vector, for what is too short for the other

template <int N>
struct VectorsOf {
  typedef float Floats __attribute__((vector_size(4 * N)));
  typedef int32_t Ints __attribute__((vector_size(4 * N)));
};
using Floats = VectorsOf<LANES>::Floats;
using FewFloats = VectorsOf<FEW>::Floats;
using FewInts = VectorsOf<FEW>::Ints;

template <int N = LANES>
inline typename VectorsOf<N>::Floats load(const float* from) {
  typename VectorsOf<N>::Floats value;
  std::memcpy(&value, from, sizeof value);
  // Else GCC reads it from memory again for each multiplication.
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__AVX__)
  asm("" : "+x"(value));
#endif
  return value;
}
template <class Number, class Vector>
inline void store(Number* to, Vector value) {
  std::memcpy(to, &value, sizeof value);
}

// Whether a comparison holds anywhere.
inline bool any(FewInts holds) {
  typedef int64_t Pairs __attribute__((vector_size(4 * FEW)));
  const Pairs pairs = reinterpret_cast<Pairs>(holds);
  return (pairs[0] | pairs[1] | pairs[2] | pairs[3]) != 0;
}

// Calls `at` with the beginnings of short vectors that cover n floats; the last two may overlap.
template <class At>
inline __attribute__((always_inline)) void each_few(int64_t n, At at) {
  int64_t k = 0;
  for (; k + FEW <= n; k += FEW) at(k);
  if (k < n) at(n - FEW);
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
