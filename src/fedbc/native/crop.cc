// Shifted images, black beyond their edges; `fedbc.data.cifar10` calls it. A row is copied at once, where XLA would pick
// byte by byte.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Images = ffi::Buffer<ffi::U8, 4>;   // (n, height, width, colours)
using Corners = ffi::Buffer<ffi::S32, 2>;  // (n, 2): the row and the column that come to the upper left corner

ffi::Error crop(Images x, Corners corners, ffi::Result<Images> y) {
  const int64_t n = x.dimensions()[0], height = x.dimensions()[1], width = x.dimensions()[2];
  const int64_t colours = x.dimensions()[3], per_row = width * colours;
  const int32_t* corner = corners.typed_data();
  uint8_t* to = y->typed_data();
  for (int64_t e = 0; e < n; ++e, corner += 2) {
    const int64_t before = std::clamp(-static_cast<int64_t>(corner[1]), int64_t{0}, width) * colours;  // bytes of the frame in a row
    const int64_t after = std::clamp<int64_t>(corner[1], 0, width) * colours;
    for (int64_t i = corner[0]; i < corner[0] + height; ++i, to += per_row) {
      if (i < 0 || i >= height) {
        std::memset(to, 0, per_row);
        continue;
      }
      std::memset(to, 0, before);
      std::memcpy(to + before, x.typed_data() + (e * height + i) * per_row + after, per_row - before - after);
      std::memset(to + per_row - after, 0, after);
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedbc_crop, crop, ffi::Ffi::Bind().Arg<Images>().Arg<Corners>().Ret<Images>());
