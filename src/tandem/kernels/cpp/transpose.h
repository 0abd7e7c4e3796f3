// Transposes kLanes rows of stored elements into float columns: keys become lanes.
#pragma once

#include <utility>

#include "vectors.h"

namespace tandem {

template <int Step, int... Lane>
inline void exchange(Words& low, Words& high, std::integer_sequence<int, Lane...>) {
  const Words a = low, b = high;
  low = __builtin_shufflevector(a, b, ((Lane & Step) ? kLanes + Lane - Step : Lane)...);
  high = __builtin_shufflevector(a, b, ((Lane & Step) ? kLanes + Lane : Lane + Step)...);
}

template <int Step>
inline void exchange_all(Words (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i)
    if (!(i & Step))
      exchange<Step>(rows[i], rows[i + Step], std::make_integer_sequence<int, kLanes>{});
  if constexpr (Step * 2 < kLanes) exchange_all<Step * 2>(rows);
}

inline void store_columns(const float*, const Words& row, float* target, ptrdiff_t) {
  store(target, (Floats)row);
}

inline void store_columns(const bf16*, const Words& row, float* target, ptrdiff_t stride) {
  store(target, (Floats)(row << 16));
  store(target + stride, (Floats)(row & 0xffff0000u));
}

inline void store_columns(const fp16*, const Words& row, float* target, ptrdiff_t stride) {
  for (int part = 0; part < 2; ++part) {
    const Shorts half = __builtin_convertvector((row >> (16 * part)) & 0xffffu, Shorts);
    store(target + part * stride, load((const fp16*)&half));
  }
}

inline void store_columns(const int8_t*, const Words& row, float* target, ptrdiff_t stride) {
  for (int part = 0; part < 4; ++part) {
    const Ints codes = (Ints)(row << (24 - 8 * part)) >> 24;
    store(target + part * stride, __builtin_convertvector(codes, Floats));
  }
}

// target[d * stride + lane] = rows[lane][d] for d < dims.
template <class T>
inline void transpose_rows(const T* const* rows, int64_t dims, float* target, ptrdiff_t stride) {
  constexpr int packed = sizeof(Words) / kLanes / sizeof(T);
  int64_t d = 0;
  for (; d + packed * kLanes <= dims; d += packed * kLanes) {
    Words square[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) square[lane] = load_raw<Words>(rows[lane] + d);
    exchange_all<1>(square);
    for (int i = 0; i < kLanes; ++i)
      store_columns((const T*)nullptr, square[i], target + (d + packed * i) * stride, stride);
  }
  for (; d < dims; ++d)
    for (int lane = 0; lane < kLanes; ++lane) target[d * stride + lane] = widen(rows[lane][d]);
}

}  // namespace tandem
