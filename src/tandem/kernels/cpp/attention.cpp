// Causal attention over a paged pool, in segments of 256 keys that start at multiples of 256.
// A segment's result (max, sum, weighted values) of one row depends on that row alone; segments are
// merged in order. So neither tiles, nor chunks of a prompt, nor threads, nor blocks change a bit;
// nor whether what a query sees lies in a row, or is its path through a tree.
#include <algorithm>
#include <atomic>
#include <deque>
#include <vector>

#include "mathematics.h"
#include "operations.h"
#include "tile.h"
#include "transpose.h"

using namespace tandem;

namespace {

constexpr int64_t kSegment = 256;
constexpr int64_t kPanels = kSegment / kPanelColumns;
// Up to this many row groups read the values straight from the pool instead of widening them.
constexpr int64_t kDirectGroups = 2;
constexpr int64_t kMostPartialFloats = int64_t{1} << 24;

struct AttentionCall {
  const float* q;
  int64_t q_token_stride, q_head_stride;
  const void* kv;
  int64_t block_stride, side_stride, head_stride, slot_stride;
  const int32_t *query_start, *context, *table;
  int64_t table_stride, sequences;
  const int32_t* parents;  // Of each query, within its sequence; or null: each follows the last.
  float* out;
  int64_t heads, kv_heads, head_dim, block_size;
  float scale;
  int64_t window, tile_tokens;
  int threads;

  int64_t group() const { return heads / kv_heads; }
  int64_t padded_dim() const { return (head_dim + kLanes - 1) / kLanes * kLanes; }
  int64_t low_key(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// Queries of a sequence of which not each follows the last: besides the keys before all of them,
// which are `known`, each sees its ancestors and itself, at the positions from `known` on.
struct QueryTree {
  int64_t known;
  std::vector<int64_t> positions;
  std::vector<std::vector<int64_t>> places;  // Of each query, where those keys lie.

  QueryTree(const int32_t* parents, int64_t queries, int64_t known) : known(known) {
    for (int64_t q = 0; q < queries; ++q) {
      places.push_back(parents[q] < 0 ? std::vector<int64_t>{} : places[parents[q]]);
      places[q].push_back(known + q);
      positions.push_back(known + (int64_t)places[q].size() - 1);
    }
  }
};

// Some queries of a sequence, at positions from `position` up to `end`, one kv head, a run of
// segments.
struct Piece {
  int64_t sequence, kv_head, first_query, queries, position, end, segment, segments;
  const QueryTree* tree;
  float* partial;  // [segments][rows][padded_dim + 2], or null: merge at once.

  int64_t position_of(int64_t query) const {
    return tree ? tree->positions[first_query + query] : position + query;
  }
  // Segments before this one are seen by all queries alike, but for what a window hides.
  int64_t first_branched() const {
    return tree ? std::clamp(tree->known / kSegment, segment, segment + segments)
                : segment + segments;
  }
  Piece one_of(int64_t query) const {
    Piece one = *this;
    one.first_query += query, one.queries = 1;
    one.position = position_of(query), one.end = one.position + 1;
    return one;
  }
};

// The running softmax of a tile's rows.
struct Merged {
  float *values, *peak, *sum;
};

// What lies before the elements of a stored row, in bytes: the scale of codes.
template <class T>
constexpr int64_t kRowHeader = 0;
template <>
constexpr int64_t kRowHeader<int8_t> = sizeof(float);

template <class T>
constexpr bool kHasScales = kRowHeader<T> != 0;

inline float scale_of(const void* codes) {
  return load_raw<float>((const int8_t*)codes - kRowHeader<int8_t>);
}

// Where the keys and values of a segment lie; keys [from, to) of it are seen by the piece. The spans
// are the same memory: all keys, then all values.
struct Segment {
  int64_t index, from, to;
  const void *k_rows[kSegment], *v_rows[kSegment];
  Span spans[2 * kSegment];
  int64_t span_count;
};

// What one thread holds while it works on a piece.
struct Workspace {
  float *q, *k, *v, *scores, *values;
  Merged merged;
  Segment segments[2];
};

int64_t rows_of(const AttentionCall& call, const Piece& piece) {
  return piece.queries * call.group();
}

Workspace* prepare(const AttentionCall& call, int64_t rows) {
  static thread_local Scratch held;
  static thread_local Workspace space;
  const int64_t dim = call.padded_dim(), padded_rows = (rows + kLanes - 1) / kLanes * kLanes;
  float* next = held.take(2 * padded_rows * (dim + 1) + 2 * kSegment * dim +
                          kTileRows * (kDirectGroups * kSegment + dim));
  const auto carve = [&next](int64_t floats) { return (next += floats) - floats; };
  space.k = carve(kSegment * dim);
  space.v = carve(kSegment * dim);
  space.q = carve(padded_rows * dim);
  space.merged.values = carve(padded_rows * dim);
  space.scores = carve(kDirectGroups * kTileRows * kSegment);
  space.values = carve(kTileRows * dim);
  space.merged.peak = carve(padded_rows);
  space.merged.sum = carve(padded_rows);
  return &space;
}

void gather_queries(const AttentionCall& call, const Piece& piece, Workspace* space) {
  const int64_t group = call.group(), dim = call.padded_dim(), rows = rows_of(call, piece);
  const float scale = call.scale * kLog2e;
  const int64_t first = call.query_start[piece.sequence] + piece.first_query;
  for (int64_t r = 0; r < rows; ++r) {
    const float* source = call.q + (first + r / group) * call.q_token_stride +
                          (piece.kv_head * group + r % group) * call.q_head_stride;
    for (int64_t d = 0; d < call.head_dim; ++d) space->q[r * dim + d] = source[d] * scale;
    space->merged.peak[r] = -__builtin_inff();
    space->merged.sum[r] = 0.0f;
  }
  std::memset(space->merged.values, 0, rows * dim * sizeof(float));
}

// Outside of what the piece sees, k_rows hold the nearest row that is valid. Keys of a tree that
// are not known are looked for along the path of the piece's first query.
template <class T>
void find_rows(const AttentionCall& call, const Piece& piece, int64_t index, Segment* segment) {
  const int64_t start = index * kSegment;
  const int64_t from = std::max<int64_t>(call.low_key(piece.position) - start, 0);
  const int64_t to = std::min(piece.end - start, kSegment);
  const int32_t* table = call.table + piece.sequence * call.table_stride;
  const T* pool = (const T*)call.kv + piece.kv_head * call.head_stride;
  Span* span = segment->spans;
  const auto put = [&](int64_t j, int64_t count, int64_t block, int64_t offset) {
    const T* row = pool + table[block] * call.block_stride + offset * call.slot_stride;
    *span++ = {(const char*)row, (const char*)(row + count * call.slot_stride)};
    row += kRowHeader<T>;
    for (int64_t i = j; i < j + count; ++i, row += call.slot_stride) {
      segment->k_rows[i] = row;
      segment->v_rows[i] = row + call.side_stride;
    }
  };
  const int64_t in_row = piece.tree ? std::clamp(piece.tree->known - start, from, to) : to;
  for (int64_t j = from; j < in_row;) {
    const int64_t offset = (start + j) % call.block_size;
    const int64_t count = std::min(call.block_size - offset, in_row - j);
    put(j, count, (start + j) / call.block_size, offset);
    j += count;
  }
  for (int64_t j = in_row; j < to; ++j) {
    const int64_t place = piece.tree->places[piece.first_query][start + j - piece.tree->known];
    put(j, 1, place / call.block_size, place % call.block_size);
  }
  const int64_t side_bytes = call.side_stride * (int64_t)sizeof(T), keys = span - segment->spans;
  for (int64_t i = 0; i < keys; ++i, ++span)
    *span = {segment->spans[i].begin + side_bytes, segment->spans[i].end + side_bytes};
  for (int64_t j = 0; j < from; ++j) segment->k_rows[j] = segment->k_rows[from];
  for (int64_t j = to; j < kSegment; ++j) segment->k_rows[j] = segment->k_rows[to - 1];
  segment->index = index, segment->from = from, segment->to = to, segment->span_count = 2 * keys;
}

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

struct Softmax {
  float peak, sum;
};

// Turns scores [from, to) of one row into weights, zero outside of [low, high).
Softmax weigh(float* scores, int64_t from, int64_t to, int64_t low, int64_t high) {
  const Floats nothing = splat(-__builtin_inff());
  Floats peaks = nothing;
  for (int64_t j = from; j < to; j += kLanes) {
    const Ints seen = first_lanes(high - j) & ~first_lanes(low - j);
    const Floats score = select(seen, load(scores + j), nothing);
    store(scores + j, score);
    peaks = maximum(peaks, score);
  }
  const float peak = max_of(peaks);
  Floats sums{};
  for (int64_t j = from; j < to; j += kLanes) {
    const Ints seen = first_lanes(high - j) & ~first_lanes(low - j);
    const Floats weight = select(seen, exp2_of(load(scores + j) - splat(peak)), Floats{});
    store(scores + j, weight);
    sums += weight;
  }
  return {peak, sum_of(sums)};
}

// One function for every path: the compiler may contract products, but only in this one way.
__attribute__((noinline)) void merge_row(float* values, float* peak, float* sum,
                                         const float* new_values, Softmax found, int64_t dim) {
  if (found.sum == 0.0f) return;
  const float top = *peak > found.peak ? *peak : found.peak;
  const Floats keep = exp2_of(splat(*peak - top)), add = exp2_of(splat(found.peak - top));
  for (int64_t d = 0; d < dim; d += kLanes)
    store(values + d, load(values + d) * keep + load(new_values + d) * add);
  *sum = *sum * keep[0] + found.sum * add[0];
  *peak = top;
}

// The rows of a piece whose keys are looked at, and the first of them among the rows of `whole`,
// where their results go: all of it, or those of one query.
struct PieceRows {
  const Piece &whole, &piece;
  RowGroups groups;
  int64_t first;
};

// Which keys of a segment the rows of one group see.
struct GroupView {
  int64_t row, from = kSegment, to = 0;
  int rows;
  int64_t low[kTileRows], high[kTileRows];

  GroupView(const AttentionCall& call, const PieceRows& of, int64_t g, int64_t segment)
      : row(of.first + of.groups.begin(g)), rows(of.groups.size(g)) {
    const int64_t start = segment * kSegment, group = call.group();
    for (int r = 0; r < rows; ++r) {
      const int64_t position = of.piece.position_of((row - of.first + r) / group);
      low[r] = std::max<int64_t>(call.low_key(position) - start, 0);
      high[r] = std::min<int64_t>(position + 1 - start, kSegment);
      from = std::min(from, low[r]), to = std::max(to, high[r]);
    }
  }
  bool sees_panel(int64_t panel) const {
    return from < (panel + 1) * kPanelColumns && panel * kPanelColumns < to && from < to;
  }
};

// Scores of one group against one panel of 64 transposed keys.
template <class Ahead>
void score_panel(const AttentionCall& call, const GroupView& view, int64_t panel,
                 const float* q, const float* k, float* scores, Ahead& ahead) {
  const int64_t dim = call.padded_dim();
  tile(view.rows, scores + panel * kPanelColumns, kSegment, q + view.row * dim, dim,
       LaneRuns{k, dim * kLanes},
       TileShape{call.head_dim, kPanelColumns, true}, ahead);
}

// Weights of values times the scales of their codes.
void scale_weights(const GroupView& view, const Segment& segment, float* scores) {
  float scales[kSegment] = {};
  for (int64_t j = view.from; j < view.to; ++j) scales[j] = scale_of(segment.v_rows[j]);
  for (int r = 0; r < view.rows; ++r)
    for (int64_t j = view.from / kLanes * kLanes; j < view.to; j += kLanes) {
      float* weights = scores + r * kSegment + j;
      store(weights, load(weights) * load(scales + j));
    }
}

// Scores to weights, weighted values, then merge or set aside.
template <class T, class B, class Ahead>
void finish_group(const AttentionCall& call, const Piece& piece, const GroupView& view,
                  const Segment& segment, float* scores, B values, Workspace* space, Ahead& ahead) {
  const int64_t dim = call.padded_dim();
  Softmax found[kTileRows] = {};
  if (view.from < view.to) {
    for (int r = 0; r < view.rows; ++r)
      found[r] = weigh(scores + r * kSegment, view.from / kLanes * kLanes, view.to, view.low[r],
                       view.high[r]);
    if constexpr (kHasScales<T>) scale_weights(view, segment, scores);
    tile(view.rows, space->values, dim, scores + view.from, kSegment, values,
         TileShape{view.to - view.from, dim, true}, ahead);
  }
  for (int r = 0; r < view.rows; ++r) {
    const int64_t row = view.row + r;
    if (piece.partial) {
      float* aside =
          piece.partial + ((segment.index - piece.segment) * rows_of(call, piece) + row) * (dim + 2);
      if (found[r].sum != 0.0f) std::memcpy(aside, space->values + r * dim, dim * sizeof(float));
      aside[dim] = found[r].peak, aside[dim + 1] = found[r].sum;
    } else {
      merge_row(space->merged.values + row * dim, space->merged.peak + row,
                space->merged.sum + row, space->values + r * dim, found[r], dim);
    }
  }
}

// The lines of a segment, spread over the steps that all tiles of another take in attend_direct.
template <class T>
ReadAhead read_ahead(const AttentionCall& call, const RowGroups& groups, const Segment* next) {
  if (!next) return {nullptr, nullptr, 0};
  int64_t steps = 0;
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t columns = vectors_for(groups.size(g)) * kLanes;
    const int64_t passes = (kPanelColumns + columns - 1) / columns * kPanels * call.head_dim;
    steps += passes + kSegment * ((call.head_dim + columns - 1) / columns);
  }
  const int64_t lines = 2 * (next->to - next->from) * call.slot_stride * (int64_t)sizeof(T) / 64;
  steps /= ReadAhead::kStride;
  return {next->spans, next->spans + next->span_count, (lines + steps - 1) / steps};
}

// Few rows: keys go panel by panel, values come straight from the pool, and the tiles' arithmetic
// covers the latency of what is read next.
template <class T>
void attend_direct(const AttentionCall& call, const PieceRows& of, const Segment& segment,
                   const Segment* next, Workspace* space) {
  ReadAhead ahead = read_ahead<T>(call, of.groups, next);
  for (int64_t panel = segment.from / kPanelColumns; panel * kPanelColumns < segment.to; ++panel) {
    const int64_t from = std::max(segment.from, panel * kPanelColumns);
    const int64_t to = std::min(segment.to, (panel + 1) * kPanelColumns);
    transpose_keys<T>(call, segment, panel * kPanelColumns, from, to, space->k);
    for (int64_t g = 0; g < of.groups.count; ++g) {
      const GroupView view(call, of, g, segment.index);
      if (view.sees_panel(panel))
        score_panel(call, view, panel, space->q, space->k, space->scores + g * kTileRows * kSegment,
                    ahead);
    }
  }
  for (int64_t g = 0; g < of.groups.count; ++g) {
    const GroupView view(call, of, g, segment.index);
    finish_group<T>(call, of.whole, view, segment, space->scores + g * kTileRows * kSegment,
                    ScatteredRows<T>{(const T* const*)segment.v_rows + view.from, 0}, space, ahead);
  }
}

// Many rows: keys and values are widened once for all row groups.
template <class T>
void attend_widened(const AttentionCall& call, const PieceRows& of, const Segment& segment,
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
    finish_group<T>(call, of.whole, view, segment, space->scores,
                    StridedRows<float>{space->v + view.from * dim, dim}, space, nothing);
  }
}

void write_rows(const AttentionCall& call, const Piece& piece, const Merged& merged) {
  const int64_t group = call.group(), dim = call.padded_dim(), rows = rows_of(call, piece);
  const int64_t first = call.query_start[piece.sequence] + piece.first_query;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = piece.kv_head * group + r % group;
    float* target = call.out + ((first + r / group) * call.heads + head) * call.head_dim;
    const float sum = merged.sum[r], share = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int64_t d = 0; d < call.head_dim; ++d) target[d] = merged.values[r * dim + d] * share;
  }
}

// What a thread works on after a piece, to be read while it works on that.
template <class T>
const Segment* find_following(const AttentionCall& call, const Piece* following, Segment* segment) {
  // Of a tree not every query sees a segment.
  if (!following || following->tree) return nullptr;
  find_rows<T>(call, *following, following->segment, segment);
  return segment;
}

// Segments [first, last) of some rows.
template <class T>
void attend_segments(const AttentionCall& call, const PieceRows& of, int64_t first, int64_t last,
                     const Piece* following, Workspace* space) {
  const bool direct = of.groups.count <= kDirectGroups && call.head_dim % kLanes == 0;
  if (first < last) find_rows<T>(call, of.piece, first, &space->segments[0]);
  for (int64_t i = 0; i < last - first; ++i) {
    const Segment& segment = space->segments[i % 2];
    Segment* other = &space->segments[(i + 1) % 2];
    const Segment* next = other;
    if (first + i + 1 < last)
      find_rows<T>(call, of.piece, first + i + 1, other);
    else
      next = direct ? find_following<T>(call, following, other) : nullptr;
    if (direct)
      attend_direct<T>(call, of, segment, next, space);
    else
      attend_widened<T>(call, of, segment, space);
  }
}

// What the queries of a tree do not see alike, one after the other.
template <class T>
void attend_branches(const AttentionCall& call, const Piece& piece, int64_t first,
                     Workspace* space) {
  for (int64_t query = 0; query < piece.queries; ++query) {
    const Piece one = piece.one_of(query);
    const PieceRows rows{piece, one, RowGroups(call.group()), query * call.group()};
    const int64_t low = call.low_key(one.position) / kSegment;
    const int64_t last = std::min(one.position / kSegment + 1, piece.segment + piece.segments);
    attend_segments<T>(call, rows, std::max(first, low), last, nullptr, space);
  }
}

// Of segments that a row sees nothing of.
void clear_partial(const AttentionCall& call, const Piece& piece) {
  const int64_t stride = call.padded_dim() + 2;
  for (int64_t r = 0; r < piece.segments * rows_of(call, piece); ++r)
    piece.partial[(r + 1) * stride - 2] = piece.partial[(r + 1) * stride - 1] = 0.0f;
}

template <class T>
void attend(const AttentionCall& call, const Piece& piece, const Piece* following) {
  const PieceRows rows{piece, piece, RowGroups(rows_of(call, piece)), 0};
  Workspace* space = prepare(call, rows.groups.rows);
  gather_queries(call, piece, space);
  const int64_t branched = piece.first_branched();
  if (piece.tree && piece.partial) clear_partial(call, piece);
  attend_segments<T>(call, rows, piece.segment, branched, piece.tree ? nullptr : following, space);
  if (piece.tree) attend_branches<T>(call, piece, branched, space);
  if (!piece.partial) write_rows(call, piece, space->merged);
}

void merge_partials(const AttentionCall& call, const Piece& piece) {
  const int64_t rows = rows_of(call, piece), dim = call.padded_dim();
  Workspace* space = prepare(call, rows);
  gather_queries(call, piece, space);
  for (int64_t s = 0; s < piece.segments; ++s)
    for (int64_t r = 0; r < rows; ++r) {
      const float* aside = piece.partial + (s * rows + r) * (dim + 2);
      merge_row(space->merged.values + r * dim, space->merged.peak + r, space->merged.sum + r, aside,
                Softmax{aside[dim], aside[dim + 1]}, dim);
    }
  write_rows(call, piece, space->merged);
}

// Null where the queries of a sequence follow one another.
const QueryTree* tree_of(const AttentionCall& call, int64_t n, std::deque<QueryTree>* trees) {
  if (!call.parents) return nullptr;
  const int32_t* parents = call.parents + call.query_start[n];
  const int64_t queries = call.query_start[n + 1] - call.query_start[n];
  int64_t in_row = 0;
  while (in_row < queries && parents[in_row] == in_row - 1) ++in_row;
  if (in_row == queries) return nullptr;
  trees->emplace_back(parents, queries, call.context[n] - queries);
  return &trees->back();
}

// All tiles of all sequences, the most expensive first.
std::vector<Piece> plan(const AttentionCall& call, std::deque<QueryTree>* trees) {
  std::vector<Piece> pieces;
  for (int64_t n = 0; n < call.sequences; ++n) {
    const int64_t total = call.query_start[n + 1] - call.query_start[n];
    const QueryTree* tree = tree_of(call, n, trees);
    for (int64_t first = 0; first < total; first += call.tile_tokens) {
      const int64_t queries = std::min(call.tile_tokens, total - first);
      int64_t position = call.context[n] - total + first, end = position + queries;
      if (tree) {
        const auto found = tree->positions.begin() + first;
        position = *std::min_element(found, found + queries);
        end = *std::max_element(found, found + queries) + 1;
      }
      const int64_t segment = call.low_key(position) / kSegment;
      const int64_t segments = (end - 1) / kSegment - segment + 1;
      for (int64_t head = 0; head < call.kv_heads; ++head)
        pieces.push_back({n, head, first, queries, position, end, segment, segments, tree, nullptr});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.queries * a.segments > b.queries * b.segments;
  });
  return pieces;
}

// Too few pieces for the threads: every segment becomes its own, with room for its result.
std::vector<Piece> split(const AttentionCall& call, std::vector<Piece>& whole) {
  static thread_local Scratch held;
  int64_t floats = 0, segments = 0;
  for (const Piece& piece : whole) {
    floats += piece.segments * rows_of(call, piece) * (call.padded_dim() + 2);
    segments += piece.segments;
  }
  std::vector<Piece> parts;
  if (floats > kMostPartialFloats || segments < 2 * (int64_t)whole.size()) return parts;
  float* next = held.take(floats);
  for (Piece& piece : whole) {
    piece.partial = next;
    for (int64_t s = 0; s < piece.segments; ++s) {
      Piece part = piece;
      part.segment += s, part.segments = 1, part.partial = next;
      next += rows_of(call, piece) * (call.padded_dim() + 2);
      parts.push_back(part);
    }
  }
  return parts;
}

template <class T>
void run(const AttentionCall& call) {
  std::deque<QueryTree> trees;
  std::vector<Piece> pieces = plan(call, &trees), parts;
  if (call.threads > 1 && (int64_t)pieces.size() < 4 * call.threads) parts = split(call, pieces);
  const bool separate = !parts.empty();
  const std::vector<Piece>& work = separate ? parts : pieces;
  std::atomic<size_t> taken{0};
#pragma omp parallel num_threads(call.threads)
  {
    // Each takes the piece after the next in time to read ahead for it.
    for (size_t i = taken++, next; i < work.size(); i = next) {
      next = taken++;
      attend<T>(call, work[i], next < work.size() ? &work[next] : nullptr);
    }
#pragma omp barrier
    if (separate) {
#pragma omp for schedule(dynamic)
      for (size_t i = 0; i < pieces.size(); ++i) merge_partials(call, pieces[i]);
    }
  }
}

}  // namespace

extern "C" void tandem_paged_attention(
    const float* q, int64_t q_token_stride, int64_t q_head_stride, const void* kv, int64_t dtype,
    const int64_t* kv_strides, const int32_t* query_start, const int32_t* context,
    const int32_t* table, int64_t table_stride, int64_t sequences, const int32_t* parents, float* out,
    const int64_t* shape, float scale, int64_t window, int64_t tile_tokens, int64_t threads) {
  const AttentionCall call{q, q_token_stride, q_head_stride, kv, kv_strides[0], kv_strides[1],
                           kv_strides[2], kv_strides[3], query_start, context, table, table_stride,
                           sequences, parents, out, shape[0], shape[1], shape[2], shape[3], scale, window,
                           tile_tokens, (int)threads};
  switch (dtype) {
    case kBfloat16: return run<bf16>(call);
    case kFloat16: return run<fp16>(call);
    case kInt8: return run<int8_t>(call);
    default: return run<float>(call);
  }
}
