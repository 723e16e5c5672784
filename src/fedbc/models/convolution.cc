// A 5×5 convolution with 2×2 max-pooling, and its derivatives, for processors; `convolution.py` calls it.
//
// Arrays are (channels, height, width, n), the batch last. One pixel further along the width is then n floats further
// along a row, so a row of outputs is a sum of input rows, shifted by 0 to 4 pixels, each times one number of the
// kernel. Nothing is copied into windows, and nothing is multiplied by a zero of a widened kernel: 62 million
// operations a batch of 20 instead of 89. Sums for a few outputs and a few vectors are kept in registers.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int K = 5;           // the kernel's side
constexpr int BORDER = K - 1;  // what an image loses of its sides
constexpr int BLOCK = 6;       // outputs whose sums are in registers at once
constexpr int LANES = 8;       // floats of a vector

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

// Memory that a thread keeps from call to call; fresh pages would cost as much as the work on them. It is aligned only
// as floats are.
template <int PURPOSE>
float* workspace(int64_t size) {
  static thread_local std::vector<float> kept;
  if (static_cast<int64_t>(kept.size()) < size) kept.resize(size);
  return kept.data();
}

// Rows of images (channel, row, pixel · n), of which some outer pixels may be known to be zero.
struct Rows {
  const float* data;
  int64_t channels, per_channel, per_row, n;
  int64_t first_pixel, last_pixel;
};

// The kernel's rows that take part in a row of outputs.
struct Span {
  int begin, end;
};

// out[b][j] = Σ weights[channel][ky][kx][b] · rows[channel][ky][j + kx·n] for B outputs and V vectors of places from j.
template <int B, int V>
inline __attribute__((always_inline)) void sums(float* out, int64_t per_output, const Rows& rows, int64_t j,
                                                const float* weights, Span ky) {
  // Beyond these every pixel that would be read is zero.
  const int begin = std::max<int64_t>(0, rows.first_pixel - (j + V * LANES - 1) / rows.n);
  const int end = std::min<int64_t>(K, rows.last_pixel - j / rows.n);
  Floats sum[B][V] = {};
  for (int64_t channel = 0; channel < rows.channels; ++channel)
    for (int y = ky.begin; y < ky.end; ++y) {
      const float* x = rows.data + channel * rows.per_channel + y * rows.per_row + j + begin * rows.n;
      const float* w = weights + ((channel * K + y) * K + begin) * B;
      for (int k = begin; k < end; ++k, x += rows.n, w += B) {
        Floats here[V];
        for (int v = 0; v < V; ++v) here[v] = load(x + v * LANES);
        for (int b = 0; b < B; ++b)
          for (int v = 0; v < V; ++v) sum[b][v] += w[b] * here[v];
      }
    }
  for (int b = 0; b < B; ++b)
    for (int v = 0; v < V; ++v) store(out + b * per_output + v * LANES, sum[b][v]);
}

template <int B>
void row_of_block(float* out, int64_t per_output, const Rows& rows, int64_t length, const float* weights, Span ky) {
  constexpr int V = B > 4 ? 2 : B > 2 ? 3 : 4;  // as many sums as registers hold
  int64_t j = 0;
  for (; j + V * LANES <= length; j += V * LANES) sums<B, V>(out + j, per_output, rows, j, weights, ky);
  for (; j + LANES <= length; j += LANES) sums<B, 1>(out + j, per_output, rows, j, weights, ky);
  // The last vector begins where it ends with the row; what it writes again is the same.
  if (j < length) sums<B, 1>(out + length - LANES, per_output, rows, length - LANES, weights, ky);
}

// One row of `length` floats of every output; `weights` as `packed` lays them out.
void row_of_outputs(float* out, int64_t per_output, int64_t outputs, const Rows& rows, int64_t length,
                    const float* weights, Span ky) {
  for (int64_t o = 0; o < outputs; o += BLOCK, weights += BLOCK * rows.channels * K * K) {
    float* to = out + o * per_output;
    switch (std::min<int64_t>(BLOCK, outputs - o)) {
      case 1: row_of_block<1>(to, per_output, rows, length, weights, ky); break;
      case 2: row_of_block<2>(to, per_output, rows, length, weights, ky); break;
      case 3: row_of_block<3>(to, per_output, rows, length, weights, ky); break;
      case 4: row_of_block<4>(to, per_output, rows, length, weights, ky); break;
      case 5: row_of_block<5>(to, per_output, rows, length, weights, ky); break;
      default: row_of_block<BLOCK>(to, per_output, rows, length, weights, ky);
    }
  }
}

// weight(output, channel, ky, kx) in the order in which `sums` reads them.
template <class Weight>
std::vector<float> packed(int64_t outputs, int64_t channels, Weight weight) {
  std::vector<float> all;
  all.reserve(outputs * channels * K * K);
  for (int64_t o = 0; o < outputs; o += BLOCK)
    for (int64_t channel = 0; channel < channels; ++channel)
      for (int y = 0; y < K; ++y)
        for (int x = 0; x < K; ++x)
          for (int64_t b = o; b < std::min(o + BLOCK, outputs); ++b) all.push_back(weight(b, channel, y, x));
  return all;
}

// -1 where a is the maximum of both: of equal values the first counts, and what is not a number comes before all.
inline Ints comes_first(Floats a, Floats b) { return (a >= b) | (a != a); }

// Calls `at` with the beginnings of vectors that cover n floats; the last two may overlap.
template <class At>
inline __attribute__((always_inline)) void each_vector(int64_t n, At at) {
  int64_t k = 0;
  for (; k + LANES <= n; k += LANES) at(k);
  if (k < n) at(n - LANES);
}

using Values = ffi::Buffer<ffi::F32, 4>;
using Choice = ffi::Buffer<ffi::S32, 4>;  // which of its four places a pooled value is from: 0 1 above, 2 3 below

struct Shape {
  int64_t channels, height, width, n;
  explicit Shape(ffi::Span<const int64_t> d) : channels(d[0]), height(d[1]), width(d[2]), n(d[3]) {}
  int64_t row() const { return width * n; }
  int64_t image() const { return height * row(); }
};

ffi::Error pooled(Values x, Values w, ffi::Result<Values> y, ffi::Result<Choice> choice) {
  const Shape in(x.dimensions()), out(y->dimensions());
  const float* weights = w.typed_data();
  const auto order = packed(out.channels, in.channels, [&](int64_t o, int64_t c, int ky, int kx) {
    return weights[((o * in.channels + c) * K + ky) * K + kx];
  });
  const int64_t length = 2 * out.row();
  float* above = workspace<0>(2 * out.channels * length);
  float* below = above + out.channels * length;
  for (int64_t i = 0; i < out.height; ++i) {
    Rows rows{x.typed_data() + 2 * i * in.row(), in.channels, in.image(), in.row(), in.n, 0, in.width};
    row_of_outputs(above, length, out.channels, rows, length, order.data(), {0, K});
    rows.data += in.row();
    row_of_outputs(below, length, out.channels, rows, length, order.data(), {0, K});
    for (int64_t o = 0; o < out.channels; ++o)
      for (int64_t j = 0; j < out.width; ++j) {
        const float* a = above + o * length + 2 * j * out.n;
        const float* c = below + o * length + 2 * j * out.n;
        float* value = y->typed_data() + o * out.image() + i * out.row() + j * out.n;
        int32_t* which = choice->typed_data() + o * out.image() + i * out.row() + j * out.n;
        each_vector(out.n, [&](int64_t k) {
          const Floats p = load(a + k), q = load(a + out.n + k), r = load(c + k), s = load(c + out.n + k);
          const Ints left = comes_first(p, q), right = comes_first(r, s);
          const Floats first = left ? p : q, second = right ? r : s;
          const Ints upper = comes_first(first, second);
          store(value + k, upper ? first : second);
          store(which + k, upper ? left + 1 : right + 3);
        });
      }
  }
  return ffi::Error::Success();
}

// Undo the pooling of row i: two rows a channel, in which each number of dy is where the choice says, among zeros.
void spread(float* above, float* below, int64_t per_channel, const Shape& shape, const float* dy, const int32_t* choice,
            int64_t i) {
  for (int64_t o = 0; o < shape.channels; ++o)
    for (int64_t j = 0; j < shape.width; ++j) {
      const int64_t from = o * shape.image() + i * shape.row() + j * shape.n;
      const int64_t to = o * per_channel + 2 * j * shape.n;
      each_vector(shape.n, [&](int64_t k) {
        const Floats d = load(dy + from + k);
        const Ints which = load(choice + from + k);
        store(above + to + k, which == 0 ? d : Floats{});
        store(above + to + shape.n + k, which == 1 ? d : Floats{});
        store(below + to + k, which == 2 ? d : Floats{});
        store(below + to + shape.n + k, which == 3 ? d : Floats{});
      });
    }
}

// total[b][kx] += Σ_j d[b][j] · x[j + kx·n], lane by lane.
template <int B>
inline __attribute__((always_inline)) void products(float (*total)[K][LANES], const float* d, int64_t per_output,
                                                    const float* x, int64_t n, int64_t length) {
  Floats sum[B][K];
  for (int b = 0; b < B; ++b)
    for (int k = 0; k < K; ++k) sum[b][k] = load(total[b][k]);
  int64_t j = 0;
  for (; j + LANES <= length; j += LANES) {
    Floats here[B];
    for (int b = 0; b < B; ++b) here[b] = load(d + b * per_output + j);
    for (int k = 0; k < K; ++k) {
      const Floats shifted = load(x + j + k * n);
      for (int b = 0; b < B; ++b) sum[b][k] += here[b] * shifted;
    }
  }
  for (int b = 0; b < B; ++b)
    for (int k = 0; k < K; ++k) {
      store(total[b][k], sum[b][k]);
      for (int64_t rest = j; rest < length; ++rest) total[b][k][0] += d[b * per_output + rest] * x[rest + k * n];
    }
}

ffi::Error weight_gradient(Values x, Values dy, Choice choice, ffi::Result<Values> dw) {
  const Shape in(x.dimensions()), out(dy.dimensions());
  const int64_t length = 2 * out.row(), sums = in.channels * K * out.channels;
  float* above = workspace<0>(2 * out.channels * length);
  float* below = above + out.channels * length;
  auto total = reinterpret_cast<float(*)[K][LANES]>(workspace<1>(sums * K * LANES));
  std::fill_n(&total[0][0][0], sums * K * LANES, 0.0f);
  for (int64_t i = 0; i < out.height; ++i) {
    spread(above, below, length, out, dy.typed_data(), choice.typed_data(), i);
    for (int r = 0; r < 2; ++r)
      for (int64_t c = 0; c < in.channels; ++c)
        for (int ky = 0; ky < K; ++ky) {
          const float* row = x.typed_data() + c * in.image() + (2 * i + r + ky) * in.row();
          const float* d = r == 0 ? above : below;
          auto to = total + (c * K + ky) * out.channels;
          int64_t o = 0;
          for (; o + 2 <= out.channels; o += 2) products<2>(to + o, d + o * length, length, row, in.n, length);
          if (o < out.channels) products<1>(to + o, d + o * length, length, row, in.n, length);
        }
  }
  float* to = dw->typed_data();
  for (int64_t o = 0; o < out.channels; ++o)
    for (int64_t row = 0; row < in.channels * K; ++row)
      for (int kx = 0; kx < K; ++kx) {
        const float* lanes = total[row * out.channels + o][kx];
        float sum = 0;
        for (int lane = 0; lane < LANES; ++lane) sum += lanes[lane];
        *to++ = sum;
      }
  return ffi::Error::Success();
}

// A convolution of the spread dy, with zeros around it, with the kernel turned round.
ffi::Error input_gradient(Values w, Values dy, Choice choice, ffi::Result<Values> dx) {
  const Shape in(dx->dimensions()), out(dy.dimensions());
  const float* weights = w.typed_data();
  const auto order = packed(in.channels, out.channels, [&](int64_t c, int64_t o, int ky, int kx) {
    return weights[((o * in.channels + c) * K + BORDER - ky) * K + BORDER - kx];
  });
  const int64_t height = in.height - BORDER, row = (in.width + BORDER) * in.n, image = height * row;
  float* d = workspace<0>(out.channels * image);
  std::fill_n(d, out.channels * image, 0.0f);
  for (int64_t i = 0; i < out.height; ++i) {
    float* above = d + 2 * i * row + BORDER * in.n;
    spread(above, above + row, image, out, dy.typed_data(), choice.typed_data(), i);
  }
  for (int64_t y = 0; y < in.height; ++y) {
    const Rows rows{d + (y - BORDER) * row, out.channels, image, row, in.n, BORDER, in.width};
    const Span ky{static_cast<int>(std::max<int64_t>(0, BORDER - y)),
                  static_cast<int>(std::min<int64_t>(K, height + BORDER - y))};
    row_of_outputs(dx->typed_data() + y * in.row(), in.image(), in.channels, rows, in.row(), order.data(), ky);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_pooled, pooled,
                              ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Ret<Values>().Ret<Choice>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_weight_gradient, weight_gradient,
                              ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Arg<Choice>().Ret<Values>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_input_gradient, input_gradient,
                              ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Arg<Choice>().Ret<Values>());
