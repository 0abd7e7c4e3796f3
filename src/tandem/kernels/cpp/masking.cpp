// Logits of tokens whose bit is 0 become minus infinity; a NaN stays one.
#include <algorithm>

#include "vectors.h"

using namespace tandem;

namespace {

constexpr int64_t kWordTokens = 32;

Ints lane_bits() {
  Ints bits{};
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = (int32_t)(1u << lane);
  return bits;
}

void mask_word(float* logits, uint32_t word) {
  const Floats nothing = splat(-__builtin_inff());
  const Ints bits = lane_bits();
  for (int64_t first = 0; first < kWordTokens; first += kLanes) {
    const Ints here = Ints{} + (int32_t)(word >> first);
    const Ints allowed = (here & bits) != 0;
    const Floats found = load(logits + first);
    store(logits + first, select(allowed | (found != found), found, nothing));
  }
}

}  // namespace

extern "C" void tandem_mask_logits(float* logits, int64_t stride, int64_t rows, int64_t vocabulary,
                                   const int32_t* allowed, int64_t allowed_stride,
                                   int64_t threads) {
#pragma omp parallel for num_threads((int)std::min<int64_t>(threads, rows))
  for (int64_t r = 0; r < rows; ++r) {
    float* row = logits + r * stride;
    const uint32_t* words = (const uint32_t*)allowed + r * allowed_stride;
    const int64_t whole = vocabulary / kWordTokens;
    for (int64_t w = 0; w < whole; ++w)
      if (words[w] != 0xffffffffu) mask_word(row + w * kWordTokens, words[w]);
    for (int64_t i = whole * kWordTokens; i < vocabulary; ++i)
      if (!(words[whole] >> (i % kWordTokens) & 1) && row[i] == row[i]) row[i] = -__builtin_inff();
  }
}
