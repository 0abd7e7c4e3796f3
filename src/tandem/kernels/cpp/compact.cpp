// Panels in bfloat16 become a compact weight (compact.h), some panels at a time.
#include "compact.h"

#include <vector>

using namespace tandem;

#if defined(TANDEM_COMPACT)

namespace {

struct Exception {
  int64_t stretch;
  uint32_t place_and_byte;
};

// The values of a part; says which bytes have no code.
#if defined(__AVX512BW__)

uint64_t compact_part(const uint8_t (&known)[16], const uint16_t* values, int part, uint8_t* pair) {
  const __m512i first = _mm512_loadu_si512(values), second = _mm512_loadu_si512(values + 32);
  const __m512i byte = _mm512_set1_epi16(255);
  const __m512i low =
      _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(second, byte));
  const __m512i high =
      _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
  __m512i codes = _mm512_setzero_si512();
  uint64_t found = 0;
  for (int n = 0; n < 16; ++n) {
    const __mmask64 same = _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8((char)known[n]));
    codes = _mm512_mask_mov_epi8(codes, same, _mm512_set1_epi8((char)n));
    found |= same;
  }
  uint8_t* unit = pair + part * kUnitBytes;
  const __m256i upper = _mm256_slli_epi16(_mm512_extracti64x4_epi64(codes, 1), 4);
  _mm256_storeu_si256((__m256i*)unit, _mm256_or_si256(_mm512_castsi512_si256(codes), upper));
  _mm512_storeu_si512(unit + 32, low);
  return ~found;
}

#else

uint64_t compact_part(const uint8_t (&known)[16], const uint16_t* values, int part, uint8_t* pair) {
  const __m256i first = _mm256_loadu_si256((const __m256i*)values);
  const __m256i second = _mm256_loadu_si256((const __m256i*)(values + 16));
  const __m256i byte = _mm256_set1_epi16(255);
  const __m256i low = _mm256_packus_epi16(_mm256_and_si256(first, byte), _mm256_and_si256(second, byte));
  const __m256i high = _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
  __m256i codes = _mm256_setzero_si256(), found = codes;
  for (int n = 0; n < 16; ++n) {
    const __m256i same = _mm256_cmpeq_epi8(high, _mm256_set1_epi8((char)known[n]));
    codes = _mm256_or_si256(codes, _mm256_and_si256(same, _mm256_set1_epi8((char)n)));
    found = _mm256_or_si256(found, same);
  }
  uint8_t* unit = pair + part / 2 * kUnitBytes;
  if (part % 2)
    codes = _mm256_or_si256(_mm256_loadu_si256((const __m256i*)unit), _mm256_slli_epi16(codes, 4));
  _mm256_storeu_si256((__m256i*)unit, codes);
  _mm256_storeu_si256((__m256i*)(unit + 32 + 32 * (part % 2)), low);
  return ~(uint32_t)_mm256_movemask_epi8(found);
}

#endif

// What lies behind the last column or k is read by nobody.
void compact_panel(const Compact& weight, int64_t panel, const uint16_t* values, uint8_t* packed,
                   std::vector<Exception>& exceptions) {
  for (int64_t at = 0; at < weight.pairs() * kPairValues; at += kPartValues) {
    const int part = (int)(at % kPairValues / kPartValues);
    uint8_t* pair = packed + at / kPairValues * kPairBytes;
    if (!compact_part(weight.known, values + at, part, pair)) continue;
    for (int64_t i = at; i < at + kPartValues; ++i) {
      const uint8_t high = (uint8_t)(values[i] >> 8);
      if (std::memchr(weight.known, high, sizeof weight.known)) continue;
      const int64_t column = panel * kPanelColumns + i % kPairValues / 2;
      if (column >= weight.out_features || i / kPairValues * 2 + i % 2 >= weight.in_features) continue;
      const int64_t stretch = i / (kListedDepth * kPanelColumns);
      const int64_t place = i % (kListedDepth * kPanelColumns);
      exceptions.push_back({stretch, (uint32_t)(place << 8 | high)});
    }
  }
}

}  // namespace

extern "C" int64_t tandem_has_compact() { return 1; }

// Bytes of a weight with so many exceptions.
extern "C" void tandem_compact_bytes(int64_t out_features, int64_t in_features, int64_t exceptions,
                                     int64_t* bytes) {
  *bytes = Compact{{}, out_features, in_features, {}}.bytes(exceptions);
}

extern "C" void tandem_begin_compact(const uint8_t* known, int64_t out_features, int64_t in_features,
                                     void* to) {
  Compact& weight = *(Compact*)to;
  weight = Compact{{}, out_features, in_features, {}};
  std::memcpy(weight.known, known, sizeof weight.known);
  *(uint32_t*)weight.first_exceptions(0) = 0;
}

// Panels `first` .. `first` + `count`, all before them being there. Gives the number of exceptions so
// far; -1 where these are more than `most`.
extern "C" void tandem_compact(const void* values, int64_t first, int64_t count, void* to,
                               int64_t most, int64_t* exceptions, int64_t threads) {
  const Compact& weight = *(const Compact*)to;
  std::vector<std::vector<Exception>> found(count);
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
  for (int64_t i = 0; i < count; ++i)
    compact_panel(weight, first + i,
                  (const uint16_t*)values + i * weight.pairs() * kPairValues,
                  (uint8_t*)weight.panel(first + i), found[i]);
  uint32_t* begins = (uint32_t*)weight.first_exceptions(first);
  uint32_t* listed = (uint32_t*)weight.exceptions();
  int64_t total = begins[0];
  for (int64_t i = 0; i < count; ++i, begins += weight.stretches()) {
    size_t next = 0;
    if (total + (int64_t)found[i].size() > most) {
      *exceptions = -1;
      return;
    }
    for (int64_t stretch = 0; stretch < weight.stretches(); ++stretch) {
      for (; next < found[i].size() && found[i][next].stretch == stretch; ++next)
        listed[total++] = found[i][next].place_and_byte;
      begins[stretch + 1] = (uint32_t)total;
    }
  }
  *exceptions = total;
}

#else

extern "C" int64_t tandem_has_compact() { return 0; }

#endif
