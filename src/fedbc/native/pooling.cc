// The derivative of max-pooling over two axes of places; `fedbc.rewriting.pooling` calls it.
//
// x (n, height, width, channels), slopes (n, rows, columns, channels): each slope goes to the first maximum of its window.

#include <algorithm>
#include <cstdint>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Values = ffi::Buffer<ffi::F32, 4>;
using Numbers = ffi::Span<const int64_t>;
using Ints = VectorsOf<LANES>::Ints;

// Along an axis: the size of windows, how they move, what is missing of x before the first, and x's size.
struct Axis {
  int64_t size, stride, missing, length;
  int64_t begin(int64_t window) const { return std::max<int64_t>(0, window * stride - missing); }
  int64_t end(int64_t window) const { return std::min(length, window * stride - missing + size); }
};

// A window's part of x, as offsets from the first place of the image.
struct Places {
  int64_t rows, columns, per_row, per_column;
};

// For a vector of channels, or a single one. Windows that do not overlap write where others add.
template <class Float, class Int, bool APART>
inline __attribute__((always_inline)) void give(float* to, const float* x, const float* slopes, const Places& places) {
  Float largest, slope;
  std::memcpy(&largest, x, sizeof largest);
  std::memcpy(&slope, slopes, sizeof slope);
  Int chosen = {};
  int32_t number = 0;
  for (int64_t r = 0; r < places.rows; ++r)
    for (int64_t c = 0; c < places.columns; ++c, ++number) {
      Float part;
      std::memcpy(&part, x + r * places.per_row + c * places.per_column, sizeof part);
      chosen = part > largest ? (Int{} + number) : chosen;
      largest = part > largest ? part : largest;
    }
  number = 0;
  for (int64_t r = 0; r < places.rows; ++r)
    for (int64_t c = 0; c < places.columns; ++c, ++number) {
      float* here = to + r * places.per_row + c * places.per_column;
      Float given = chosen == number ? slope : Float{};
      if constexpr (!APART) {
        Float before;
        std::memcpy(&before, here, sizeof before);
        given += before;
      }
      std::memcpy(here, &given, sizeof given);
    }
}

template <bool APART>
void gradient_of_image(float* dx, const float* x, const float* slopes, const Axis& down, const Axis& across,
                       int64_t rows, int64_t columns, int64_t channels) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column, slopes += channels) {
      const int64_t top = down.begin(row), left = across.begin(column);
      const Places places{down.end(row) - top, across.end(column) - left, across.length * channels, channels};
      if (places.rows <= 0 || places.columns <= 0) continue;  // a window beside x
      const int64_t first = (top * across.length + left) * channels;
      int64_t c = 0;
      for (; c + LANES <= channels; c += LANES)
        give<Floats, Ints, APART>(dx + first + c, x + first + c, slopes + c, places);
      for (; c < channels; ++c) give<float, int32_t, APART>(dx + first + c, x + first + c, slopes + c, places);
    }
}

ffi::Error gradient(Values x, Values slopes, Numbers form, ffi::Result<Values> dx) {
  const auto sizes = x.dimensions(), windows = slopes.dimensions();
  const Axis down{form[0], form[2], form[4], sizes[1]}, across{form[1], form[3], form[5], sizes[2]};
  const int64_t image = sizes[1] * sizes[2] * sizes[3], per_image = windows[1] * windows[2] * windows[3];
  const bool apart = down.size <= down.stride && across.size <= across.stride;
  std::fill_n(dx->typed_data(), sizes[0] * image, 0.0f);
  for (int64_t n = 0; n < sizes[0]; ++n)
    (apart ? gradient_of_image<true> : gradient_of_image<false>)(
        dx->typed_data() + n * image, x.typed_data() + n * image, slopes.typed_data() + n * per_image, down, across,
        windows[1], windows[2], sizes[3]);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fedbc_pooling_gradient, gradient,
    ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Attr<Numbers>("form").Ret<Values>());
