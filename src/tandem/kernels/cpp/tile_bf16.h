// The tile of tile.h in bfloat16: products of pairs (k, k + 1), summed in fp32, pair after pair. One
// order for every tile shape and every split of k at an even place, as there.
#pragma once

#include "tile.h"

namespace tandem {

#if defined(__AVX512BF16__)

constexpr bool kHasBf16Products = true;

// Both products of a pair, added in their order.
inline Floats add_pair(Floats sum, Words a, Words b) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

template <int Rows, class Ahead>
inline __attribute__((noinline)) void tile_pairs(float* c, ptrdiff_t c_stride, const bf16* a,
                                                 ptrdiff_t a_stride, const bf16* b, int64_t pairs,
                                                 bool fresh, Ahead& ahead) {
  __m512 acc[Rows][kPanelVectors];
  TANDEM_UNROLL for (int r = 0; r < Rows; ++r)
    TANDEM_UNROLL for (int v = 0; v < kPanelVectors; ++v)
      acc[r][v] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * c_stride + v * kLanes);
  const auto add = [&](int64_t k) __attribute__((always_inline)) {
    __m512bh row[kPanelVectors];
    TANDEM_UNROLL for (int v = 0; v < kPanelVectors; ++v)
      row[v] = (__m512bh)_mm512_loadu_si512(b + 2 * (k * kPanelColumns + v * kLanes));
    TANDEM_UNROLL for (int r = 0; r < Rows; ++r) {
      const __m512bh x = (__m512bh)_mm512_set1_epi32(load_raw<int32_t>(a + r * a_stride + 2 * k));
      TANDEM_UNROLL for (int v = 0; v < kPanelVectors; ++v)
        acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x, row[v]);
    }
  };
  constexpr int64_t stride = Ahead::kStride > 1 ? Ahead::kStride / 2 : 1;
  int64_t k = 0;
  for (; k + stride <= pairs; k += stride) {
    ahead.step();
    for (int64_t i = 0; i < stride; ++i) add(k + i);
  }
  for (; k < pairs; ++k) add(k);
  TANDEM_UNROLL for (int r = 0; r < Rows; ++r)
    TANDEM_UNROLL for (int v = 0; v < kPanelVectors; ++v)
      _mm512_storeu_ps(c + r * c_stride + v * kLanes, acc[r][v]);
}

inline void round_row(const float* row, int64_t count, bf16* rounded) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm256_storeu_si256((__m256i*)(rounded + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(row + i)));
  if (i < count) {
    const __mmask16 rest = (__mmask16)((1u << (count - i)) - 1);
    const __m512 last = _mm512_maskz_loadu_ps(rest, row + i);
    _mm256_mask_storeu_epi16(rounded + i, rest, (__m256i)_mm512_cvtneps_pbh(last));
  }
}

#else

constexpr bool kHasBf16Products = false;

inline Floats add_pair(Floats sum, Words, Words) { return sum; }
template <int Rows, class Ahead>
inline void tile_pairs(float*, ptrdiff_t, const bf16*, ptrdiff_t, const bf16*, int64_t, bool,
                       Ahead&) {}
inline void round_row(const float*, int64_t, bf16*) {}

#endif

// c [rows, 64], `c_stride` apart, (+)= a [rows, pairs, 2] x b [pairs, 64, 2]; `fresh` starts from
// zero.
template <class Ahead>
inline void tile_pairs(int rows, float* c, ptrdiff_t c_stride, const bf16* a, ptrdiff_t a_stride,
                       const bf16* b, int64_t pairs, bool fresh, Ahead& ahead) {
  switch (rows) {
    case 1: return tile_pairs<1>(c, c_stride, a, a_stride, b, pairs, fresh, ahead);
    case 2: return tile_pairs<2>(c, c_stride, a, a_stride, b, pairs, fresh, ahead);
    case 3: return tile_pairs<3>(c, c_stride, a, a_stride, b, pairs, fresh, ahead);
    case 4: return tile_pairs<4>(c, c_stride, a, a_stride, b, pairs, fresh, ahead);
    case 5: return tile_pairs<5>(c, c_stride, a, a_stride, b, pairs, fresh, ahead);
    default: return tile_pairs<6>(c, c_stride, a, a_stride, b, pairs, fresh, ahead);
  }
}

}  // namespace tandem
