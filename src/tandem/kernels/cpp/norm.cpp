// Root mean square normalisation of rows; a row's sums are taken in one order by one thread.
#include <cmath>

#include "operations.h"
#include "vectors.h"

using namespace tandem;

namespace {

constexpr int64_t kParallelElements = int64_t{1} << 16;

// The sum of squares of a row; with a residual, that of x + residual, which replaces residual.
float square_sum(const float* x, float* residual, int64_t features) {
  Floats sums[2] = {};
  int64_t c = 0;
  for (; c + 2 * kLanes <= features; c += 2 * kLanes)
    for (int part = 0; part < 2; ++part) {
      float* other = residual ? residual + c + part * kLanes : nullptr;
      Floats value = load(x + c + part * kLanes);
      if (other) store(other, value += load(other));
      sums[part] = multiply_add(value, value, sums[part]);
    }
  for (int part = 0; c < features; c += kLanes, part = 1) {
    Floats value = load_some(x + c, features - c);
    if (residual)
      store_some(residual + c, value += load_some(residual + c, features - c), features - c);
    sums[part] = multiply_add(value, value, sums[part]);
  }
  return sum_of(sums[0] + sums[1]);
}

void scale_row(const float* x, const float* weight, float offset, float factor, float* out,
               int64_t features) {
  int64_t c = 0;
  for (; c + kLanes <= features; c += kLanes)
    store(out + c, load(x + c) * splat(factor) * (load(weight + c) + offset));
  if (c < features) {
    const int64_t count = features - c;
    const Floats scale = load_some(weight + c, count) + offset;
    store_some(out + c, load_some(x + c, count) * splat(factor) * scale, count);
  }
}

}  // namespace

// Row i of x lies at x + (i / heads) * token_stride + (i % heads) * head_stride; out and residual
// are contiguous. A null residual means plain normalisation.
extern "C" void tandem_rms_norm(const float* x, int64_t token_stride, int64_t head_stride,
                                int64_t rows, int64_t heads, int64_t features, float* residual,
                                const float* weight, float eps, float offset, float* out,
                                int64_t threads) {
#pragma omp parallel for num_threads((int)threads) if (rows * features >= kParallelElements)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = x + i / heads * token_stride + i % heads * head_stride;
    float* total = residual ? residual + i * features : nullptr;
    const float mean = square_sum(row, total, features) / (float)features;
    const float factor = 1.0f / std::sqrt(mean + eps);
    scale_row(total ? total : row, weight, offset, factor, out + i * features, features);
  }
}
