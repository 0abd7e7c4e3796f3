// Rows in bfloat16 become a compact weight (compact.h): each panel in a thread's scratch first, as it
// would lie in memory plain.
#include "compact.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "pack.h"

using namespace tandem;

#if defined(TANDEM_COMPACT)

namespace {

// Of about so many rows bytes are counted.
constexpr int64_t kSampledRows = 128;

struct Rows {
  const uint16_t* values;
  int64_t stride;
};

// The bytes that occur most among the high ones.
void choose_known(const Rows& rows, Compact* weight, int threads) {
  const int64_t step = std::max<int64_t>(1, weight->out_features / kSampledRows);
  int64_t counts[256] = {};
#pragma omp parallel for num_threads(threads) reduction(+ : counts[ : 256])
  for (int64_t row = 0; row < weight->out_features; row += step)
    for (int64_t k = 0; k < weight->in_features; ++k)
      ++counts[rows.values[row * rows.stride + k] >> 8];
  uint8_t bytes[256];
  std::iota(bytes, bytes + 256, 0);
  std::stable_sort(bytes, bytes + 256,
                   [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
  std::copy_n(bytes, sizeof weight->known, weight->known);
}

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

// Those of all panels in a row, and where those of each stretch begin.
void list_exceptions(const Compact& weight, const std::vector<std::vector<Exception>>& found) {
  uint32_t* begins = (uint32_t*)weight.first_exceptions(0);
  uint32_t* listed = (uint32_t*)weight.exceptions();
  uint32_t total = *begins++ = 0;
  for (const std::vector<Exception>& of_panel : found) {
    auto next = of_panel.begin();
    for (int64_t stretch = 0; stretch < weight.stretches(); ++stretch, *begins++ = total)
      for (; next != of_panel.end() && next->stretch == stretch; ++next)
        listed[total++] = next->place_and_byte;
  }
}

}  // namespace

extern "C" int64_t tandem_has_compact() { return 1; }

// Bytes of a weight with so many exceptions.
extern "C" void tandem_compact_bytes(int64_t out_features, int64_t in_features, int64_t exceptions,
                                     int64_t* bytes) {
  *bytes = Compact{{}, out_features, in_features, {}}.bytes(exceptions);
}

// Rows of an even length, `row_stride` values apart, to which `to` has room with `most` exceptions. Gives
// how many there are; -1 where they are more than that.
extern "C" void tandem_compact(const void* values, int64_t row_stride, int64_t out_features,
                               int64_t in_features, void* to, int64_t most, int64_t* exceptions,
                               int64_t most_threads) {
  const Rows rows{(const uint16_t*)values, row_stride};
  const int threads = threads_for(out_features * in_features, most_threads);
  Compact& weight = *(Compact*)to;
  weight = Compact{{}, out_features, in_features, {}};
  choose_known(rows, &weight, threads);
  std::vector<std::vector<Exception>> found(weight.panels());
  std::atomic<int64_t> total{0};
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t panel = 0; panel < weight.panels(); ++panel) {
    static thread_local Scratch held;
    if (total > most) continue;
    uint32_t* pairs = (uint32_t*)held.take(weight.pairs() * kPanelColumns);
    const int64_t first = panel * kPanelColumns;
    pack_panel((const uint32_t*)(rows.values + first * row_stride), row_stride / 2,
               out_features - first, weight.pairs(), pairs);
    compact_panel(weight, panel, (const uint16_t*)pairs, (uint8_t*)weight.panel(panel), found[panel]);
    total += (int64_t)found[panel].size();
  }
  *exceptions = total > most ? -1 : (int64_t)total;
  if (total <= most) list_exceptions(weight, found);
}

#else

extern "C" int64_t tandem_has_compact() { return 0; }

#endif
