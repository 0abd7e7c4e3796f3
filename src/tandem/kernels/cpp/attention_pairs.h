// Attention in bfloat16: products of pairs with fp32 sums, as of tile_bf16.h. Queries, keys, weights and
// values are rounded, but for codes, which are exact: their scales go to scores and to weights. Of few
// rows and of many alike: what is stored becomes pairs once, which nearer caches keep.
#pragma once

#include "attention_softmax.h"
#include "tile_bf16.h"
#include "transpose.h"

namespace tandem {

#if defined(__AVX512BF16__)

constexpr int kPairLanes = 2 * kLanes;

inline Words rounded_pairs(Floats low, Floats high) {
  return (Words)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

// Elements [0, 32) of a row, two in a word.
template <class T>
inline Words load_pairs(const T* row) {
  return rounded_pairs(load(row), load(row + kLanes));
}
inline Words load_pairs(const bf16* row) { return load_raw<Words>(row); }

// Elements [0, 16) of two rows, one of each in a word.
template <class T>
inline Words load_paired(const T* first, const T* second) {
  static const __m512i kInterleaved = [] {
    uint16_t index[kPairLanes];
    for (int i = 0; i < kPairLanes; ++i) index[i] = (uint16_t)(i / 2 + i % 2 * kLanes);
    return _mm512_loadu_si512(index);
  }();
  const Words both = rounded_pairs(load(first), load(second));
  return (Words)_mm512_permutexvar_epi16(kInterleaved, (__m512i)both);
}

// The first `count` elements of a row, then zeros.
template <class T>
struct Tail {
  T elements[kPairLanes] = {};
  Tail(const T* row, int64_t count) { std::memcpy(elements, row, count * sizeof(T)); }
};

// Pairs of kLanes rows, of which `count` elements are left, become columns of 64 pairs.
template <class T>
inline __attribute__((always_inline)) void pair_square(const T* const* rows, int64_t d, int64_t count,
                                                       bf16* columns) {
  Words square[kLanes];
  if (count >= kPairLanes) {
    TANDEM_UNROLL for (int lane = 0; lane < kLanes; ++lane) square[lane] = load_pairs(rows[lane] + d);
    exchange_all<1>(square);
    TANDEM_UNROLL for (int i = 0; i < kLanes; ++i)
      store_raw(columns + 2 * i * kPanelColumns, square[i]);
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    square[lane] = load_pairs(Tail<T>(rows[lane] + d, count).elements);
  exchange_all<1>(square);
  for (int64_t i = 0; i < (count + 1) / 2; ++i)
    store_raw(columns + 2 * i * kPanelColumns, square[i]);
}

// Keys [from, to), which are whole runs of lanes, as columns of pairs: k is [panel][D / 2][64][2].
template <class T>
void pair_keys(const AttentionCall& call, const Segment& segment, int64_t from, int64_t to, bf16* k,
               FarReadAhead& ahead) {
  const int64_t pairs = (call.head_dim + 1) / 2;
  for (int64_t j = from; j < to; j += kLanes) {
    const T* const* rows = (const T* const*)segment.k_rows + j;
    bf16* run = k + 2 * (j / kPanelColumns * pairs * kPanelColumns + j % kPanelColumns);
    for (int64_t d = 0; d < call.head_dim; d += kPairLanes) {
      pair_square(rows, d, call.head_dim - d, run + d * kPanelColumns);
      ahead.step();
    }
  }
}

// Values [from, to), an even number from an even place on, in pairs: v is [columns / 64][128][64][2].
// Those that nobody sees are some other's: their weights are zero.
template <class T>
void pair_values(const AttentionCall& call, const Segment& segment, int64_t from, int64_t to, bf16* v,
                 FarReadAhead& ahead) {
  const int64_t columns = value_columns(call), whole = call.head_dim / kLanes * kLanes;
  const auto row_of = [&](int64_t j) {
    return (const T*)segment.v_rows[std::clamp(j, segment.from, segment.to - 1)];
  };
  for (int64_t j = from; j < to; j += 2) {
    const T *first = row_of(j), *second = row_of(j + 1);
    const auto put = [&](int64_t d, Words pairs) {
      bf16* panel = v + d / kPanelColumns * kSegment * kPanelColumns;
      store_raw(panel + j * kPanelColumns + 2 * (d % kPanelColumns), pairs);
    };
    for (int64_t d = 0; d < whole; d += kLanes) put(d, load_paired(first + d, second + d));
    if (whole < call.head_dim) {
      const Tail<T> a(first + whole, call.head_dim - whole), b(second + whole, call.head_dim - whole);
      put(whole, load_paired(a.elements, b.elements));
    }
    for (int64_t d = call.padded_dim(); d < columns; d += kLanes) put(d, Words{});
    ahead.step();
  }
}

template <class T>
struct PairProducts {
  using Stored = T;

  static bool reads_ahead(const AttentionCall&, const RowGroups&) { return true; }

  static void take_queries(const AttentionCall& call, int64_t rows, Workspace* space) {
    const int64_t dim = call.padded_dim();
    for (int64_t r = 0; r < rows; ++r) {
      bf16* rounded = space->pair_q + r * dim;
      round_row(space->q + r * dim, call.head_dim, rounded);
      if (call.head_dim % 2) rounded[call.head_dim] = bf16{0};
    }
  }

  static void attend(const AttentionCall& call, const PieceRows& of, const Segment& segment,
                     const Segment* next, Workspace* space) {
    const int64_t pairs = (call.head_dim + 1) / 2, columns = value_columns(call);
    const int64_t from = segment.from / kLanes * kLanes;
    const int64_t to = (segment.to + kLanes - 1) / kLanes * kLanes;
    FarReadAhead ahead = read_ahead(call, of.groups, next);
    pair_keys<T>(call, segment, from, to, (bf16*)space->k, ahead);
    pair_values<T>(call, segment, from, to, (bf16*)space->v, ahead);
    for (int64_t g = 0; g < of.groups.count; ++g) {
      const GroupView view(call, of, g, segment.index);
      const bf16* q = space->pair_q + view.row * call.padded_dim();
      for (int64_t panel = 0; panel < kPanels; ++panel)
        if (view.sees_panel(panel))
          tile_pairs(view.rows, space->scores + panel * kPanelColumns, kSegment, q, call.padded_dim(),
                     (const bf16*)space->k + panel * pairs * 2 * kPanelColumns, pairs, true, ahead);
      if constexpr (kHasScales<T>) scale_columns(view, segment.k_rows, space->scores);
      finish_group(call, of.whole, view, segment, space->scores, columns, space, [&] {
        if constexpr (kHasScales<T>) scale_columns(view, segment.v_rows, space->scores);
        sum_values(view, columns, space, ahead);
      });
    }
  }

 private:
  // What the weights of whole runs of lanes sum up: beyond those that are seen they are zero.
  static void sum_values(const GroupView& view, int64_t columns, Workspace* space, FarReadAhead& ahead) {
    const int64_t from = view.from / kLanes * kLanes;
    const int64_t to = (view.to + kLanes - 1) / kLanes * kLanes;
    for (int r = 0; r < view.rows; ++r)
      round_row(space->scores + r * kSegment + from, to - from, space->pair_weights + r * kSegment);
    for (int64_t column = 0; column < columns; column += kPanelColumns)
      tile_pairs(view.rows, space->values + column, columns, space->pair_weights, kSegment,
                 (const bf16*)space->v + (column * kSegment + from * kPanelColumns), (to - from) / 2,
                 true, ahead);
  }

  // The lines of a segment, spread over the steps that another takes.
  static FarReadAhead read_ahead(const AttentionCall& call, const RowGroups& groups,
                                 const Segment* next) {
    if (!next) return {nullptr, nullptr, 0};
    const int64_t pairs = (call.head_dim + 1) / 2, stride = FarReadAhead::kStride / 2;
    const int64_t squares = kSegment / kLanes * ((call.head_dim + kPairLanes - 1) / kPairLanes);
    const int64_t passes = value_columns(call) / kPanelColumns;
    const int64_t in_tiles = (kPanels * pairs + passes * kSegment / 2) / stride;
    const int64_t steps = squares + kSegment / 2 + groups.count * in_tiles;
    const int64_t lines = 2 * (next->to - next->from) * call.slot_stride * (int64_t)sizeof(T) / 64;
    return {next->spans, next->spans + next->span_count, (lines + steps - 1) / steps};
  }
};

#endif

}  // namespace tandem
