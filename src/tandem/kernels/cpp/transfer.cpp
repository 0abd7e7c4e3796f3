// Copies and checksums of raw memory. What the checksum's bits are is defined in kernels/transfer.py.
#include <cstring>

#include "vectors.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

using namespace tandem;

namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are little-endian");

constexpr int kWords = 8;
constexpr int64_t kStepBytes = kWords * 8;
// Shorter pieces are copied through the caches.
constexpr int64_t kStreamBytes = 4096;

// One register of words, and as many of them as make eight.
#if defined(__AVX512F__)
constexpr int kPartBytes = 64;
#elif defined(__AVX2__)
constexpr int kPartBytes = 32;
#else
constexpr int kPartBytes = 16;
#endif
constexpr int kParts = kStepBytes / kPartBytes;
typedef uint64_t Part __attribute__((vector_size(kPartBytes)));

struct Eight {
  Part parts[kParts];
};

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kLaneKeys[kWords] = {
    0x6A09E667F3BCC909ull, 0xBB67AE8584CAA73Bull, 0x3C6EF372FE94F82Bull, 0xA54FF53A5F1D36F1ull,
    0x510E527FADE682D1ull, 0x9B05688C2B3E6C1Full, 0x1F83D9ABFB41BD6Bull, 0x5BE0CD19137E2179ull,
};

inline Eight load_step(const void* source) {
  Eight step;
  for (int i = 0; i < kParts; ++i)
    step.parts[i] = load_raw<Part>((const char*)source + i * kPartBytes);
  return step;
}

inline void store_step(void* target, const Eight& step) {
  for (int i = 0; i < kParts; ++i) store_raw((char*)target + i * kPartBytes, step.parts[i]);
}

// Past the caches: what arrives is read much later, and a line need not be fetched to be replaced.
// Faster than memcpy by half where that keeps to the caches.
inline void stream_part(char* target, Part value) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i*)target, (__m512i)value);
#elif defined(__AVX2__)
  _mm256_stream_si256((__m256i*)target, (__m256i)value);
#elif defined(__SSE2__)
  _mm_stream_si128((__m128i*)target, (__m128i)value);
#else
  store_raw(target, value);
#endif
}

inline void stream_step(char* target, const Eight& step) {
  for (int i = 0; i < kParts; ++i) stream_part(target + i * kPartBytes, step.parts[i]);
}

inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Of each word, the lower half times the upper one.
inline Part product_of_halves(Part x) {
#if defined(__AVX512F__)
  return (Part)_mm512_mul_epu32((__m512i)x, (__m512i)(x >> 32));
#elif defined(__AVX2__)
  return (Part)_mm256_mul_epu32((__m256i)x, (__m256i)(x >> 32));
#elif defined(__SSE2__)
  return (Part)_mm_mul_epu32((__m128i)x, (__m128i)(x >> 32));
#elif defined(__aarch64__)
  return (Part)vmull_u32(vmovn_u64((uint64x2_t)x), vshrn_n_u64((uint64x2_t)x, 32));
#else
  return (x & 0xFFFFFFFFull) * (x >> 32);
#endif
}

inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

struct Checksum {
  Eight products = {};
  Eight sums = {};
  Eight keys = load_step(kLaneKeys);

  void add(const Eight& words) {
    for (int i = 0; i < kParts; ++i) {
      products.parts[i] += product_of_halves(words.parts[i] ^ keys.parts[i]);
      sums.parts[i] += words.parts[i];
      keys.parts[i] += kGolden;
    }
  }

  uint64_t finish(int64_t bytes) const {
    uint64_t product[kWords], sum[kWords];
    store_step(product, products);
    store_step(sum, sums);
    uint64_t total = (uint64_t)bytes * kGolden;
    for (int lane = 0; lane < kWords; ++lane)
      total += mixed(product[lane] + kLaneKeys[lane]) + mixed(sum[lane] ^ ~kLaneKeys[lane]);
    total = mixed(total);
    return total ? total : 1;
  }
};

inline Eight load_some(const char* source, int64_t bytes) {
  char filled[kStepBytes] = {};
  std::memcpy(filled, source, bytes);
  return load_step(filled);
}

uint64_t checksum_run(const char* source, int64_t bytes) {
  Checksum checksum;
  int64_t at = 0;
  for (; at + kStepBytes <= bytes; at += kStepBytes) checksum.add(load_step(source + at));
  if (at < bytes) checksum.add(load_some(source + at, bytes - at));
  return checksum.finish(bytes);
}

template <bool kAligned>
uint64_t copy_run(char* target, const char* source, int64_t bytes) {
  Checksum checksum;
  int64_t at = 0;
  for (; at + kStepBytes <= bytes; at += kStepBytes) {
    const Eight words = load_step(source + at);
    if (kAligned) {
      stream_step(target + at, words);
    } else {
      store_step(target + at, words);
    }
    checksum.add(words);
  }
  if (at < bytes) {
    std::memcpy(target + at, source + at, bytes - at);
    checksum.add(load_some(source + at, bytes - at));
  }
  return checksum.finish(bytes);
}

bool aligned(const void* address) { return (uintptr_t)address % kStepBytes == 0; }

constexpr int kKeyWords = 128;
constexpr int64_t kSumBytes = kKeyWords * 8;

inline uint64_t word_at(const char* source) {
  uint64_t word;
  std::memcpy(&word, source, 8);
  return word;
}

// Several sums side by side: each is a chain of additions with carry.
inline void keyed_sum(const char* source, const uint64_t* key, uint64_t* out) {
  constexpr int kChains = 4;
  unsigned __int128 sums[kChains] = {};
  for (int word = 0; word < kKeyWords; word += 2 * kChains) {
    for (int chain = 0; chain < kChains; ++chain) {
      const int at = word + 2 * chain;
      const uint64_t a = word_at(source + 8 * at) + key[at];
      const uint64_t b = word_at(source + 8 * at + 8) + key[at + 1];
      sums[chain] += (unsigned __int128)a * b;
    }
  }
  const unsigned __int128 total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  out[0] = (uint64_t)total;
  out[1] = (uint64_t)(total >> 64);
}

void sum_run(const char* source, int64_t bytes, const uint64_t* key, uint64_t* out) {
  int64_t at = 0;
  for (; at + kSumBytes <= bytes; at += kSumBytes, out += 2) keyed_sum(source + at, key, out);
  if (at < bytes) {
    char filled[kSumBytes] = {};
    std::memcpy(filled, source + at, bytes - at);
    keyed_sum(filled, key, out);
  }
}

void copy_span(char* target, const char* source, int64_t bytes) {
  if (bytes < kStreamBytes) {
    std::memcpy(target, source, bytes);
    return;
  }
  int64_t at = -(uintptr_t)target % kStepBytes;
  std::memcpy(target, source, at);
  for (; at + kStepBytes <= bytes; at += kStepBytes) {
    stream_step(target + at, load_step(source + at));
  }
  std::memcpy(target + at, source + at, bytes - at);
}

}  // namespace

extern "C" void tandem_copy_spans(char* target, const char* source, const int64_t* target_offsets,
                                  const int64_t* source_offsets, const int64_t* lengths,
                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    copy_span(target + target_offsets[i], source + source_offsets[i], lengths[i]);
  finish_streaming();
}

extern "C" void tandem_checksum_runs(const char* memory, const int64_t* offsets, int64_t count,
                                     int64_t run_bytes, uint64_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = checksum_run(memory + offsets[i], run_bytes);
}

extern "C" void tandem_sum_runs(const char* memory, const int64_t* offsets, int64_t count,
                                int64_t run_bytes, const uint64_t* key, uint64_t* out) {
  const int64_t sums = (run_bytes + kSumBytes - 1) / kSumBytes;
  for (int64_t i = 0; i < count; ++i)
    sum_run(memory + offsets[i], run_bytes, key, out + 2 * sums * i);
}

extern "C" void tandem_copy_runs(char* target, const char* source, const int64_t* target_offsets,
                                 const int64_t* source_offsets, int64_t count, int64_t run_bytes,
                                 uint64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    char* to = target + target_offsets[i];
    const char* from = source + source_offsets[i];
    out[i] = aligned(to) ? copy_run<true>(to, from, run_bytes)
                         : copy_run<false>(to, from, run_bytes);
  }
  finish_streaming();
}
