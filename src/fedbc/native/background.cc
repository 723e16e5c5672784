// Products with images most of whose pixels have one value, the background b; `fedbc.models.background` calls it.
//
// With x = b + s, where s is mostly zeros,
//
//     x w = b · (sum of the rows of w) + s w        xᵀ d = b · (sum of the rows of d) + sᵀ d
//
// for x (n, features), w (features, outputs) and d (n, outputs). Both are sums of rows with factors from s, made for a
// few rows of the result at once; where their factors are all zero, a row is left out. In the first those are a few
// images, in the second a few pixels side by side.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int TILE = 5;                 // rows of a result that are made at once
constexpr int VECTORS = 2;              // vectors of each that are in registers at once
constexpr int WIDTH = VECTORS * LANES;  // the fewest outputs

using Matrix = ffi::Buffer<ffi::F32, 2>;

// The rows that take part in R rows of a result, each with its R factors.
template <int R>
struct Terms {
  int32_t* row;
  float (*factors)[R];
  int64_t count = 0;

  explicit Terms(int64_t most)
      : row(reinterpret_cast<int32_t*>(workspace<0>(most + 1))),
        factors(reinterpret_cast<float(*)[R]>(workspace<1>((most + 1) * R))) {}

  // Row `number` with factors x[r · apart] − b, unless it does not differ; without a branch, which nobody could predict.
  void add(int64_t number, const float* x, int64_t apart, float b, bool differs) {
    row[count] = number;
    for (int r = 0; r < R; ++r) factors[count][r] = x[r * apart] - b;
    count += differs;
  }
};

// Whether one of R numbers is not b, bit by bit, which is faster than as floats.
template <int R>
bool differ(const float* x, int64_t apart, float b) {
  int32_t bits = 0, background, here;
  std::memcpy(&background, &b, sizeof b);
  for (int r = 0; r < R; ++r) {
    std::memcpy(&here, x + r * apart, sizeof here);
    bits |= here ^ background;
  }
  return bits != 0;
}

// result[r] = base + Σ factors[r] · rows, for R rows of the result.
template <int R>
void sum_up(float* result, const Terms<R>& terms, const float* rows, const float* base, int64_t outputs) {
  for (int64_t j = 0; j < outputs; j += WIDTH) {
    j = std::min(j, outputs - WIDTH);  // the last piece may begin in the one before it
    Floats sum[R][VECTORS];
    for (int v = 0; v < VECTORS; ++v)
      for (int r = 0; r < R; ++r) sum[r][v] = load(base + j + v * LANES);
    for (int64_t k = 0; k < terms.count; ++k) {
      const float* row = rows + terms.row[k] * outputs + j;
      Floats here[VECTORS];
      for (int v = 0; v < VECTORS; ++v) here[v] = load(row + v * LANES);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < VECTORS; ++v) sum[r][v] += terms.factors[k][r] * here[v];
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < VECTORS; ++v) store(result + r * outputs + j + v * LANES, sum[r][v]);
  }
}

// b · (sum of the rows)
const float* background_times(float b, Matrix matrix) {
  const int64_t count = matrix.dimensions()[0], outputs = matrix.dimensions()[1];
  float* __restrict sum = workspace<2>(outputs);
  std::fill_n(sum, outputs, 0.0f);
  const float* row = matrix.typed_data();
  for (int64_t k = 0; k < count; ++k, row += outputs)
    for (int64_t j = 0; j < outputs; ++j) sum[j] += row[j];
  for (int64_t j = 0; j < outputs; ++j) sum[j] *= b;
  return sum;
}

// Any value is right; the first pixel is in a corner, where there seldom is anything to be seen.
float background_of(Matrix x) {
  const float corner = x.element_count() > 0 ? x.typed_data()[0] : 0.0f;
  return std::isfinite(corner) ? corner : 0.0f;
}

// Calls `at` with whole tiles of `count` rows of a result, then with those that are left, one by one.
template <class At>
void each_tile(int64_t count, At at) {
  int64_t i = 0;
  for (; i + TILE <= count; i += TILE) at(std::integral_constant<int, TILE>(), i);
  for (; i < count; ++i) at(std::integral_constant<int, 1>(), i);
}

template <int R>
void images_times(float* y, const float* x, const float* w, const float* base, float b, int64_t features,
                  int64_t outputs) {
  Terms<R> terms(features);
  int64_t p = 0;
  for (; p + FEW <= features; p += FEW) {
    FewInts differs = {};
    for (int r = 0; r < R; ++r) differs |= load<FEW>(x + r * features + p) != b;
    if (any(differs))
      for (int k = 0; k < FEW; ++k) terms.add(p + k, x + p + k, features, b, differs[k]);
  }
  for (; p < features; ++p) terms.add(p, x + p, features, b, differ<R>(x + p, features, b));
  sum_up(y, terms, w, base, outputs);
}

ffi::Error product(Matrix x, Matrix w, ffi::Result<Matrix> y) {
  const int64_t n = x.dimensions()[0], features = x.dimensions()[1], outputs = w.dimensions()[1];
  const float b = background_of(x);
  const float* base = background_times(b, w);
  each_tile(n, [&](auto tile, int64_t i) {
    images_times<tile()>(y->typed_data() + i * outputs, x.typed_data() + i * features, w.typed_data(), base, b,
                         features, outputs);
  });
  return ffi::Error::Success();
}

template <int R>
void pixels_times(float* dw, const float* x, const float* d, const float* base, float b, int64_t n, int64_t features,
                  int64_t outputs) {
  Terms<R> terms(n);
  for (int64_t e = 0; e < n; ++e) terms.add(e, x + e * features, 1, b, differ<R>(x + e * features, 1, b));
  sum_up(dw, terms, d, base, outputs);
}

ffi::Error weight_gradient(Matrix x, Matrix d, ffi::Result<Matrix> dw) {
  const int64_t n = x.dimensions()[0], features = x.dimensions()[1], outputs = d.dimensions()[1];
  const float b = background_of(x);
  const float* base = background_times(b, d);
  each_tile(features, [&](auto tile, int64_t p) {
    pixels_times<tile()>(dw->typed_data() + p * outputs, x.typed_data() + p, d.typed_data(), base, b, n, features,
                         outputs);
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_background_product, product,
                              ffi::Ffi::Bind().Arg<Matrix>().Arg<Matrix>().Ret<Matrix>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_background_weight_gradient, weight_gradient,
                              ffi::Ffi::Bind().Arg<Matrix>().Arg<Matrix>().Ret<Matrix>());
