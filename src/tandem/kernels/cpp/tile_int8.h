// The tile of tile.h over codes: products of bytes in groups along k, exact in int32, each group
// scaled into fp32 sums. One order for every tile shape and every split of k between groups.
// Codes lie in fours of k, [k / 4][64][4]; of four bits two such fours share their bytes, the
// first one in the lower halves: [k / 8][64][4].
#pragma once

#include "tile.h"

namespace tandem {

// A register of codes holds a four of k for each of kLanes columns. Processors differ in how they add
// the products of a four to sums in int32; those are whole numbers, and the same everywhere. `kTaken`
// is taken from codes of eight bits before, where products want bytes with a sign.
#if defined(__AVX512VNNI__)

constexpr bool kHasInt8Products = true;
constexpr int32_t kTaken = 0;

inline Ints add_four(Ints sums, Ints codes, Ints x) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
}

#elif defined(__AVXVNNI__) && !defined(__AVX512F__)

constexpr bool kHasInt8Products = true;
constexpr int32_t kTaken = 0;

inline Ints add_four(Ints sums, Ints codes, Ints x) {
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)x);
}

#elif defined(__ARM_FEATURE_DOTPROD)

constexpr bool kHasInt8Products = true;
constexpr int32_t kTaken = 128;

inline Ints add_four(Ints sums, Ints codes, Ints x) {
  return (Ints)vdotq_s32((int32x4_t)sums, (int8x16_t)codes, (int8x16_t)x);
}

#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))

#define TANDEM_SUMS_IN_INT16 1
constexpr bool kHasInt8Products = true;
constexpr int32_t kTaken = 128;

// Products of bytes without a sign and bytes with one, summed in pairs, which must fit int16.
inline Ints multiply_pairs(Ints codes, Ints x) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_maddubs_epi16((__m512i)codes, (__m512i)x);
#else
  return (Ints)_mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
#endif
}

inline Ints add_shorts(Ints a, Ints b) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_add_epi16((__m512i)a, (__m512i)b);
#else
  return (Ints)_mm256_add_epi16((__m256i)a, (__m256i)b);
#endif
}

inline Ints sum_pairs(Ints shorts) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)shorts, _mm512_set1_epi16(1));
#else
  return (Ints)_mm256_madd_epi16((__m256i)shorts, _mm256_set1_epi16(1));
#endif
}

// The signs of codes go to x: a pair is then 2 * 128 * 127 at most.
inline Ints add_four(Ints sums, Ints codes, Ints x) {
#if defined(__AVX512BW__)
  const __mmask64 negative = _mm512_movepi8_mask((__m512i)codes);
  x = (Ints)_mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
  codes = (Ints)_mm512_abs_epi8((__m512i)codes);
#else
  x = (Ints)_mm256_sign_epi8((__m256i)x, (__m256i)codes);
  codes = (Ints)_mm256_abs_epi8((__m256i)codes);
#endif
  return sums + sum_pairs(multiply_pairs(codes, x));
}

#else

constexpr bool kHasInt8Products = false;
constexpr int32_t kTaken = 0;

inline Ints add_four(Ints sums, Ints, Ints) { return sums; }

#endif

// So many rows at once, and of so many registers of columns the sums of a group, fill the register
// file.
constexpr int kCodeRows = kRegisters < 32 ? 4 : 6;
constexpr int code_vectors(int rows) {
  return kRegisters >= 32 ? 4 : rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

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

// Codes of one part of a word: of eight bits there is one.
template <int Vectors, int Bits>
inline __attribute__((always_inline)) void load_codes(const uint8_t* words, int part,
                                                      Ints (&row)[Vectors]) {
  TANDEM_UNROLL for (int v = 0; v < Vectors; ++v) {
    row[v] = load_raw<Ints>(words + v * kLanes * 4);
    if (Bits == 4) row[v] = (part ? row[v] >> 4 : row[v]) & splat_int(0x0f0f0f0f);
    if (Bits == 8 && kTaken) row[v] ^= splat_int((int32_t)0x80808080);
  }
}

// Memory that far ahead is asked for while words are multiplied: what prefetchers of processors do by
// themselves leaves a tile of a few rows waiting for a third of its time. Where registers are long, a
// word takes so little that the requests of the nearest cache do not suffice: the second has more.
constexpr bool kAheadFar = kLanes >= 16;
template <int Products>
constexpr ptrdiff_t kAheadBytes = kAheadFar && Products > 4 ? 8192 : 2048;

// The same columns of the words that come so much later; each takes so many products.
template <int Products, int Vectors>
inline __attribute__((always_inline)) void ask_ahead(const uint8_t* words) {
  constexpr int bytes = Vectors * kLanes * 4;
  for (int b = 0; b < bytes; b += 64)
    __builtin_prefetch(words + kAheadBytes<Products> + b, 0, kAheadFar ? kSecondCache : kNearestCache);
}

// A stretch of a group, of some columns, word after word.
template <int Rows, int Vectors, int Bits>
inline __attribute__((always_inline)) void add_words(Ints (&sums)[Rows][Vectors], const int8_t* x,
                                                     ptrdiff_t x_stride, const uint8_t* words,
                                                     int64_t depth) {
  constexpr int parts = 8 / Bits;
  for (int64_t k = 0; k < depth; k += 4 * parts, words += 4 * kPanelColumns) {
    ask_ahead<Rows * parts, Vectors>(words);
    for (int part = 0; part < parts; ++part) {
      Ints row[Vectors];
      load_codes<Vectors, Bits>(words, part, row);
      TANDEM_UNROLL for (int r = 0; r < Rows; ++r) {
        const Ints four = splat_int(load_raw<int32_t>(x + r * x_stride + k + 4 * part));
        TANDEM_UNROLL for (int v = 0; v < Vectors; ++v)
          sums[r][v] = add_four(sums[r][v], row[v], four);
      }
    }
  }
}

#if defined(TANDEM_SUMS_IN_INT16)

// Of so many k the products of codes of four bits fit int16: 8 * 2 * 15 * 127.
constexpr int64_t kShortDepth = 32;

template <int Rows, int Vectors>
inline __attribute__((always_inline)) void add_shorts(Ints (&sums)[Rows][Vectors], const int8_t* x,
                                                      ptrdiff_t x_stride, const uint8_t* words,
                                                      int64_t depth) {
  for (int64_t first = 0; first < depth; first += kShortDepth) {
    Ints shorts[Rows][Vectors] = {};
    const int64_t end = depth - first < kShortDepth ? depth : first + kShortDepth;
    for (int64_t k = first; k < end; k += 8, words += 4 * kPanelColumns) {
      ask_ahead<2 * Rows, Vectors>(words);
      for (int part = 0; part < 2; ++part) {
        Ints row[Vectors];
        load_codes<Vectors, 4>(words, part, row);
        TANDEM_UNROLL for (int r = 0; r < Rows; ++r) {
          const Ints four = splat_int(load_raw<int32_t>(x + r * x_stride + k + 4 * part));
          TANDEM_UNROLL for (int v = 0; v < Vectors; ++v)
            shorts[r][v] = add_shorts(shorts[r][v], multiply_pairs(row[v], four));
        }
      }
    }
    TANDEM_UNROLL for (int r = 0; r < Rows; ++r)
      TANDEM_UNROLL for (int v = 0; v < Vectors; ++v) sums[r][v] += sum_pairs(shorts[r][v]);
  }
}

#endif

template <int Rows, int Vectors, int Bits>
inline __attribute__((always_inline)) void add_group(Ints (&sums)[Rows][Vectors], const int8_t* x,
                                                     ptrdiff_t x_stride, const uint8_t* words,
                                                     int64_t depth) {
#if defined(TANDEM_SUMS_IN_INT16)
  if (Bits == 4) return add_shorts(sums, x, x_stride, words, depth);
#endif
  add_words<Rows, Vectors, Bits>(sums, x, x_stride, words, depth);
}

// Adds the sums of one group, of columns from `first` on, to those of all groups in c.
template <int Rows, int Vectors>
inline __attribute__((always_inline)) void scale_sums(const Ints (&sums)[Rows][Vectors],
                                                      const CodedRows& x, const CodedPanel& panel,
                                                      int64_t g, int first, float* c) {
  Floats scale[Vectors];
  TANDEM_UNROLL for (int v = 0; v < Vectors; ++v) {
    const int64_t place = g * kPanelColumns + (first + v) * kLanes;
    scale[v] = panel.scale ? load(panel.scale + place) : splat(1.0f);
  }
  TANDEM_UNROLL for (int r = 0; r < Rows; ++r) {
    const Floats own = splat(x.scale[r * x.groups + g]);
    TANDEM_UNROLL for (int v = 0; v < Vectors; ++v) {
      float* total = c + r * kPanelColumns + (first + v) * kLanes;
      const Floats sum = __builtin_convertvector(sums[r][v], Floats);
      store(total, multiply_add(sum, scale[v] * own, load(total)));
    }
  }
}

// What the offsets of a group add to all columns.
inline __attribute__((noinline)) void add_offsets(int rows, const CodedRows& x,
                                                  const CodedPanel& panel, int64_t g, float* c) {
  for (int r = 0; r < rows; ++r) {
    const Floats sum = splat(x.scale[r * x.groups + g] * (float)x.sum[r * x.groups + g]);
    for (int n = 0; n < kPanelColumns; n += kLanes) {
      float* total = c + r * kPanelColumns + n;
      store(total, multiply_add(load(panel.offset + g * kPanelColumns + n), sum, load(total)));
    }
  }
}

template <int Rows, int Bits>
inline __attribute__((noinline)) void tile_codes(float* c, CodedRows x, CodedPanel panel, bool fresh) {
  constexpr int vectors = code_vectors(Rows);
  constexpr int32_t taken = Bits == 8 ? kTaken : 0;
  if (fresh) std::memset(c, 0, Rows * kPanelColumns * sizeof(float));
  const uint8_t* words = panel.codes;
  for (int64_t g = 0; g < panel.groups(); ++g) {
    const int64_t k = g * panel.group;
    const int64_t depth = panel.depth - k < panel.group ? panel.depth - k : panel.group;
    for (int first = 0; first < kPanelVectors; first += vectors) {
      Ints sums[Rows][vectors];
      TANDEM_UNROLL for (int r = 0; r < Rows; ++r)
        TANDEM_UNROLL for (int v = 0; v < vectors; ++v)
          sums[r][v] = splat_int((taken - panel.zero) * x.sum[r * x.groups + g]);
      add_group<Rows, vectors, Bits>(sums, x.codes + k, x.stride, words + first * kLanes * 4, depth);
      scale_sums<Rows, vectors>(sums, x, panel, g, first, c);
    }
    if (panel.offset) add_offsets(Rows, x, panel, g, c);
    words += depth * kPanelColumns * Bits / 8;
  }
}

// c [rows, 64] (+)= x [rows, depth] x panel [depth, 64]; `fresh` starts from zero.
template <int Bits>
inline void tile_codes(int rows, float* c, const CodedRows& x, const CodedPanel& panel, bool fresh) {
  switch (rows) {
    case 1: return tile_codes<1, Bits>(c, x, panel, fresh);
    case 2: return tile_codes<2, Bits>(c, x, panel, fresh);
    case 3: return tile_codes<3, Bits>(c, x, panel, fresh);
    case 4: return tile_codes<4, Bits>(c, x, panel, fresh);
    case 5: return tile_codes<5, Bits>(c, x, panel, fresh);
    default: return tile_codes<6, Bits>(c, x, panel, fresh);
  }
}

// Codes of one row, symmetric within each group; those behind its end are zero. A group with an
// infinity or no number has no number as its scale, and so has every sum over it.
inline void code_row(const float* row, int64_t count, int64_t padded, int64_t group, int8_t* codes,
                     float* scales, int32_t* sums) {
  for (int64_t first = 0, g = 0; first < padded; first += group, ++g) {
    const int64_t end = padded - first < group ? padded : first + group;
    const int64_t last = count < end ? count : end;
    Floats peaks{}, zeros{};
    for (int64_t k = first; k < last; k += kLanes) {
      const Floats x = load_some(row + k, last - k);
      peaks = maximum(magnitude(x), peaks);
      zeros += x * 0.0f;
    }
    const float peak = max_of(peaks), zero = sum_of(zeros);
    // Below that the inverse would be none.
    const float inverse = zero == 0.0f && peak > 1e-30f ? 127.0f / peak : 0.0f;
    Ints total{};
    for (int64_t k = first; k < end; k += kLanes) {
      const int64_t held = last - k, room = end - k < kLanes ? end - k : kLanes;
      const Floats x = held > 0 && inverse != 0.0f ? load_some(row + k, held) : Floats{};
      const Ints whole = __builtin_convertvector(to_nearest(x * inverse), Ints);
      const Bytes narrow = __builtin_convertvector(whole, Bytes);
      if (room == kLanes)
        store_raw(codes + k, narrow);
      else
        std::memcpy(codes + k, &narrow, (size_t)room);
      total += whole;
    }
    scales[g] = peak / 127.0f + zero;
    sums[g] = sum_of(total);
  }
}

}  // namespace tandem
