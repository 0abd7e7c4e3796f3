// Values in bfloat16 in three quarters of their bytes, exactly: of each its low byte as it is, and of
// its high byte, sign and most of the exponent, the number among the sixteen that occur most in the
// weight. Values with another one are exceptions, in a list beside. What DFloat11 (Zhang et al., 2025)
// gains by codes of unlike lengths, but for one bit, with codes that a register of bytes looks up.
//
// A unit is 64 values, of one k and the next of 32 columns: in 32 bytes of codes and 64 low bytes. The
// lower halves of the codes are of the first 32 low bytes. Low bytes are interleaved with the high ones
// that codes stand for, in each part of 16 bytes of a register, which gives two registers of values.
#pragma once

#include <type_traits>

#include "tile_bf16.h"

#if defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
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

// Values of two registers, and how many times so many a pair of k has.
constexpr int64_t kPartValues = 4 * kLanes;
constexpr int kParts = (int)(kPairValues / kPartValues);

// Where the low byte of value `i` of a unit lies among them.
constexpr int64_t compact_place(int64_t i) {
  const int64_t run = kPartValues / 2, in_part = i % kPartValues;
  return i - in_part + in_part % run / 8 * 16 + in_part / run * 8 + in_part % 8;
}

#if defined(TANDEM_COMPACT)

#if defined(__AVX512BW__)

using KnownBytes = __m512i;

inline KnownBytes known_bytes(const Compact& weight) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)weight.known));
}

// One part of a pair of k, in two registers of pairs.
inline __attribute__((always_inline)) void expand_part(const uint8_t* pair, int part,
                                                       KnownBytes known, Words (&pairs)[2]) {
  const uint8_t* unit = pair + part * kUnitBytes;
  const __m512i halves = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)unit));
  const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
  const __m512i codes = _mm512_and_si512(_mm512_srlv_epi16(halves, shifts), _mm512_set1_epi8(15));
  const __m512i high = _mm512_shuffle_epi8(known, codes);
  const __m512i low = _mm512_loadu_si512(unit + 32);
  pairs[0] = (Words)_mm512_unpacklo_epi8(low, high);
  pairs[1] = (Words)_mm512_unpackhi_epi8(low, high);
}

#else

using KnownBytes = __m256i;

inline KnownBytes known_bytes(const Compact& weight) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)weight.known));
}

// One part of a pair of k, in two registers of pairs.
inline __attribute__((always_inline)) void expand_part(const uint8_t* pair, int part,
                                                       KnownBytes known, Words (&pairs)[2]) {
  const uint8_t* unit = pair + part / 2 * kUnitBytes;
  __m256i codes = _mm256_loadu_si256((const __m256i*)unit);
  if (part % 2) codes = _mm256_srli_epi16(codes, 4);
  const __m256i high = _mm256_shuffle_epi8(known, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  const __m256i low = _mm256_loadu_si256((const __m256i*)(unit + 32 + 32 * (part % 2)));
  pairs[0] = (Words)_mm256_unpacklo_epi8(low, high);
  pairs[1] = (Words)_mm256_unpackhi_epi8(low, high);
}

#endif

// Where expanded values go besides: nowhere, [pairs][64][2] or, as floats, [k][64].
struct NoCopy {
  NoCopy operator+(int64_t) const { return {}; }
};

// Register `number` of a pair of k.
inline __attribute__((always_inline)) void put(NoCopy, int, Words) {}
inline __attribute__((always_inline)) void put(bf16* pair, int number, Words values) {
  store_raw(pair + 2 * kLanes * number, values);
}
inline __attribute__((always_inline)) void put(float* pair, int number, Words values) {
  store(pair + kLanes * number, (Floats)(values << 16));
  store(pair + kPanelColumns + kLanes * number, (Floats)(values & 0xffff0000u));
}

// Values of some pairs of k as they were, but for exceptions.
template <class T>
inline void expand(const uint8_t* packed, int64_t pairs, KnownBytes known, T* out) {
  for (int64_t pair = 0; pair < pairs; ++pair, packed += kPairBytes, out += kPairValues)
    for (int part = 0; part < kParts; ++part) {
      Words values[2];
      expand_part(packed, part, known, values);
      TANDEM_UNROLL for (int i = 0; i < 2; ++i) put(out, 2 * part + i, values[i]);
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

// Adds products with the first `depth` of each pair of two registers, which are kept first, to the sums
// from `vector` on: in fp32, one k after the other, or in bfloat16 of both.
template <int Rows, int Vectors, class Keep>
inline __attribute__((always_inline)) void add_pairs(Floats (&acc)[Rows][Vectors], int vector,
                                                     const float* a, ptrdiff_t a_stride,
                                                     const Words (&pairs)[2], int depth, Keep keep) {
  TANDEM_UNROLL for (int v = 0; v < 2; ++v) {
    keep(v);
    for (int k = 0; k < depth; ++k) {
      const Floats b = (Floats)(k ? pairs[v] & 0xffff0000u : pairs[v] << 16);
      TANDEM_UNROLL for (int r = 0; r < Rows; ++r) {
        Floats& sum = acc[r][vector + v];
        sum = multiply_add(splat(a[r * a_stride + k]), b, sum);
      }
    }
  }
}
// Rows outside, so that each pair of one is broadcast once.
template <int Rows, int Vectors, class Keep>
inline __attribute__((always_inline)) void add_pairs(Floats (&acc)[Rows][Vectors], int vector,
                                                     const bf16* a, ptrdiff_t a_stride,
                                                     const Words (&pairs)[2], int, Keep keep) {
  TANDEM_UNROLL for (int v = 0; v < 2; ++v) keep(v);
  TANDEM_UNROLL for (int r = 0; r < Rows; ++r) {
    const Words x = Words{} + load_raw<uint32_t>(a + r * a_stride);
    TANDEM_UNROLL for (int v = 0; v < 2; ++v)
      acc[r][vector + v] = add_pair(acc[r][vector + v], x, pairs[v]);
  }
}

// Where products are in bfloat16, and quick, a stretch that is looked up has at most so many k: what is
// around a tile counts for more.
constexpr int64_t kLookedUpDepth = 4 * kListedDepth;

// The pairs of such a stretch in which there are exceptions, as they were, in their order.
struct ExceptionalPairs {
  int64_t count = 0;
  int64_t pair[kLookedUpDepth / 2];
  bf16 values[kLookedUpDepth / 2][kPairValues];
};
struct NoExceptionalPairs {
  static constexpr int64_t count = 0;
  static constexpr const int64_t* pair = nullptr;
  static constexpr const bf16 (*values)[kPairValues] = nullptr;
};

// What a tile has besides factors: pairs that it takes from elsewhere, memory that it asks for, and a copy
// of what it looks up.
template <class Exceptional, class Ahead, class Copy>
struct Besides {
  const Exceptional& exceptional;
  Ahead& ahead;
  Copy copy;
};

// A first pass asks for what lies so far ahead; not where the processor sees to that well enough by itself,
// as where registers are long and no other rows come in between, for which a copy is kept.
template <class Copy>
constexpr int64_t kCompactAhead = kLanes < 16 ? 1536 : std::is_same<Copy, NoCopy>::value ? 0 : 8192;
constexpr int kCompactCache = kLanes < 16 ? kNearestCache : kSecondCache;

// As tile_rows and tile_pairs, of so many parts from `First` on.
template <int Rows, int First, int Parts, class A, class Exceptional, class Ahead, class Copy>
inline __attribute__((noinline)) void tile_parts(float* c, const A* a, ptrdiff_t a_stride,
                                                 const uint8_t* packed, KnownBytes known,
                                                 int64_t depth, bool fresh,
                                                 Besides<Exceptional, Ahead, Copy> besides) {
  Floats acc[Rows][2 * Parts];
  c += First * 2 * kLanes;
  TANDEM_UNROLL for (int r = 0; r < Rows; ++r)
    TANDEM_UNROLL for (int v = 0; v < 2 * Parts; ++v)
      acc[r][v] = fresh ? Floats{} : load(c + r * kPanelColumns + v * kLanes);
  Copy copy = besides.copy;
  int64_t pair = 0;
  const auto step = [&]() __attribute__((always_inline)) {
    ++pair, a += 2, packed += kPairBytes, copy = copy + kPairValues;
  };
  const auto add = [&](int count) __attribute__((always_inline)) {
    if (kCompactAhead<Copy> && !First)
      for (int64_t i = 0; i < kPairBytes; i += 64)
        __builtin_prefetch(packed + kCompactAhead<Copy> + i, 0, kCompactCache);
    TANDEM_UNROLL for (int part = 0; part < Parts; ++part) {
      Words pairs[2];
      expand_part(packed, First + part, known, pairs);
      add_pairs(acc, 2 * part, a, a_stride, pairs, count, [&](int v) __attribute__((always_inline)) {
        put(copy, 2 * (First + part) + v, pairs[v]);
      });
    }
    step();
  };
  const auto add_exceptional = [&](const bf16* values, int count) __attribute__((always_inline)) {
    TANDEM_UNROLL for (int part = 0; part < Parts; ++part) {
      const bf16* first = values + (First + part) * kPartValues;
      const Words pairs[2] = {load_raw<Words>(first), load_raw<Words>(first + 2 * kLanes)};
      add_pairs(acc, 2 * part, a, a_stride, pairs, count, [](int) {});
    }
    step();
  };
  constexpr int64_t stride = Ahead::kStride > 1 ? Ahead::kStride / 2 : 1;
  for (int64_t next = 0;; ++next) {
    const bool last = next == besides.exceptional.count;
    const int64_t end = last ? depth / 2 : besides.exceptional.pair[next];
    while (pair + stride <= end) {
      besides.ahead.step();
      for (int64_t i = 0; i < stride; ++i) add(2);
    }
    while (pair < end) add(2);
    if (last) break;
    add_exceptional(besides.exceptional.values[next], depth - 2 * pair < 2 ? 1 : 2);
  }
  if (2 * pair < depth) add(1);
  TANDEM_UNROLL for (int r = 0; r < Rows; ++r)
    TANDEM_UNROLL for (int v = 0; v < 2 * Parts; ++v)
      store(c + r * kPanelColumns + v * kLanes, acc[r][v]);
}

// More rows read each value so often that a copy of them as they were is cheaper: what the first of them
// look up, if they are not more. Products of pairs are so quick that reading a copy takes longer than
// looking up twice, each time for half of the columns of as many rows as registers have room for.
constexpr int kLookedUpOnce = kRegisters < 32 ? 3 : kTileRows;
constexpr int kLookedUpTwice = kHasBf16Products ? 12 : kLookedUpOnce;

// All columns at once where their sums fit the register file beside what expands them, or half of them.
constexpr int parts_for(int rows) {
  return rows * kPanelVectors + 6 > kRegisters ? kParts / 2 : kParts;
}

// c [rows, 64] (+)= a [rows, depth] x a stretch, for at most `Most` rows; `fresh` starts from zero.
template <int Rows, int Most, class A, class Besides>
inline void tile_compact(int rows, float* c, const A* a, ptrdiff_t a_stride, const uint8_t* packed,
                         KnownBytes known, int64_t depth, bool fresh, Besides besides) {
  if constexpr (Rows < Most)
    if (rows > Rows)
      return tile_compact<Rows + 1, Most>(rows, c, a, a_stride, packed, known, depth, fresh, besides);
  constexpr int parts = parts_for(Rows);
  tile_parts<Rows, 0, parts>(c, a, a_stride, packed, known, depth, fresh, besides);
  if constexpr (parts < kParts)
    tile_parts<Rows, parts, parts>(c, a, a_stride, packed, known, depth, fresh, besides);
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

  // c [rows, 64] (+)= a [rows, depth] x this, for at most kLookedUpOnce rows; a copy of the values may be
  // kept.
  template <class A, class Copy>
  void multiply_once(int rows, float* c, const A* a, ptrdiff_t a_stride, bool fresh,
                     Copy copy) const {
    int64_t done = 0;
    for (int64_t list = 0; list * kListedDepth < depth_; ++list)
      for (uint32_t i = begins_[list]; i < begins_[list + 1];) {
        // Pairs with an exception are expanded on their own.
        const int64_t in_list = (exceptions_[i] >> 8) / kPairValues;
        const int64_t first = list * kListedDepth + 2 * in_list;
        if (first > done) multiply_known(rows, c, a, a_stride, done, first, fresh && !done, copy);
        bf16 values[kPairValues];
        tandem::expand(packed_ + first / 2 * kPairBytes, 1, known_, values);
        for (; i < begins_[list + 1] && (exceptions_[i] >> 8) / kPairValues == in_list; ++i)
          set_high_byte(values, (exceptions_[i] >> 8) % kPairValues, exceptions_[i] & 255);
        const int64_t depth = depth_ - first < 2 ? depth_ - first : 2;
        multiply_pair(rows, c, a + first, a_stride, values, depth, fresh && !first);
        for (int v = 0; v < kPanelVectors; ++v)
          put(copy + first * kPanelColumns, v, load_raw<Words>(values + 2 * kLanes * v));
        done = first + depth;
      }
    if (done < depth_) multiply_known(rows, c, a, a_stride, done, depth_, fresh && !done, copy);
  }

  // The same for at most kLookedUpTwice rows, but more, and a stretch of at most kLookedUpDepth.
  template <class A, class Ahead>
  void multiply_twice(int rows, float* c, const A* a, ptrdiff_t a_stride, bool fresh,
                      Ahead& ahead) const {
    ExceptionalPairs exceptional;
    find_exceptional(&exceptional);
    const Besides<ExceptionalPairs, Ahead, NoCopy> besides{exceptional, ahead, {}};
    tile_compact<kLookedUpOnce + 1, kLookedUpTwice>(rows, c, a, a_stride, packed_, known_, depth_,
                                                    fresh, besides);
  }

 private:
  template <class A, class Copy>
  void multiply_known(int rows, float* c, const A* a, ptrdiff_t a_stride, int64_t first,
                      int64_t last, bool fresh, Copy copy) const {
    const NoExceptionalPairs none;
    NoReadAhead nothing;
    const Besides<NoExceptionalPairs, NoReadAhead, Copy> besides{none, nothing,
                                                                 copy + first * kPanelColumns};
    tile_compact<1, kLookedUpOnce>(rows, c, a + first, a_stride, packed_ + first / 2 * kPairBytes,
                                   known_, last - first, fresh, besides);
  }
  static void multiply_pair(int rows, float* c, const float* a, ptrdiff_t a_stride,
                            const bf16* values, int64_t depth, bool fresh) {
    tile(rows, c, kPanelColumns, a, a_stride, PairedRows{values, kPairValues},
         TileShape{depth, kPanelColumns, fresh});
  }
  static void multiply_pair(int rows, float* c, const bf16* a, ptrdiff_t a_stride,
                            const bf16* values, int64_t, bool fresh) {
    NoReadAhead nothing;
    tile_pairs(rows, c, kPanelColumns, a, a_stride, values, 1, fresh, nothing);
  }

  void find_exceptional(ExceptionalPairs* found) const {
    bf16* values = nullptr;
    for (int64_t list = 0; list * kListedDepth < depth_; ++list)
      for (uint32_t i = begins_[list]; i < begins_[list + 1]; ++i) {
        const uint32_t place = exceptions_[i] >> 8;
        const int64_t pair = list * kListedDepth / 2 + place / kPairValues;
        if (!values || found->pair[found->count - 1] != pair) {
          found->pair[found->count] = pair;
          values = found->values[found->count++];
          tandem::expand(packed_ + pair * kPairBytes, 1, known_, values);
        }
        set_high_byte(values, place % kPairValues, exceptions_[i] & 255);
      }
  }

  const uint8_t* packed_;
  KnownBytes known_;
  int64_t depth_;
  const uint32_t* begins_;
  const uint32_t* exceptions_;
};

#endif

}  // namespace tandem
