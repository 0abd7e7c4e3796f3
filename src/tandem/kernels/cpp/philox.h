// Philox4x32-10 (Salmon et al., SC 2011) on one counter and on kLanes / 2 at once.
#pragma once

#include "vectors.h"

namespace tandem {

typedef uint64_t Longs __attribute__((vector_size(kLanes * 4)));

constexpr uint32_t kMultiplier0 = 0xd2511f53u, kMultiplier1 = 0xcd9e8d57u;
constexpr uint32_t kWeyl0 = 0x9e3779b9u, kWeyl1 = 0xbb67ae85u;
constexpr int kRounds = 10;

// The low halves of the 64-bit lanes, multiplied to 64 bits.
inline Longs multiply_low(Longs a, uint32_t b) {
#if defined(__AVX512F__)
  return (Longs)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Longs)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__aarch64__)
  return (Longs)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(b));
#else
  return (a & 0xffffffffull) * (uint64_t)b;
#endif
}

inline void multiply_wide(uint32_t a, uint32_t b, uint32_t* high, uint32_t* low) {
  const uint64_t product = (uint64_t)a * b;
  *high = (uint32_t)(product >> 32), *low = (uint32_t)product;
}

// A word is the low half of its lane: what stands above it never reaches another word's low half.
inline void multiply_wide(Longs a, uint32_t b, Longs* high, Longs* low) {
  *low = multiply_low(a, b), *high = *low >> 32;
}

// A key in each round. In memory: vectors of them are operands there, and cost a broadcast each
// otherwise.
template <class W>
struct KeySchedule {
  W words[kRounds][2];

  KeySchedule(uint32_t key_0, uint32_t key_1) {
    for (auto& round : words) {
      round[0] = W{} + key_0, round[1] = W{} + key_1;
      key_0 += kWeyl0, key_1 += kWeyl1;
    }
  }
};

// W is uint32_t or Longs; the four words of each counter become its four output words. Several
// counters at a time wait for their products together.
template <class W, int Counters>
inline void philox(W (&word)[Counters][4], const KeySchedule<W>& keys) {
  for (const auto& key : keys.words)
    for (auto& w : word) {
      W high_0, low_0, high_1, low_1;
      multiply_wide(w[0], kMultiplier0, &high_0, &low_0);
      multiply_wide(w[2], kMultiplier1, &high_1, &low_1);
      w[0] = high_1 ^ w[1] ^ key[0], w[1] = low_1;
      w[2] = high_0 ^ w[3] ^ key[1], w[3] = low_0;
    }
}

}  // namespace tandem
