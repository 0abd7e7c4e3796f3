// Attention in fp32: keys are transposed, and values read as floats.
#pragma once

#include "attention_softmax.h"
#include "transpose.h"

namespace tandem {

// Keys [from, to) become columns: k is [run][D][kLanes], its first run the keys from `first` on.
template <class T>
void transpose_keys(const AttentionCall& call, const Segment& segment, int64_t first, int64_t from,
                    int64_t to, float* k) {
  const T* const* rows = (const T* const*)segment.k_rows;
  for (int64_t j = from / kLanes * kLanes; j < to; j += kLanes) {
    float* run = k + (j - first) * call.padded_dim();
    transpose_rows(rows + j, call.head_dim, run, kLanes);
    if constexpr (kHasScales<T>) {
      Floats scales;
      for (int lane = 0; lane < kLanes; ++lane) scales[lane] = scale_of(rows[j + lane]);
      for (int64_t d = 0; d < call.head_dim; ++d)
        store(run + d * kLanes, load(run + d * kLanes) * scales);
    }
  }
}

// Values as numbers, or their codes, whose scales go to the weights.
template <class T>
void widen_values(const AttentionCall& call, const Segment& segment, float* v) {
  const int64_t dim = call.padded_dim(), whole = call.head_dim / kLanes * kLanes;
  for (int64_t j = segment.from; j < segment.to; ++j) {
    const T* row = (const T*)segment.v_rows[j];
    float* target = v + j * dim;
    for (int64_t d = 0; d < whole; d += kLanes) store(target + d, load(row + d));
    for (int64_t d = whole; d < dim; ++d) target[d] = d < call.head_dim ? widen(row[d]) : 0.0f;
  }
}

// Scores of one group against one panel of 64 transposed keys.
template <class Ahead>
void score_panel(const AttentionCall& call, const GroupView& view, int64_t panel,
                 const float* q, const float* k, float* scores, Ahead& ahead) {
  const int64_t dim = call.padded_dim();
  tile(view.rows, scores + panel * kPanelColumns, kSegment, q + view.row * dim, dim,
       LaneRuns{k, dim * kLanes},
       TileShape{call.head_dim, kPanelColumns, true}, ahead);
}

// The lines of a segment, spread over the steps that all tiles of another take in attend_direct.
template <class T>
FarReadAhead read_ahead(const AttentionCall& call, const RowGroups& groups, const Segment* next) {
  if (!next) return {nullptr, nullptr, 0};
  int64_t steps = 0;
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t columns = vectors_for(groups.size(g)) * kLanes;
    const int64_t passes = (kPanelColumns + columns - 1) / columns * kPanels * call.head_dim;
    steps += passes + kSegment * ((call.head_dim + columns - 1) / columns);
  }
  const int64_t lines = 2 * (next->to - next->from) * call.slot_stride * (int64_t)sizeof(T) / 64;
  steps /= FarReadAhead::kStride;
  return {next->spans, next->spans + next->span_count, (lines + steps - 1) / steps};
}

template <class T>
struct FloatProducts {
  using Stored = T;

  static bool reads_ahead(const AttentionCall& call, const RowGroups& groups) {
    return groups.count <= kDirectGroups && call.head_dim % kLanes == 0;
  }
  static void take_queries(const AttentionCall&, int64_t, Workspace*) {}

  static void attend(const AttentionCall& call, const PieceRows& of, const Segment& segment,
                     const Segment* next, Workspace* space) {
    if (reads_ahead(call, of.groups)) return attend_direct(call, of, segment, next, space);
    attend_widened(call, of, segment, space);
  }

 private:
  // Few rows: keys go panel by panel, values come straight from the pool, and the tiles' arithmetic
  // covers the latency of what is read next.
  static void attend_direct(const AttentionCall& call, const PieceRows& of, const Segment& segment,
                            const Segment* next, Workspace* space) {
    FarReadAhead ahead = read_ahead<T>(call, of.groups, next);
    for (int64_t panel = segment.from / kPanelColumns; panel * kPanelColumns < segment.to; ++panel) {
      const int64_t from = std::max(segment.from, panel * kPanelColumns);
      const int64_t to = std::min(segment.to, (panel + 1) * kPanelColumns);
      transpose_keys<T>(call, segment, panel * kPanelColumns, from, to, space->k);
      for (int64_t g = 0; g < of.groups.count; ++g) {
        const GroupView view(call, of, g, segment.index);
        if (view.sees_panel(panel))
          score_panel(call, view, panel, space->q, space->k, scores_of(g, space), ahead);
      }
    }
    for (int64_t g = 0; g < of.groups.count; ++g) {
      const GroupView view(call, of, g, segment.index);
      const ScatteredRows<T> values{(const T* const*)segment.v_rows + view.from, 0};
      finish(call, of, view, segment, scores_of(g, space), values, space, ahead);
    }
  }

  // Many rows: keys and values are widened once for all row groups.
  static void attend_widened(const AttentionCall& call, const PieceRows& of, const Segment& segment,
                             Workspace* space) {
    const int64_t dim = call.padded_dim();
    NoReadAhead nothing;
    transpose_keys<T>(call, segment, 0, segment.from, segment.to, space->k);
    widen_values<T>(call, segment, space->v);
    for (int64_t g = 0; g < of.groups.count; ++g) {
      const GroupView view(call, of, g, segment.index);
      for (int64_t panel = 0; panel < kPanels; ++panel)
        if (view.sees_panel(panel))
          score_panel(call, view, panel, space->q, space->k + panel * kPanelColumns * dim,
                      space->scores, nothing);
      const StridedRows<float> values{space->v + view.from * dim, dim};
      finish(call, of, view, segment, space->scores, values, space, nothing);
    }
  }

  static float* scores_of(int64_t group, Workspace* space) {
    return space->scores + group * kTileRows * kSegment;
  }

  template <class B, class Ahead>
  static void finish(const AttentionCall& call, const PieceRows& of, const GroupView& view,
                     const Segment& segment, float* scores, B values, Workspace* space,
                     Ahead& ahead) {
    const int64_t dim = call.padded_dim();
    finish_group(call, of.whole, view, segment, scores, dim, space, [&] {
      if constexpr (kHasScales<T>) scale_columns(view, segment.v_rows, scores);
      tile(view.rows, space->values, dim, scores + view.from, kSegment, values,
           TileShape{view.to - view.from, dim, true}, ahead);
    });
  }
};

}  // namespace tandem
