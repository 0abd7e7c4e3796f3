// The tile of tile.h over codes: products of bytes in groups along k, exact in int32, each group
// scaled into fp32 sums. One order for every tile shape and every split of k between groups.
// Codes lie in fours of k, [k / 4][64][4]; of four bits two such fours share their bytes, the
// first one in the lower halves: [k / 8][64][4].
#pragma once

#include "tile.h"

namespace tandem {

// Sums of a group are kept beside those of all groups: so many rows fill the registers.
constexpr int kCodeRows = 3;

// Rows of x as codes: value = code * scale, with the sum of the codes of each group.
struct CodedRows {
  const int8_t* codes;
  ptrdiff_t stride;
  const float* scale;
  const int32_t* sum;
  ptrdiff_t groups;

  CodedRows from(int64_t row, int64_t k, int64_t group) const {
    return {codes + row * stride + k, stride, scale + row * groups + group,
            sum + row * groups + group, groups};
  }
};

// A stretch of whole groups of a panel: value = scale * (code - zero) + offset, where scale and
// offset are [group][64] and may be missing (1 and 0).
struct CodedPanel {
  const uint8_t* codes;
  const fp16* scale;
  const fp16* offset;
  int64_t group;
  int64_t depth;
  int32_t zero;

  int64_t groups() const { return (depth + group - 1) / group; }
};

#if defined(__AVX512VNNI__)

constexpr bool kHasInt8Products = true;

template <int Bits>
inline __attribute__((always_inline)) void load_codes(const uint8_t* fours, __m512i (&row)[kPanelVectors],
                                                      bool second) {
  for (int v = 0; v < kPanelVectors; ++v) {
    row[v] = _mm512_loadu_si512(fours + v * 64);
    if (Bits == 4) {
      if (second) row[v] = _mm512_srli_epi16(row[v], 4);
      row[v] = _mm512_and_si512(row[v], _mm512_set1_epi8(0x0f));
    }
  }
}

template <int Rows, int Bits>
inline __attribute__((always_inline)) const uint8_t* add_group(__m512i (&sums)[Rows][kPanelVectors],
                                                               const int8_t* x, ptrdiff_t x_stride,
                                                               const uint8_t* codes, int64_t depth) {
  constexpr int parts = 8 / Bits;
  for (int64_t k = 0; k < depth; k += 4 * parts, codes += 4 * kPanelColumns)
    for (int part = 0; part < parts; ++part) {
      __m512i row[kPanelVectors];
      load_codes<Bits>(codes, row, part == 1);
      for (int r = 0; r < Rows; ++r) {
        const __m512i four = _mm512_set1_epi32(load_raw<int32_t>(x + r * x_stride + k + 4 * part));
        for (int v = 0; v < kPanelVectors; ++v)
          sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], row[v], four);
      }
    }
  return codes;
}

template <int Rows, int Bits>
inline __attribute__((noinline)) void tile_codes(float* c, CodedRows x, CodedPanel panel, bool fresh) {
  __m512 acc[Rows][kPanelVectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kPanelVectors; ++v)
      acc[r][v] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * kPanelColumns + v * kLanes);
  const uint8_t* codes = panel.codes;
  for (int64_t g = 0; g < panel.groups(); ++g) {
    const int64_t k = g * panel.group;
    const int64_t depth = panel.depth - k < panel.group ? panel.depth - k : panel.group;
    __m512i sums[Rows][kPanelVectors];
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < kPanelVectors; ++v)
        sums[r][v] = _mm512_set1_epi32(-panel.zero * x.sum[r * x.groups + g]);
    codes = add_group<Rows, Bits>(sums, x.codes + k, x.stride, codes, depth);
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t place = g * kPanelColumns + v * kLanes;
      const __m512 scale = panel.scale ? (__m512)load(panel.scale + place) : _mm512_set1_ps(1.0f);
      for (int r = 0; r < Rows; ++r) {
        const __m512 x_scale = _mm512_set1_ps(x.scale[r * x.groups + g]);
        const __m512 both = _mm512_mul_ps(scale, x_scale);
        acc[r][v] = _mm512_fmadd_ps((__m512)__builtin_convertvector((Ints)sums[r][v], Floats), both, acc[r][v]);
      }
    }
    if (panel.offset)
      for (int r = 0; r < Rows; ++r) {
        const float sum = x.scale[r * x.groups + g] * (float)x.sum[r * x.groups + g];
        for (int v = 0; v < kPanelVectors; ++v) {
          const __m512 offset = (__m512)load(panel.offset + g * kPanelColumns + v * kLanes);
          acc[r][v] = _mm512_fmadd_ps(offset, _mm512_set1_ps(sum), acc[r][v]);
        }
      }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kPanelVectors; ++v)
      _mm512_storeu_ps(c + r * kPanelColumns + v * kLanes, acc[r][v]);
}

// c [rows, 64] (+)= x [rows, depth] x panel [depth, 64]; `fresh` starts from zero.
template <int Bits>
inline void tile_codes(int rows, float* c, const CodedRows& x, const CodedPanel& panel, bool fresh) {
  switch (rows) {
    case 1: return tile_codes<1, Bits>(c, x, panel, fresh);
    case 2: return tile_codes<2, Bits>(c, x, panel, fresh);
    default: return tile_codes<3, Bits>(c, x, panel, fresh);
  }
}

#else

constexpr bool kHasInt8Products = false;

template <int Bits>
inline void tile_codes(int, float*, const CodedRows&, const CodedPanel&, bool) {}

#endif

// Codes of one row, symmetric within each group; those behind its end are zero. A group with an
// infinity or no number has no number as its scale, and so has every sum over it.
inline void code_row(const float* row, int64_t count, int64_t padded, int64_t group, int8_t* codes,
                     float* scales, int32_t* sums) {
  for (int64_t first = 0, g = 0; first < padded; first += group, ++g) {
    const int64_t end = padded - first < group ? padded : first + group;
    const int64_t last = count < end ? count : end;
    float peak = 0.0f, zero = 0.0f;
    for (int64_t k = first; k < last; ++k) {
      peak = std::fmax(peak, std::fabs(row[k]));
      zero += row[k] * 0.0f;
    }
    const bool finite = zero == 0.0f;
    // Below that the inverse would be none.
    const float inverse = finite && peak > 1e-30f ? 127.0f / peak : 0.0f;
    int32_t sum = 0;
    for (int64_t k = first; k < last; ++k) {
      codes[k] = finite ? (int8_t)std::nearbyint(row[k] * inverse) : 0;
      sum += (int32_t)codes[k];
    }
    for (int64_t k = last < first ? first : last; k < end; ++k) codes[k] = 0;
    scales[g] = peak / 127.0f + zero;
    sums[g] = sum;
  }
}

}  // namespace tandem
