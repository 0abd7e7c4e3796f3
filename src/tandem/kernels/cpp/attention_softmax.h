// The running softmax of a piece's rows: scores of a segment become weights, what these sum up is
// merged into what earlier segments gave, or set aside.
#pragma once

#include "attention_segment.h"
#include "mathematics.h"

namespace tandem {

// The running softmax of a tile's rows.
struct Merged {
  float *values, *peak, *sum;
};

// Up to this many row groups hold their scores at once, to go on from what is read for all of them.
constexpr int64_t kDirectGroups = 2;

// What one thread holds while it works on a piece. Products in bfloat16 have their queries and weights
// in `pair_q` and `pair_weights`, and pairs in k and v.
struct Workspace {
  float *q, *k, *v, *scores, *values;
  bf16 *pair_q, *pair_weights;
  Merged merged;
  Segment segments[2];
};

// Columns of values that are computed together, in floats: whole panels of pairs.
inline int64_t value_columns(const AttentionCall& call) {
  return call.narrow ? (call.head_dim + kPanelColumns - 1) / kPanelColumns * kPanelColumns
                     : call.padded_dim();
}

struct Softmax {
  float peak, sum;
};

// Turns scores [from, to) of one row into weights, zero outside of [low, high).
inline Softmax weigh(float* scores, int64_t from, int64_t to, int64_t low, int64_t high) {
  // Of most lanes all are seen.
  const auto seen = [&](int64_t j, Floats value, float otherwise) {
    if (j >= low && j + kLanes <= high) return value;
    return select(first_lanes(high - j) & ~first_lanes(low - j), value, splat(otherwise));
  };
  Floats peaks = splat(-__builtin_inff());
  for (int64_t j = from; j < to; j += kLanes) {
    const Floats score = seen(j, load(scores + j), -__builtin_inff());
    store(scores + j, score);
    peaks = maximum(peaks, score);
  }
  const float peak = max_of(peaks);
  Floats sums{};
  for (int64_t j = from; j < to; j += kLanes) {
    const Floats weight = seen(j, exp2_of(load(scores + j) - splat(peak)), 0.0f);
    store(scores + j, weight);
    sums += weight;
  }
  return {peak, sum_of(sums)};
}

// One function for every path: the compiler may contract products, but only in this one way.
inline __attribute__((noinline)) void merge_row(float* values, float* peak, float* sum,
                                         const float* new_values, Softmax found, int64_t dim) {
  if (found.sum == 0.0f) return;
  const float top = *peak > found.peak ? *peak : found.peak;
  const Floats keep = exp2_of(splat(*peak - top)), add = exp2_of(splat(found.peak - top));
  for (int64_t d = 0; d < dim; d += kLanes)
    store(values + d, load(values + d) * keep + load(new_values + d) * add);
  *sum = *sum * keep[0] + found.sum * add[0];
  *peak = top;
}

// Scores or weights times the scales of the codes that keys or values `rows` are.
inline void scale_columns(const GroupView& view, const void* const* rows, float* scores) {
  float scales[kSegment] = {};
  for (int64_t j = view.from; j < view.to; ++j) scales[j] = scale_of(rows[j]);
  for (int r = 0; r < view.rows; ++r)
    for (int64_t j = view.from / kLanes * kLanes; j < view.to; j += kLanes) {
      float* at = scores + r * kSegment + j;
      store(at, load(at) * load(scales + j));
    }
}

// Scores to weights, what `sum_values` makes of these in space->values, rows of `stride` floats, then
// merge or set aside.
template <class SumValues>
void finish_group(const AttentionCall& call, const Piece& piece, const GroupView& view,
                  const Segment& segment, float* scores, int64_t stride, Workspace* space,
                  const SumValues& sum_values) {
  const int64_t dim = call.padded_dim();
  Softmax found[kTileRows] = {};
  if (view.from < view.to) {
    for (int r = 0; r < view.rows; ++r)
      found[r] = weigh(scores + r * kSegment, view.from / kLanes * kLanes, view.to, view.low[r],
                       view.high[r]);
    sum_values();
  }
  for (int r = 0; r < view.rows; ++r) {
    const int64_t row = view.row + r;
    const float* values = space->values + r * stride;
    if (piece.partial) {
      float* aside =
          piece.partial + ((segment.index - piece.segment) * rows_of(call, piece) + row) * (dim + 2);
      if (found[r].sum != 0.0f) std::memcpy(aside, values, dim * sizeof(float));
      aside[dim] = found[r].peak, aside[dim + 1] = found[r].sum;
    } else {
      merge_row(space->merged.values + row * dim, space->merged.peak + row,
                space->merged.sum + row, values, found[r], dim);
    }
  }
}

}  // namespace tandem
