// A 5×5 convolution with 2×2 max-pooling, and its derivatives, for processors; `fedbc.models.convolution` calls it.
//
// Forwards, arrays are (channels, height, width, n), the batch last. One pixel further along the width is then n floats
// further along a row, so a row of outputs is a sum of input rows, shifted by 0 to 4 pixels, each times one number of
// the kernel. Nothing is copied into windows, and nothing is multiplied by a zero of a widened kernel. Sums for a few
// outputs and a few vectors are kept in registers.
//
// Backwards, only one of a pool's four places has a slope, another one in each image, and behind a ReLU many have none.
// So the derivatives go from slope to slope, in images with the channels last, where a row of a window is 5 · channels
// floats one after another. That takes a quarter of the operations, or less.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int K = 5;      // the kernel's side
constexpr int BLOCK = 6;  // outputs whose sums are in registers at once

// Rows of images (channel, row, pixel · n).
struct Rows {
  const float* data;
  int64_t channels, per_channel, per_row, n;
};

// out[b][j] = Σ weights[channel][ky][kx][b] · rows[channel][ky][j + kx·n] for B outputs and V vectors of places from j.
template <int B, int V>
inline __attribute__((always_inline)) void sums(float* out, int64_t per_output, const Rows& rows, int64_t j,
                                                const float* weights) {
  Floats sum[B][V] = {};
  for (int64_t channel = 0; channel < rows.channels; ++channel)
    for (int ky = 0; ky < K; ++ky) {
      const float* x = rows.data + channel * rows.per_channel + ky * rows.per_row + j;
      for (int kx = 0; kx < K; ++kx, x += rows.n, weights += B) {
        Floats here[V];
        for (int v = 0; v < V; ++v) here[v] = load(x + v * LANES);
        for (int b = 0; b < B; ++b)
          for (int v = 0; v < V; ++v) sum[b][v] += weights[b] * here[v];
      }
    }
  for (int b = 0; b < B; ++b)
    for (int v = 0; v < V; ++v) store(out + b * per_output + v * LANES, sum[b][v]);
}

template <int B>
void row_of_block(float* out, int64_t per_output, const Rows& rows, int64_t length, const float* weights) {
  constexpr int V = (REGISTERS - 1) / (B + 1);  // as many as registers hold, with the sums and a factor
  int64_t j = 0;
  for (; j + V * LANES <= length; j += V * LANES) sums<B, V>(out + j, per_output, rows, j, weights);
  for (; j + LANES <= length; j += LANES) sums<B, 1>(out + j, per_output, rows, j, weights);
  // The last vector begins where it ends with the row; what it writes again is the same.
  if (j < length) sums<B, 1>(out + length - LANES, per_output, rows, length - LANES, weights);
}

// One row of `length` floats of every output; `weights` as `packed` lays them out.
void row_of_outputs(float* out, int64_t per_output, int64_t outputs, const Rows& rows, int64_t length,
                    const float* weights) {
  for (int64_t o = 0; o < outputs; o += BLOCK, weights += BLOCK * rows.channels * K * K) {
    float* to = out + o * per_output;
    switch (std::min<int64_t>(BLOCK, outputs - o)) {
      case 1: row_of_block<1>(to, per_output, rows, length, weights); break;
      case 2: row_of_block<2>(to, per_output, rows, length, weights); break;
      case 3: row_of_block<3>(to, per_output, rows, length, weights); break;
      case 4: row_of_block<4>(to, per_output, rows, length, weights); break;
      case 5: row_of_block<5>(to, per_output, rows, length, weights); break;
      default: row_of_block<BLOCK>(to, per_output, rows, length, weights);
    }
  }
}

// The kernel's numbers (output, channel, ky, kx) in the order in which `sums` reads them.
std::vector<float> packed(const float* weights, int64_t outputs, int64_t channels) {
  std::vector<float> all;
  all.reserve(outputs * channels * K * K);
  for (int64_t o = 0; o < outputs; o += BLOCK)
    for (int64_t k = 0; k < channels * K * K; ++k)
      for (int64_t b = o; b < std::min(o + BLOCK, outputs); ++b) all.push_back(weights[b * channels * K * K + k]);
  return all;
}

// -1 where a is the maximum of both: of equal values the first counts, and what is not a number comes before all.
inline FewInts comes_first(FewFloats a, FewFloats b) { return (a >= b) | (a != a); }

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
  const auto order = packed(w.typed_data(), out.channels, in.channels);
  const int64_t length = 2 * out.row();
  float* above = workspace<0>(2 * out.channels * length);
  float* below = above + out.channels * length;
  for (int64_t i = 0; i < out.height; ++i) {
    Rows rows{x.typed_data() + 2 * i * in.row(), in.channels, in.image(), in.row(), in.n};
    row_of_outputs(above, length, out.channels, rows, length, order.data());
    rows.data += in.row();
    row_of_outputs(below, length, out.channels, rows, length, order.data());
    for (int64_t o = 0; o < out.channels; ++o)
      for (int64_t j = 0; j < out.width; ++j) {
        const float* a = above + o * length + 2 * j * out.n;
        const float* c = below + o * length + 2 * j * out.n;
        float* value = y->typed_data() + o * out.image() + i * out.row() + j * out.n;
        int32_t* which = choice->typed_data() + o * out.image() + i * out.row() + j * out.n;
        each_few(out.n, [&](int64_t k) {
          const FewFloats p = load<FEW>(a + k), q = load<FEW>(a + out.n + k);
          const FewFloats r = load<FEW>(c + k), s = load<FEW>(c + out.n + k);
          const FewInts left = comes_first(p, q), right = comes_first(r, s);
          const FewFloats first = left ? p : q, second = right ? r : s;
          const FewInts upper = comes_first(first, second);
          store(value + k, upper ? first : second);
          store(which + k, upper ? left + 1 : right + 3);
        });
      }
  }
  return ffi::Error::Success();
}

// Images (n, height, width, channels); a row of a window may be read to the end of its last vector.
struct Images {
  int64_t pixels, channels, n, per_row, per_window_row, per_image;
  float* data;

  explicit Images(const Shape& shape)
      : pixels(shape.height * shape.width),
        channels(shape.channels),
        n(shape.n),
        per_row(shape.width * shape.channels),
        per_window_row((K * shape.channels + LANES - 1) / LANES * LANES),
        // Images a power of two apart would share a few places of the cache.
        per_image(pixels * channels + LANES),
        data(workspace<0>(n * per_image)) {}

  // Calls `at` with a number of these images and that of (channels, height, width, n) which belongs to it.
  template <class At>
  inline __attribute__((always_inline)) void each(At at) const {
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t e = 0; e < n; ++e) at(data[e * per_image + pixel * channels + c], (c * pixels + pixel) * n + e);
  }
};

// A pooled value's slope, and where in the images the window begins from which the value is.
struct Source {
  int32_t window;
  float slope;
};

struct Sources {
  const Source *first, *last;
  const Source* begin() const { return first; }
  const Source* end() const { return last; }
};

// The sources of output o whose slopes are not zero.
Sources sources_of(int64_t o, const Images& images, const Shape& out, const float* dy, const int32_t* choice) {
  Source* all = reinterpret_cast<Source*>(workspace<1>((out.image() + 1) * sizeof(Source) / sizeof(float)));
  Source* end = all;
  const int64_t places[4] = {0, images.channels, images.per_row, images.per_row + images.channels};
  for (int64_t i = 0; i < out.height; ++i)
    for (int64_t j = 0; j < out.width; ++j) {
      const int64_t at = o * out.image() + i * out.row() + j * out.n;
      const int64_t corner = 2 * i * images.per_row + 2 * j * images.channels;
      // Image by image: slopes that follow each other do not add to the same numbers.
      for (int64_t e = 0; e < out.n; ++e) {
        *end = {static_cast<int32_t>(e * images.per_image + corner + places[choice[at + e]]), dy[at + e]};
        end += dy[at + e] != 0;  // without a branch, which nobody could predict
      }
    }
  return {all, end};
}

// sum[ky][v] = Σ slope · (row ky of the window) over the sources, for V vectors from `first` in each row.
template <int V>
inline __attribute__((always_inline)) void sum_of_windows(Floats (&sum)[K][V], const Images& images, Sources sources,
                                                          int64_t first) {
  constexpr int CHAINS = 2 / V;  // a single vector's five sums would wait for each other
  Floats sums[CHAINS][K][V] = {};
  const auto add = [&](int chain, const Source& source) {
    const float* row = images.data + source.window + first;
    for (int ky = 0; ky < K; ++ky, row += images.per_row)
      for (int v = 0; v < V; ++v) sums[chain][ky][v] += source.slope * load(row + v * LANES);
  };
  const Source* source = sources.first;
  for (; source + CHAINS <= sources.last; source += CHAINS)
    for (int chain = 0; chain < CHAINS; ++chain) add(chain, source[chain]);
  for (; source < sources.last; ++source) add(0, *source);
  for (int ky = 0; ky < K; ++ky)
    for (int v = 0; v < V; ++v) {
      sum[ky][v] = sums[0][ky][v];
      if (CHAINS > 1) sum[ky][v] += sums[CHAINS - 1][ky][v];
    }
}

ffi::Error weight_gradient(Values x, Values dy, Choice choice, ffi::Result<Values> dw) {
  const Shape in(x.dimensions()), out(dy.dimensions());
  const Images images(in);
  images.each([&](float& to, int64_t from) { to = x.typed_data()[from]; });
  for (int64_t o = 0; o < out.channels; ++o) {
    const Sources sources = sources_of(o, images, out, dy.typed_data(), choice.typed_data());
    const auto vectors_from = [&](auto count, int64_t first) {
      constexpr int V = count();
      Floats sum[K][V];
      sum_of_windows<V>(sum, images, sources, first);
      for (int ky = 0; ky < K; ++ky)
        for (int64_t k = first; k < std::min(first + V * LANES, K * in.channels); ++k) {
          const int64_t c = k % in.channels, kx = k / in.channels;
          dw->typed_data()[((o * in.channels + c) * K + ky) * K + kx] =
              sum[ky][(k - first) / LANES][(k - first) % LANES];
        }
    };
    int64_t first = 0;
    for (; first + 2 * LANES <= images.per_window_row; first += 2 * LANES)
      vectors_from(std::integral_constant<int, 2>(), first);
    if (first < images.per_window_row) vectors_from(std::integral_constant<int, 1>(), first);
  }
  return ffi::Error::Success();
}

// Each source adds its slope times the kernel to its window.
ffi::Error input_gradient(Values w, Values dy, Choice choice, ffi::Result<Values> dx) {
  const Shape in(dx->dimensions()), out(dy.dimensions());
  const Images images(in);
  std::fill_n(images.data, images.n * images.per_image, 0.0f);
  float* kernel = workspace<2>(K * images.per_window_row);  // (ky, kx, channel), with zeros to the end of a row
  std::fill_n(kernel, K * images.per_window_row, 0.0f);
  for (int64_t o = 0; o < out.channels; ++o) {
    const float* weights = w.typed_data() + o * in.channels * K * K;
    for (int64_t c = 0; c < in.channels; ++c)
      for (int ky = 0; ky < K; ++ky)
        for (int kx = 0; kx < K; ++kx) kernel[ky * images.per_window_row + kx * in.channels + c] = *weights++;
    for (const Source& source : sources_of(o, images, out, dy.typed_data(), choice.typed_data())) {
      float* row = images.data + source.window;
      const float* factors = kernel;
      for (int ky = 0; ky < K; ++ky, row += images.per_row, factors += images.per_window_row)
        for (int64_t k = 0; k < images.per_window_row; k += LANES)
          store(row + k, load(row + k) + source.slope * load(factors + k));
    }
  }
  images.each([&](const float& from, int64_t to) { dx->typed_data()[to] = from; });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_pooled, pooled,
                              ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Ret<Values>().Ret<Choice>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_convolution_weight_gradient, weight_gradient,
                              ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Arg<Choice>().Ret<Values>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_convolution_input_gradient, input_gradient,
                              ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Arg<Choice>().Ret<Values>());
