// One panel of a weight: 64 of its rows become columns, [C][64]. Whatever the elements mean, they are
// moved as they are.
#pragma once

#include "tile.h"
#include "transpose.h"

namespace tandem {

template <class T>
inline void pack_rest(const T* rows, int64_t row_stride, int64_t height, int64_t in_features, T* panel) {
  for (int64_t c = 0; c < in_features; ++c)
    for (int64_t column = 0; column < kPanelColumns; ++column)
      panel[c * kPanelColumns + column] = column < height ? rows[column * row_stride + c] : T{};
}

// Narrow elements in squares of as many rows as lie in 64 bits.
template <class T>
struct Square {
  static constexpr int kSide = 8 / sizeof(T);
  uint64_t rows[kSide];

  // The lower of each two runs of `run` elements.
  static constexpr uint64_t lower(int run) {
    uint64_t mask = 0;
    for (int i = 0; i < kSide; ++i)
      if (!(i & run)) mask |= (uint64_t)(T)~(T)0 << (8 * sizeof(T) * i);
    return mask;
  }

  void transpose() {
    for (int run = kSide / 2; run > 0; run /= 2)
      for (int i = 0; i < kSide; ++i)
        if (!(i & run)) {
          const int bits = 8 * (int)sizeof(T) * run;
          const uint64_t swapped = ((rows[i] >> bits) ^ rows[i + run]) & lower(run);
          rows[i + run] ^= swapped;
          rows[i] ^= swapped << bits;
        }
  }

  uint64_t load(const T* row) const { return load_raw<uint64_t>(row); }
};

// Words in squares of registers.
template <>
struct Square<uint32_t> {
  static constexpr int kSide = kLanes;
  Words rows[kLanes];

  void transpose() { exchange_all<1>(rows); }
  Words load(const uint32_t* row) const { return load_raw<Words>(row); }
};

template <class T>
inline void pack_panel(const T* rows, int64_t row_stride, int64_t height, int64_t in_features, T* panel) {
  constexpr int side = Square<T>::kSide;
  const int64_t squared = height < kPanelColumns ? 0 : in_features / side * side;
  for (int64_t c = 0; c < squared; c += side)
    for (int64_t column = 0; column < kPanelColumns; column += side) {
      Square<T> square;
      for (int i = 0; i < side; ++i)
        square.rows[i] = square.load(rows + (column + i) * row_stride + c);
      square.transpose();
      for (int i = 0; i < side; ++i)
        store_raw(panel + (c + i) * kPanelColumns + column, square.rows[i]);
    }
  pack_rest(rows + squared, row_stride, height, in_features - squared,
            panel + squared * kPanelColumns);
}

}  // namespace tandem
