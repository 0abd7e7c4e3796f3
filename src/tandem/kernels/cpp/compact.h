// Values in bfloat16 in three quarters of their bytes, exactly: of each its low byte as it is, and of
// its high byte, sign and most of the exponent, the number among the sixteen that occur most in the
// weight. Values with another one are exceptions, in a list beside. What DFloat11 (Zhang et al., 2025)
// gains by codes of unlike lengths, but for one bit, with codes that a register of bytes looks up.
//
// 64 values, of one k and the next of 32 columns, lie in 32 bytes of codes and 2 x 32 low bytes. The
// first 32 of them have the lower half of each byte of codes, and come from it by interleaving low
// with high bytes in each half of a register.
#pragma once

#include "tile.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
#define TANDEM_COMPACT 1
#endif

namespace tandem {

constexpr int64_t kUnitBytes = 96;
constexpr int64_t kPairBytes = 2 * kUnitBytes;
constexpr int64_t kPairValues = 2 * kPanelColumns;
// Exceptions are listed by as many k of a panel.
constexpr int64_t kListedDepth = 32;

// A weight of panels as one piece: this header, the panels, where the exceptions of each stretch
// begin, and the exceptions: place in the stretch << 8 | high byte.
struct Compact {
  uint8_t known[16];
  int64_t out_features, in_features;
  int64_t unused[4];

  int64_t panels() const { return (out_features + kPanelColumns - 1) / kPanelColumns; }
  int64_t pairs() const { return (in_features + 1) / 2; }
  int64_t stretches() const { return (in_features + kListedDepth - 1) / kListedDepth; }
  int64_t begins() const { return sizeof(Compact) + panels() * pairs() * kPairBytes; }
  int64_t bytes(int64_t exceptions) const {
    return begins() + (panels() * stretches() + 1 + exceptions) * (int64_t)sizeof(uint32_t);
  }

  const uint8_t* panel(int64_t panel) const {
    return (const uint8_t*)(this + 1) + panel * pairs() * kPairBytes;
  }
  const uint32_t* first_exceptions(int64_t panel) const {
    return (const uint32_t*)((const uint8_t*)this + begins()) + panel * stretches();
  }
  const uint32_t* exceptions() const { return first_exceptions(panels()) + 1; }
};
static_assert(sizeof(Compact) == 64, "panels begin with a cache line");

// Where the byte of value `i` of 32 lies.
constexpr int64_t compact_place(int64_t i) { return i % 16 / 8 * 16 + i / 16 * 8 + i % 8; }

#if defined(TANDEM_COMPACT)

using KnownBytes = __m256i;

inline KnownBytes known_bytes(const Compact& weight) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)weight.known));
}

// One half of 64 values, in two registers of pairs.
inline __attribute__((always_inline)) void expand_half(const uint8_t* unit, int half,
                                                       KnownBytes known, Words (&pairs)[2]) {
  __m256i codes = _mm256_loadu_si256((const __m256i*)unit);
  if (half) codes = _mm256_srli_epi16(codes, 4);
  const __m256i high = _mm256_shuffle_epi8(known, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  const __m256i low = _mm256_loadu_si256((const __m256i*)(unit + 32 + 32 * half));
  pairs[0] = (Words)_mm256_unpacklo_epi8(low, high);
  pairs[1] = (Words)_mm256_unpackhi_epi8(low, high);
}

// Values of some pairs of k as they were, but for exceptions: [pairs][64][2], or [k][64] as floats.
inline void expand(const uint8_t* packed, int64_t pairs, KnownBytes known, bf16* out) {
  for (int64_t unit = 0; unit < 2 * pairs; ++unit, packed += kUnitBytes, out += 64)
    for (int half = 0; half < 2; ++half) {
      Words values[2];
      expand_half(packed, half, known, values);
      for (int i = 0; i < 2; ++i) store_raw(out + 32 * half + 16 * i, values[i]);
    }
}
inline void expand(const uint8_t* packed, int64_t pairs, KnownBytes known, float* out) {
  for (int64_t pair = 0; pair < pairs; ++pair, packed += kPairBytes, out += 2 * kPanelColumns)
    for (int half = 0; half < 4; ++half) {
      Words values[2];
      expand_half(packed + half / 2 * kUnitBytes, half % 2, known, values);
      for (int i = 0; i < 2; ++i) {
        float* columns = out + (2 * half + i) * kLanes;
        store(columns, (Floats)(values[i] << 16));
        store(columns + kPanelColumns, (Floats)(values[i] & 0xffff0000u));
      }
    }
}

inline void set_high_byte(bf16* values, uint32_t place, uint32_t byte) {
  values[place].bits = (uint16_t)(byte << 8 | (values[place].bits & 255));
}
inline void set_high_byte(float* values, uint32_t place, uint32_t byte) {
  const int64_t k = place / kPairValues * 2 + place % 2, column = place % kPairValues / 2;
  float* value = values + k * kPanelColumns + column;
  store_raw(value, byte << 24 | (load_raw<uint32_t>(value) & 0xffffff));
}

// As tile_rows, of pairs without exceptions and of so many halves from `First` on.
template <int Rows, int First, int Halves>
struct CompactTile {
  Floats acc[Rows][2 * Halves];

  inline __attribute__((always_inline)) void add(const float* a, ptrdiff_t a_stride,
                                                 const uint8_t* pair, KnownBytes known, int depth) {
    for (int half = 0; half < Halves; ++half) {
      Words both[2];
      expand_half(pair + (First + half) / 2 * kUnitBytes, (First + half) % 2, known, both);
      for (int v = 0; v < 2; ++v)
        for (int k = 0; k < depth; ++k) {
          const Floats b = (Floats)(k ? both[v] & 0xffff0000u : both[v] << 16);
          for (int r = 0; r < Rows; ++r) {
            Floats& sum = acc[r][2 * half + v];
            sum = multiply_add(splat(a[r * a_stride + k]), b, sum);
          }
        }
    }
  }
};

// Memory is asked for this far ahead.
constexpr int64_t kAheadBytes = 1536;

template <int Rows, int First, int Halves>
inline __attribute__((noinline)) void tile_compact(float* c, const float* a, ptrdiff_t a_stride,
                                                   const uint8_t* pair, KnownBytes known,
                                                   int64_t depth, bool fresh) {
  CompactTile<Rows, First, Halves> tile;
  c += First * 2 * kLanes;
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 2 * Halves; ++v)
      tile.acc[r][v] = fresh ? Floats{} : load(c + r * kPanelColumns + v * kLanes);
  int64_t k = 0;
  for (; k + 2 <= depth; k += 2, pair += kPairBytes) {
    if (!First)
      for (int64_t i = 0; i < kPairBytes; i += 64) __builtin_prefetch(pair + kAheadBytes + i, 0, 3);
    tile.add(a + k, a_stride, pair, known, 2);
  }
  if (k < depth) tile.add(a + k, a_stride, pair, known, 1);
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 2 * Halves; ++v) store(c + r * kPanelColumns + v * kLanes, tile.acc[r][v]);
}

// More rows read each value so often that a copy of them as they were is cheaper.
constexpr int kCompactRows = 3;

// c [rows, 64] (+)= a [rows, depth] x pairs without exceptions; `fresh` starts from zero.
inline void tile_compact(int rows, float* c, const float* a, ptrdiff_t a_stride,
                         const uint8_t* packed, KnownBytes known, int64_t depth, bool fresh) {
  switch (rows) {
    case 1: return tile_compact<1, 0, 4>(c, a, a_stride, packed, known, depth, fresh);
    case 2:
      tile_compact<2, 0, 2>(c, a, a_stride, packed, known, depth, fresh);
      return tile_compact<2, 2, 2>(c, a, a_stride, packed, known, depth, fresh);
    default:
      tile_compact<3, 0, 2>(c, a, a_stride, packed, known, depth, fresh);
      return tile_compact<3, 2, 2>(c, a, a_stride, packed, known, depth, fresh);
  }
}

// `depth` k of a panel from `k` on, which is the first of a list of exceptions.
class CompactStretch {
 public:
  CompactStretch(const Compact& weight, int64_t panel, int64_t k, int64_t depth)
      : packed_(weight.panel(panel) + k / 2 * kPairBytes),
        known_(known_bytes(weight)),
        depth_(depth),
        begins_(weight.first_exceptions(panel) + k / kListedDepth),
        exceptions_(weight.exceptions()) {}

  int64_t bytes() const { return (depth_ + 1) / 2 * kPairBytes; }
  const char* end() const { return (const char*)packed_ + bytes(); }

  template <class T>
  void expand(T* out) const {
    tandem::expand(packed_, (depth_ + 1) / 2, known_, out);
    for (int64_t list = 0; list * kListedDepth < depth_; ++list)
      for (uint32_t i = begins_[list]; i < begins_[list + 1]; ++i)
        set_high_byte(out + list * kListedDepth * kPanelColumns, exceptions_[i] >> 8,
                      exceptions_[i] & 255);
  }

  // c [rows, 64] (+)= a [rows, depth] x of one list, for at most kCompactRows.
  void multiply(int rows, float* c, const float* a, ptrdiff_t a_stride, bool fresh) const {
    int64_t done = 0;
    for (uint32_t i = begins_[0]; i < begins_[1];) {
      // Pairs with an exception are expanded on their own.
      const int64_t pair = (exceptions_[i] >> 8) / kPairValues;
      if (2 * pair > done) tile_pairs(rows, c, a, a_stride, done, 2 * pair, fresh && !done);
      bf16 values[kPairValues];
      tandem::expand(packed_ + pair * kPairBytes, 1, known_, values);
      for (; i < begins_[1] && (exceptions_[i] >> 8) / kPairValues == pair; ++i)
        set_high_byte(values, (exceptions_[i] >> 8) % kPairValues, exceptions_[i] & 255);
      const int64_t depth = depth_ - 2 * pair < 2 ? depth_ - 2 * pair : 2;
      tile(rows, c, kPanelColumns, a + 2 * pair, a_stride, PairedRows{values, kPairValues},
           TileShape{depth, kPanelColumns, fresh && !pair});
      done = 2 * pair + depth;
    }
    if (done < depth_) tile_pairs(rows, c, a, a_stride, done, depth_, fresh && !done);
  }

 private:
  void tile_pairs(int rows, float* c, const float* a, ptrdiff_t a_stride, int64_t first,
                  int64_t last, bool fresh) const {
    tile_compact(rows, c, a + first, a_stride, packed_ + first / 2 * kPairBytes, known_,
                 last - first, fresh);
  }

  const uint8_t* packed_;
  KnownBytes known_;
  int64_t depth_;
  const uint32_t* begins_;
  const uint32_t* exceptions_;
};

#endif

}  // namespace tandem
