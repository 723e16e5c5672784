// Convolutions of any kernel, stride, dilation and number of groups, and their derivatives with respect to the kernel;
// `fedbc.rewriting.convolutions` calls them. (The derivative with respect to the input is a convolution, too.)
//
// Arrays have the channels last: x (n, height, width, groups · inputs), w (height, width, inputs, groups · outputs),
// y (n, height, width, groups · outputs). A tile of sums, for a few pixels and a few vectors of outputs, stays in
// registers while a window is worked through; a row of a window is one stretch of memory wherever it can be.

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Values = ffi::Buffer<ffi::F32, 4>;
using Numbers = ffi::Span<const int64_t>;

constexpr int WIDEST = REGISTERS == 32 ? 4 : 2;  // vectors of a tile
// So many pixels (or numbers of a kernel) that their sums, a row of vectors and a factor fill the registers.
constexpr int tallest(int vectors) { return std::min(14, (REGISTERS - 1 - vectors) / vectors); }

// How the kernel moves: strides, distances of its places, and what is missing of x before its first row and column.
struct Form {
  int64_t stride_y, stride_x, apart_y, apart_x, above, left, groups;
  explicit Form(Numbers of)
      : stride_y(of[0]), stride_x(of[1]), apart_y(of[2]), apart_x(of[3]), above(of[4]), left(of[5]), groups(of[6]) {}
};

struct Sizes {
  int64_t n, height, width, channels;
  explicit Sizes(Values of)
      : n(of.dimensions()[0]), height(of.dimensions()[1]), width(of.dimensions()[2]), channels(of.dimensions()[3]) {}
  int64_t image() const { return height * width * channels; }
};

// Images as large as the windows need them, with zeros where x has no place.
class Images {
 public:
  const int64_t height, width, per_row;
  Images(const float* x, Sizes size, const Form& form, int64_t rows, int64_t columns, int64_t kernel_rows,
         int64_t kernel_columns)
      : height((rows - 1) * form.stride_y + (kernel_rows - 1) * form.apart_y + 1),
        width((columns - 1) * form.stride_x + (kernel_columns - 1) * form.apart_x + 1),
        per_row((fits(size, form) ? size.width : width) * size.channels),
        x_(x), size_(size), above_(form.above), left_(form.left), direct_(fits(size, form)) {
    if (direct_) return;
    padded_ = workspace<10>(height * per_row);
    std::fill_n(padded_, height * per_row, 0.0f);
  }
  bool direct() const { return direct_; }
  const float* operator[](int64_t n) {
    const float* image = x_ + n * size_.image();
    if (direct_) return image;
    const int64_t first = std::max<int64_t>(0, left_), last = std::min(width, size_.width + left_);
    if (first < last)
      for (int64_t y = std::max<int64_t>(0, above_); y < std::min(height, size_.height + above_); ++y)
        std::copy_n(image + ((y - above_) * size_.width + first - left_) * size_.channels,
                    (last - first) * size_.channels, padded_ + y * per_row + first * size_.channels);
    return padded_;
  }

 private:
  bool fits(Sizes size, const Form& form) const {
    return form.above == 0 && form.left == 0 && height <= size.height && width <= size.width;
  }
  const float* x_;
  const Sizes size_;
  const int64_t above_, left_;
  const bool direct_;
  float* padded_ = nullptr;
};

// The stretches of memory that a window consists of.
struct Window {
  int64_t rows, per_row, stretches, per_stretch, length;
  Window(const Form& form, const Images& images, int64_t kernel_rows, int64_t kernel_columns, int64_t inputs)
      : rows(kernel_rows), per_row(form.apart_y * images.per_row) {
    const bool whole = form.groups == 1 && form.apart_x == 1;
    stretches = whole ? 1 : kernel_columns;
    per_stretch = form.apart_x * inputs * form.groups;
    length = whole ? kernel_columns * inputs : inputs;
  }
};

// Outputs of a group, in blocks of vectors that are as even as they can be.
struct Block {
  int64_t first, count;
  int vectors;
};
std::vector<Block> blocks_of(int64_t outputs) {
  const int64_t vectors = (outputs + LANES - 1) / LANES, number = (vectors + WIDEST - 1) / WIDEST;
  std::vector<Block> blocks;
  for (int64_t b = 0; b < number; ++b) {
    const int64_t first = vectors * b / number, last = vectors * (b + 1) / number;
    blocks.push_back({first * LANES, std::min(last * LANES, outputs) - first * LANES, static_cast<int>(last - first)});
  }
  return blocks;
}

// Calls `at` with parts of `count` that are as even as they can be and at most `most` long.
template <class At>
inline void each_part(int64_t count, int64_t most, At at) {
  const int64_t number = (count + most - 1) / most;
  for (int64_t p = 0; p < number; ++p) at(count * p / number, count * (p + 1) / number - count * p / number);
}

template <int V, class At>
inline __attribute__((always_inline)) void each_vector(int64_t count, At at) {
  for (int v = 0; v < V; ++v) at(v, std::min<int64_t>(LANES, count - v * LANES));
}

// y[p][o] = Σ x[p · step + window] · w[window][o] for P pixels and V vectors of outputs.
template <int P, int V>
void tile_of_outputs(float* y, int64_t next, int64_t count, const float* x, int64_t step, const Window& window,
                     const float* w) {
  Floats sum[P][V] = {};
  for (int64_t row = 0; row < window.rows; ++row)
    for (int64_t stretch = 0; stretch < window.stretches; ++stretch) {
      const float* from = x + row * window.per_row + stretch * window.per_stretch;
      for (int64_t k = 0; k < window.length; ++k, w += V * LANES) {
        Floats factor[V];
        for (int v = 0; v < V; ++v) factor[v] = load(w + v * LANES);
        for (int p = 0; p < P; ++p)
          for (int v = 0; v < V; ++v) sum[p][v] += from[p * step + k] * factor[v];
      }
    }
  for (int p = 0; p < P; ++p)
    each_vector<V>(count, [&](int v, int64_t here) {
      if (here >= LANES)
        store(y + p * next + v * LANES, sum[p][v]);
      else
        for (int64_t k = 0; k < here; ++k) y[p * next + v * LANES + k] = sum[p][v][k];
    });
}

// dw[r][o] += Σ_pixels x[pixel + r] · dy[pixel][o] for R numbers of a window's stretch and V vectors of outputs.
struct Pixels {
  int64_t rows, columns, per_row, step, dy_next;
};
template <int R, int V>
void tile_of_gradient(float* dw, int64_t next, int64_t count, const float* x, const float* dy, const Pixels& pixels) {
  Floats sum[R][V] = {};
  for (int64_t row = 0; row < pixels.rows; ++row) {
    const float* from = x + row * pixels.per_row;
    for (int64_t column = 0; column < pixels.columns; ++column, from += pixels.step, dy += pixels.dy_next) {
      Floats slope[V];
      for (int v = 0; v < V; ++v) slope[v] = load(dy + v * LANES);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] += from[r] * slope[v];
    }
  }
  for (int r = 0; r < R; ++r)
    each_vector<V>(count, [&](int v, int64_t here) {
      float* to = dw + r * next + v * LANES;
      if (here >= LANES)
        store(to, load(to) + sum[r][v]);
      else
        for (int64_t k = 0; k < here; ++k) to[k] += sum[r][v][k];
    });
}

// The functions above for every height and width of a tile.
template <int V, int... H>
constexpr auto heights_of_outputs(std::integer_sequence<int, H...>) {
  return std::array{&tile_of_outputs<H + 1, V>...};
}
template <int V, int... H>
constexpr auto heights_of_gradient(std::integer_sequence<int, H...>) {
  return std::array{&tile_of_gradient<H + 1, V>...};
}
template <int V>
using Heights = std::make_integer_sequence<int, tallest(V)>;
template <class With>
inline void with_width(int vectors, With with) {
  if (vectors == 1) return with(std::integral_constant<int, 1>());
  if (vectors == 2) return with(std::integral_constant<int, 2>());
  if constexpr (WIDEST > 2) {
    if (vectors == 3) return with(std::integral_constant<int, 3>());
    return with(std::integral_constant<int, 4>());
  }
}

// Every channel by itself: vectors are of channels. `at` gets their beginnings, and whether they are whole; the last
// whole one may overlap the one before.
template <class At>
inline void each_channels(int64_t channels, At at) {
  int64_t c = 0;
  for (; c + LANES <= channels; c += LANES) at(c, std::true_type());
  if (c < channels && channels >= LANES) return at(channels - LANES, std::true_type());
  for (; c < channels; ++c) at(c, std::false_type());
}
template <class Whole>
using Channels = std::conditional_t<Whole::value, Floats, float>;
template <class Whole>
inline __attribute__((always_inline)) Channels<Whole> take(const float* from, Whole) {
  if constexpr (Whole::value)
    return load(from);
  else
    return *from;
}

template <int P, class Whole>
inline void pixels_of_channels(float* y, int64_t next, const float* x, int64_t step, const float* w, const Window& window,
                               int64_t channels, Whole whole) {
  Channels<Whole> sum[P] = {};
  for (int64_t row = 0; row < window.rows; ++row)
    for (int64_t column = 0; column < window.stretches; ++column, w += channels) {
      const Channels<Whole> factor = take(w, whole);
      const float* from = x + row * window.per_row + column * window.per_stretch;
      for (int p = 0; p < P; ++p) sum[p] += factor * take(from + p * step, whole);
    }
  for (int p = 0; p < P; ++p) store(y + p * next, sum[p]);
}

// Where outcomes go: all of y, or every few rows and columns of it.
struct Target {
  float* first;
  int64_t n, rows, columns, per_image, per_row, per_column, channels;
};

void each_channel(const Target& y, Images& images, const Form& form, const Window& window, const float* w) {
  const int64_t step = form.stride_x * y.channels, next = y.per_column;
  for (int64_t n = 0; n < y.n; ++n) {
    const float* image = images[n];
    for (int64_t row = 0; row < y.rows; ++row) {
      const float* from = image + row * form.stride_y * images.per_row;
      float* to = y.first + n * y.per_image + row * y.per_row;
      each_channels(y.channels, [&](int64_t c, auto whole) {
        int64_t p = 0;
        for (; p + 8 <= y.columns; p += 8)
          pixels_of_channels<8>(to + p * next + c, next, from + p * step + c, step, w + c, window, y.channels, whole);
        for (; p < y.columns; ++p)
          pixels_of_channels<1>(to + p * next + c, next, from + p * step + c, step, w + c, window, y.channels, whole);
      });
    }
  }
}

// Sums for C columns of one row of the kernel.
template <int C, class Whole>
void gradient_of_channels(float* dw, const float* x, const float* dy, const Pixels& pixels, int64_t per_column,
                          int64_t channels, Whole whole) {
  Channels<Whole> sum[C] = {};
  for (int64_t row = 0; row < pixels.rows; ++row) {
    const float* from = x + row * pixels.per_row;
    for (int64_t column = 0; column < pixels.columns; ++column, from += pixels.step, dy += channels) {
      const Channels<Whole> slope = take(dy, whole);
      for (int k = 0; k < C; ++k) sum[k] += slope * take(from + k * per_column, whole);
    }
  }
  for (int k = 0; k < C; ++k) store(dw + k * channels, take(dw + k * channels, whole) + sum[k]);
}

void gradient_of_each_channel(float* dw, int64_t kernel_columns, const Sizes& out, const float* image,
                              const float* dy, const Form& form, const Window& window, const Pixels& pixels) {
  const int64_t channels = out.channels;
  for (int64_t row = 0; row < window.rows; ++row) {
    const auto columns_from = [&](int64_t first, auto count, int64_t c, auto whole) {
      gradient_of_channels<count()>(dw + (row * kernel_columns + first) * channels + c,
                                    image + row * window.per_row + first * window.per_stretch + c, dy + c, pixels,
                                    window.per_stretch, channels, whole);
    };
    const auto all_columns = [&](int64_t c, auto whole) {
      int64_t first = 0;
      for (; first + 3 <= kernel_columns; first += 3)
        columns_from(first, std::integral_constant<int, 3>(), c, whole);
      for (; first < kernel_columns; ++first) columns_from(first, std::integral_constant<int, 1>(), c, whole);
    };
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) all_columns(c, std::true_type());
    for (; c < channels; ++c) all_columns(c, std::false_type());  // sums grow: nothing may be counted twice
  }
}

// The convolution of x with a kernel (rows, columns, inputs, outputs of all groups).
void convolve(const Target& y, const float* x, Sizes in, const float* w, int64_t kernel_rows, int64_t kernel_columns,
              int64_t inputs, const Form& form) {
  Images images(x, in, form, y.rows, y.columns, kernel_rows, kernel_columns);
  const Window window(form, images, kernel_rows, kernel_columns, inputs);
  if (inputs == 1 && form.groups == y.channels && form.groups > 1) return each_channel(y, images, form, window, w);
  const int64_t outputs = y.channels / form.groups, places = kernel_rows * kernel_columns * inputs;
  const std::vector<Block> blocks = blocks_of(outputs);
  int64_t vectors = 0;
  for (const Block& block : blocks) vectors += block.vectors;
  // The kernel in the order in which the tiles read it, with zeros to the end of the last vector.
  float* packed = workspace<11>(form.groups * places * vectors * LANES);
  float* to = packed;
  for (int64_t g = 0; g < form.groups; ++g)
    for (const Block& block : blocks)
      for (int64_t k = 0; k < places; ++k, to += block.vectors * LANES) {
        std::copy_n(w + k * y.channels + g * outputs + block.first, block.count, to);
        std::fill(to + block.count, to + block.vectors * LANES, 0.0f);
      }
  // Points that move by one are a single row.
  const bool flat = kernel_rows == 1 && kernel_columns == 1 && form.stride_y == 1 && form.stride_x == 1 &&
                    images.direct() && in.width == y.columns && y.per_row == y.columns * y.per_column;
  const int64_t rows = flat ? 1 : y.rows, columns = flat ? y.rows * y.columns : y.columns;
  const int64_t step = form.stride_x * in.channels;
  for (int64_t n = 0; n < y.n; ++n) {
    const float* image = images[n];
    const float* weights = packed;
    for (int64_t g = 0; g < form.groups; ++g)
      for (const Block& block : blocks) {
        with_width(block.vectors, [&](auto width) {
          constexpr int V = width();
          static constexpr auto tiles = heights_of_outputs<V>(Heights<V>());
          for (int64_t row = 0; row < rows; ++row) {
            const float* from = image + row * form.stride_y * images.per_row + g * inputs;
            float* target = y.first + n * y.per_image + row * y.per_row + g * outputs + block.first;
            each_part(columns, tallest(V), [&](int64_t first, int64_t count) {
              tiles[count - 1](target + first * y.per_column, y.per_column, block.count, from + first * step, step,
                               window, weights);
            });
          }
        });
        weights += places * block.vectors * LANES;
      }
  }
}

int64_t floor_of(int64_t a, int64_t b) { return (a >= 0 ? a : a - b + 1) / b; }

// Along an axis on which x's places are `between` apart, every `between`-th outcome from `phase` on meets the kernel's
// places from `first` on, `between` apart; the first of them lies `before` places before x.
struct Phase {
  int64_t first, taps, count, before;
  Phase(int64_t phase, int64_t between, int64_t missing, int64_t kernel, int64_t size)
      : first(((missing - phase) % between + between) % between),
        taps(first < kernel ? (kernel - first + between - 1) / between : 0),
        count(phase < size ? (size - phase + between - 1) / between : 0),
        before(-floor_of(phase + first - missing, between)) {}
};

ffi::Error convolution(Values x, Values w, Numbers numbers, ffi::Result<Values> y) {
  const Form form(numbers);
  const int64_t between_y = numbers[7], between_x = numbers[8];
  const Sizes in(x), kernel(w), out(*y);
  const int64_t inputs = kernel.width, per_tap = inputs * out.channels, per_row = out.width * out.channels;
  float* all = y->typed_data();
  if (between_y == 1 && between_x == 1) {
    const Target target{all, out.n, out.height, out.width, out.image(), per_row, out.channels, out.channels};
    convolve(target, x.typed_data(), in, w.typed_data(), kernel.n, kernel.height, inputs, form);
    return ffi::Error::Success();
  }
  // With zeros between x's places (and strides and distances of one): outcomes that meet the same places of the kernel
  // are a convolution of their own.
  std::fill_n(all, out.n * out.image(), 0.0f);
  std::vector<float> own(kernel.n * kernel.height * per_tap);
  for (int64_t py = 0; py < between_y; ++py)
    for (int64_t px = 0; px < between_x; ++px) {
      const Phase rows(py, between_y, form.above, kernel.n, out.height);
      const Phase columns(px, between_x, form.left, kernel.height, out.width);
      if (!rows.taps || !rows.count || !columns.taps || !columns.count) continue;
      for (int64_t r = 0; r < rows.taps; ++r)
        for (int64_t c = 0; c < columns.taps; ++c)
          std::copy_n(w.typed_data() + ((rows.first + r * between_y) * kernel.height + columns.first + c * between_x) *
                                           per_tap,
                      per_tap, own.data() + (r * columns.taps + c) * per_tap);
      Form part = form;
      part.above = rows.before, part.left = columns.before;
      const Target target{all + py * per_row + px * out.channels, out.n,        rows.count, columns.count, out.image(),
                          between_y * per_row, between_x * out.channels, out.channels};
      convolve(target, x.typed_data(), in, own.data(), rows.taps, columns.taps, inputs, part);
    }
  return ffi::Error::Success();
}

ffi::Error gradient(Values x, Values dy, Numbers numbers, ffi::Result<Values> dw) {
  const Form form(numbers);
  const Sizes in(x), out(dy), kernel(*dw);
  const int64_t kernel_rows = kernel.n, kernel_columns = kernel.height, inputs = kernel.width;
  Images images(x.typed_data(), in, form, out.height, out.width, kernel_rows, kernel_columns);
  const Window window(form, images, kernel_rows, kernel_columns, inputs);
  const Pixels pixels{out.height, out.width, form.stride_y * images.per_row, form.stride_x * in.channels,
                      out.channels};
  std::fill_n(dw->typed_data(), kernel_rows * kernel_columns * inputs * out.channels, 0.0f);
  const int64_t outputs = out.channels / form.groups;
  const bool each = inputs == 1 && outputs == 1 && form.groups > 1;
  const std::vector<Block> blocks = blocks_of(outputs);
  // Vectors of slopes may reach over the end of the last pixel.
  float* slopes = outputs % LANES && !each ? workspace<12>(out.image() + WIDEST * LANES) : nullptr;
  for (int64_t n = 0; n < out.n; ++n) {
    const float* image = images[n];
    const float* own = dy.typed_data() + n * out.image();
    if (each) {
      gradient_of_each_channel(dw->typed_data(), kernel_columns, out, image, own, form, window, pixels);
      continue;
    }
    if (slopes) own = (std::copy_n(own, out.image(), slopes), slopes);
    for (int64_t g = 0; g < form.groups; ++g)
      for (const Block& block : blocks)
        with_width(block.vectors, [&](auto width) {
          constexpr int V = width();
          static constexpr auto tiles = heights_of_gradient<V>(Heights<V>());
          float* to = dw->typed_data() + g * outputs + block.first;
          for (int64_t row = 0; row < window.rows; ++row)
            for (int64_t stretch = 0; stretch < window.stretches; ++stretch) {
              const float* from = image + row * window.per_row + stretch * window.per_stretch + g * inputs;
              each_part(window.length, tallest(V), [&](int64_t first, int64_t count) {
                tiles[count - 1](to + first * out.channels, out.channels, block.count, from + first,
                                 own + g * outputs + block.first, pixels);
              });
              to += window.length * out.channels;
            }
        });
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fedbc_convolution, convolution,
    ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Attr<Numbers>("form").Ret<Values>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fedbc_convolution_kernel_gradient, gradient,
    ffi::Ffi::Bind().Arg<Values>().Arg<Values>().Attr<Numbers>("form").Ret<Values>());
