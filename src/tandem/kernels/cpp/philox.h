// Philox4x32-10 (Salmon et al., SC 2011) on one counter and on kLanes consecutive ones.
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
#else
  return (a & 0xffffffffull) * (uint64_t)b;
#endif
}

inline void multiply_wide(uint32_t a, uint32_t b, uint32_t* high, uint32_t* low) {
  const uint64_t product = (uint64_t)a * b;
  *high = (uint32_t)(product >> 32), *low = (uint32_t)product;
}

inline void multiply_wide(Words a, uint32_t b, Words* high, Words* low) {
  const Longs even = multiply_low((Longs)a, b), odd = multiply_low((Longs)a >> 32, b);
  *low = (Words)((even & 0xffffffffull) | (odd << 32));
  *high = (Words)((even >> 32) | (odd & 0xffffffff00000000ull));
}

// W is uint32_t or Words; the four counter words become the four output words.
template <class W>
inline void philox(W (&word)[4], uint32_t key_0, uint32_t key_1) {
  for (int round = 0; round < kRounds; ++round) {
    W high_0, low_0, high_1, low_1;
    multiply_wide(word[0], kMultiplier0, &high_0, &low_0);
    multiply_wide(word[2], kMultiplier1, &high_1, &low_1);
    word[0] = high_1 ^ word[1] ^ key_0, word[1] = low_1;
    word[2] = high_0 ^ word[3] ^ key_1, word[3] = low_0;
    key_0 += kWeyl0, key_1 += kWeyl1;
  }
}

}  // namespace tandem
