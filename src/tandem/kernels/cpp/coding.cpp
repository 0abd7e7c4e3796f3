// Floats become codes of eight or four bits: what is largest in each group, and the codes for given
// scales.
#include "vectors.h"

using namespace tandem;

namespace {

// Adding and taking away this rounds to the nearest whole number, halves to the even one, of all
// that codes can be.
constexpr float kRounding = 0x1.8p23f;

// The first of the values with the largest magnitude.
template <class T>
float extreme(const T* values, int64_t count) {
  Floats most{};
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) most = maximum(magnitude(load(values + c)), most);
  float largest = max_of(most);
  for (; c < count; ++c) {
    const float value = widen(values[c]);
    largest = value > largest ? value : -value > largest ? -value : largest;
  }
  for (c = 0; c + kLanes <= count; c += kLanes)
    if (const uint32_t same = bits_of(magnitude(load(values + c)) == splat(largest)))
      return widen(values[c + __builtin_ctz(same)]);
  for (; c < count; ++c) {
    const float value = widen(values[c]);
    if (value == largest || -value == largest) return value;
  }
  return largest;
}

template <class T>
void extremes(const T* rows, int64_t row_stride, int64_t out_features, int64_t in_features,
              int64_t group, float* out, int threads) {
  const int64_t groups = (in_features + group - 1) / group;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t n = 0; n < out_features; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * group, rest = in_features - first;
      out[n * groups + g] = extreme(rows + n * row_stride + first, rest < group ? rest : group);
    }
}

struct Range {
  float least, most;
  int32_t zero;
};

template <class T>
void code_group(const T* values, int64_t count, float scale, Range range, uint8_t* codes) {
  const Floats divisor = splat(scale), least = splat(range.least), most = splat(range.most);
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    Floats steps = maximum(load(values + c) / divisor, least);
    steps = select(steps < most, steps, most) + kRounding - kRounding;
    const Ints code = __builtin_convertvector(steps, Ints) + range.zero;
    store_raw(codes + c, __builtin_convertvector(code, Bytes));
  }
  for (; c < count; ++c) {
    float steps = widen(values[c]) / scale;
    steps = steps > range.least ? steps : range.least;
    steps = (steps < range.most ? steps : range.most) + kRounding - kRounding;
    codes[c] = (uint8_t)((int32_t)steps + range.zero);
  }
}

template <class T>
void code(const T* rows, int64_t row_stride, int64_t out_features, int64_t in_features,
          int64_t group, const float* scale, Range range, uint8_t* codes, int threads) {
  const int64_t groups = (in_features + group - 1) / group;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t n = 0; n < out_features; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * group, rest = in_features - first;
      code_group(rows + n * row_stride + first, rest < group ? rest : group,
                 scale[n * groups + g], range, codes + n * in_features + first);
    }
}

}  // namespace

extern "C" void tandem_extremes(const void* rows, int64_t dtype, int64_t row_stride,
                                int64_t out_features, int64_t in_features, int64_t group,
                                float* out, int64_t threads) {
  switch (dtype) {
    case kBfloat16: return extremes((const bf16*)rows, row_stride, out_features, in_features,
                                    group, out, (int)threads);
    case kFloat16: return extremes((const fp16*)rows, row_stride, out_features, in_features,
                                   group, out, (int)threads);
    default: return extremes((const float*)rows, row_stride, out_features, in_features, group,
                             out, (int)threads);
  }
}

// code = zero + the whole number next to value / scale, from `least` to `most`.
extern "C" void tandem_code(const void* rows, int64_t dtype, int64_t row_stride,
                            int64_t out_features, int64_t in_features, int64_t group,
                            const float* scale, int64_t least, int64_t most, int64_t zero,
                            uint8_t* codes, int64_t threads) {
  const Range range{(float)least, (float)most, (int32_t)zero};
  switch (dtype) {
    case kBfloat16: return code((const bf16*)rows, row_stride, out_features, in_features, group,
                                scale, range, codes, (int)threads);
    case kFloat16: return code((const fp16*)rows, row_stride, out_features, in_features, group,
                               scale, range, codes, (int)threads);
    default: return code((const float*)rows, row_stride, out_features, in_features, group, scale,
                         range, codes, (int)threads);
  }
}
