// What a call of attention is asked, and how its work is cut into pieces that threads share.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "tile.h"

namespace tandem {

constexpr int64_t kSegment = 256;
constexpr int64_t kPanels = kSegment / kPanelColumns;
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
  bool narrow;  // Products in bfloat16.
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

inline int64_t rows_of(const AttentionCall& call, const Piece& piece) {
  return piece.queries * call.group();
}

// Null where the queries of a sequence follow one another.
inline const QueryTree* tree_of(const AttentionCall& call, int64_t n, std::deque<QueryTree>* trees) {
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
inline std::vector<Piece> plan(const AttentionCall& call, std::deque<QueryTree>* trees) {
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
inline std::vector<Piece> split(const AttentionCall& call, std::vector<Piece>& whole) {
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

}  // namespace tandem
