// Where the keys and values of a segment lie in the pool, and which of them rows see.
#pragma once

#include "attention_plan.h"

namespace tandem {

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

}  // namespace tandem
