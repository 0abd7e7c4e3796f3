// Causal attention over a paged pool, in segments of 256 keys that start at multiples of 256.
// A segment's result (max, sum, weighted values) of one row depends on that row alone; segments are
// merged in order. So neither tiles, nor chunks of a prompt, nor threads, nor blocks change a bit;
// nor whether what a query sees lies in a row, or is its path through a tree.
#include <algorithm>
#include <atomic>
#include <deque>
#include <vector>

#include "attention_floats.h"
#include "attention_pairs.h"
#include "operations.h"

using namespace tandem;

namespace {

Workspace* prepare(const AttentionCall& call, int64_t rows) {
  static thread_local Scratch held;
  static thread_local Workspace space;
  const int64_t dim = call.padded_dim(), padded_rows = (rows + kLanes - 1) / kLanes * kLanes;
  const int64_t columns = value_columns(call), scores = kTileRows * kSegment;
  float* next = held.take(2 * padded_rows * (dim + 1) + kSegment * (dim + columns) +
                          kTileRows * columns + kDirectGroups * scores +
                          call.narrow * (padded_rows * dim + scores) / 2);
  const auto carve = [&next](int64_t floats) { return (next += floats) - floats; };
  space.k = carve(kSegment * dim);
  space.v = carve(kSegment * columns);
  space.q = carve(padded_rows * dim);
  space.merged.values = carve(padded_rows * dim);
  space.scores = carve(kDirectGroups * scores);
  space.values = carve(kTileRows * columns);
  space.merged.peak = carve(padded_rows);
  space.merged.sum = carve(padded_rows);
  if (call.narrow) {
    space.pair_q = (bf16*)carve(padded_rows * dim / 2);
    space.pair_weights = (bf16*)carve(scores / 2);
  }
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
template <class Products>
void attend_segments(const AttentionCall& call, const PieceRows& of, int64_t first, int64_t last,
                     const Piece* following, Workspace* space) {
  using T = typename Products::Stored;
  if (first < last) find_rows<T>(call, of.piece, first, &space->segments[0]);
  for (int64_t i = 0; i < last - first; ++i) {
    Segment* other = &space->segments[(i + 1) % 2];
    const Segment* next = nullptr;
    if (first + i + 1 < last)
      find_rows<T>(call, of.piece, first + i + 1, other), next = other;
    else if (Products::reads_ahead(call, of.groups))
      next = find_following<T>(call, following, other);
    Products::attend(call, of, space->segments[i % 2], next, space);
  }
}

// What the queries of a tree do not see alike, one after the other.
template <class Products>
void attend_branches(const AttentionCall& call, const Piece& piece, int64_t first,
                     Workspace* space) {
  for (int64_t query = 0; query < piece.queries; ++query) {
    const Piece one = piece.one_of(query);
    const PieceRows rows{piece, one, RowGroups(call.group()), query * call.group()};
    const int64_t low = call.low_key(one.position) / kSegment;
    const int64_t last = std::min(one.position / kSegment + 1, piece.segment + piece.segments);
    attend_segments<Products>(call, rows, std::max(first, low), last, nullptr, space);
  }
}

// Of segments that a row sees nothing of.
void clear_partial(const AttentionCall& call, const Piece& piece) {
  const int64_t stride = call.padded_dim() + 2;
  for (int64_t r = 0; r < piece.segments * rows_of(call, piece); ++r)
    piece.partial[(r + 1) * stride - 2] = piece.partial[(r + 1) * stride - 1] = 0.0f;
}

template <class Products>
void attend(const AttentionCall& call, const Piece& piece, const Piece* following) {
  const PieceRows rows{piece, piece, RowGroups(rows_of(call, piece)), 0};
  Workspace* space = prepare(call, rows.groups.rows);
  gather_queries(call, piece, space);
  Products::take_queries(call, rows.groups.rows, space);
  const int64_t branched = piece.first_branched();
  if (piece.tree && piece.partial) clear_partial(call, piece);
  attend_segments<Products>(call, rows, piece.segment, branched, piece.tree ? nullptr : following, space);
  if (piece.tree) attend_branches<Products>(call, piece, branched, space);
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

template <class Products>
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
      attend<Products>(call, work[i], next < work.size() ? &work[next] : nullptr);
    }
#pragma omp barrier
    if (separate) {
#pragma omp for schedule(dynamic)
      for (size_t i = 0; i < pieces.size(); ++i) merge_partials(call, pieces[i]);
    }
  }
}

template <class T>
void run_stored(const AttentionCall& call) {
#if defined(__AVX512BF16__)
  if (call.narrow) return run<PairProducts<T>>(call);
#endif
  run<FloatProducts<T>>(call);
}

}  // namespace

extern "C" void tandem_paged_attention(
    const float* q, int64_t q_token_stride, int64_t q_head_stride, const void* kv, int64_t dtype,
    const int64_t* kv_strides, const int32_t* query_start, const int32_t* context,
    const int32_t* table, int64_t table_stride, int64_t sequences, const int32_t* parents, float* out,
    const int64_t* shape, float scale, int64_t window, int64_t tile_tokens, int64_t narrow,
    int64_t threads) {
  const AttentionCall call{q, q_token_stride, q_head_stride, kv, kv_strides[0], kv_strides[1],
                           kv_strides[2], kv_strides[3], query_start, context, table, table_stride,
                           sequences, parents, out, shape[0], shape[1], shape[2], shape[3], scale, window,
                           tile_tokens, narrow && kHasBf16Products, (int)threads};
  switch (dtype) {
    case kBfloat16: return run_stored<bf16>(call);
    case kFloat16: return run_stored<fp16>(call);
    case kInt8: return run_stored<int8_t>(call);
    default: return run_stored<float>(call);
  }
}
