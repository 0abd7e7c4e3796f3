// The inner product of the room: a tile of up to 6 x 64 accumulators, walked along k.
// acc[r][n] = fma(a[r][k], b[k][n], acc[r][n]) for k = 0, 1, 2, ...: one order for every caller,
// every tile shape and every split of k, which is what makes results independent of the batch.
#pragma once

#include "vectors.h"

namespace tandem {

constexpr int kTileRows = 6;
constexpr int kPanelColumns = 64;
constexpr int kPanelVectors = kPanelColumns / kLanes;

// Accumulators, one broadcast and what all rows read of b must fit the register file; a single row needs
// two registers of b at most.
constexpr int vectors_for(int rows) {
  int vectors = kPanelVectors;
  while (vectors > 2 && rows * vectors + (rows > 1 ? vectors : 2) + 1 > kRegisters) vectors /= 2;
  return vectors;
}

// How b is laid out: rows one after another, or anywhere (the pool's slots). So many of them are
// read by one step of the walk: `kStep`.
template <class T>
struct StridedRows {
  static constexpr int kStep = 1;
  const T* first;
  ptrdiff_t stride;
  const T* operator[](int64_t k) const { return first + k * stride; }
  StridedRows shifted(int64_t columns) const { return {first + columns, stride}; }
};

template <class T>
struct ScatteredRows {
  static constexpr int kStep = 1;
  const T* const* rows;
  int64_t offset;
  const T* operator[](int64_t k) const { return rows[k] + offset; }
  ScatteredRows shifted(int64_t columns) const { return {rows, offset + columns}; }
};

// Columns in runs of kLanes, each run contiguous along k: [run][k][kLanes].
struct LaneRuns {
  static constexpr int kStep = 1;
  const float* first;
  ptrdiff_t run_stride;
  LaneRuns shifted(int64_t columns) const { return {first + columns / kLanes * run_stride, run_stride}; }
};

// Rows k and k + 1 side by side, [k / 2][columns][2]: products of pairs read it as it is, and one
// load gives two registers of floats.
struct PairedRows {
  static constexpr int kStep = 2;
  const bf16* first;
  ptrdiff_t stride;
  PairedRows shifted(int64_t columns) const { return {first + 2 * columns, stride}; }
};

template <int Vectors, class B>
inline void load_b(const B& b, int64_t k, int, Floats (&row)[Vectors]) {
  load_row<Vectors>(b[k], row);
}

template <int Vectors>
inline void load_b(const LaneRuns& b, int64_t k, int, Floats (&row)[Vectors]) {
  for (int v = 0; v < Vectors; ++v) row[v] = load(b.first + v * b.run_stride + k * kLanes);
}

template <int Vectors>
inline void load_b(const PairedRows& b, int64_t k, int part, Floats (&row)[Vectors]) {
  const bf16* pair = b.first + (k >> 1) * b.stride;
  for (int v = 0; v < Vectors; ++v) {
    const Words both = load_raw<Words>(pair + 2 * v * kLanes);
    row[v] = (Floats)(part ? both & 0xffff0000u : both << 16);
  }
}

struct TileShape {
  int64_t depth;
  int64_t columns;
  bool fresh;
};

// Memory that is needed soon.
struct Span {
  const char *begin, *end;
};

// Where prefetched lines go, as compilers number it.
constexpr int kSecondCache = 2, kNearestCache = 3;

// Issues prefetches of some spans while a tile computes, a few cache lines each kStride steps of k:
// asked at every step, they would cost as much as its products.
template <int Cache>
class ReadAheadInto {
 public:
  static constexpr int kStride = 8;

  ReadAheadInto(const Span* first, const Span* last, int64_t step_lines)
      : span_(first), last_(last), at_(first == last ? nullptr : first->begin), lines_(step_lines) {}

  inline void step() {
    for (int64_t i = 0; i < lines_; ++i) {
      if (span_ == last_) return;
      __builtin_prefetch(at_, 0, Cache);
      if ((at_ += 64) >= span_->end && ++span_ != last_) at_ = span_->begin;
    }
  }

 private:
  const Span *span_, *last_;
  const char* at_;
  int64_t lines_;
};
using ReadAhead = ReadAheadInto<kNearestCache>;
// More lines can be on their way to that cache, and much that is needed later does not fit the nearest.
using FarReadAhead = ReadAheadInto<kSecondCache>;

struct NoReadAhead {
  static constexpr int kStride = 1;
  inline void step() {}
};

// One k: row `part` of a step.
template <int Rows, int Vectors, class B>
inline __attribute__((always_inline)) void add_products(Floats (&acc)[Rows][Vectors], const float* a,
                                                        ptrdiff_t a_stride, const B& b, int64_t k,
                                                        int part) {
  Floats row[Vectors];
  load_b<Vectors>(b, k, part, row);
  if (Rows > 1)
    for (int v = 0; v < Vectors; ++v) keep_in_register(row[v]);
  for (int r = 0; r < Rows; ++r) {
    const Floats x = splat(a[r * a_stride + k]);
    for (int v = 0; v < Vectors; ++v) acc[r][v] = multiply_add(x, row[v], acc[r][v]);
    if (B::kStep > 1)
      for (int v = 0; v < Vectors; ++v) keep_in_register(acc[r][v]);
  }
}

template <int Rows, int Vectors, class B, class Ahead>
inline __attribute__((always_inline)) void walk(float* c, ptrdiff_t c_stride, const float* a,
                                                ptrdiff_t a_stride, B b, TileShape shape,
                                                Ahead& ahead) {
  Floats acc[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      acc[r][v] = shape.fresh ? Floats{} : load(c + r * c_stride + v * kLanes);
  int64_t k = 0;
  constexpr int64_t stride = Ahead::kStride > B::kStep ? Ahead::kStride : B::kStep;
  for (; k + stride <= shape.depth; k += stride) {
    ahead.step();
    for (int64_t i = 0; i < stride; i += B::kStep)
      for (int part = 0; part < B::kStep; ++part)
        add_products(acc, a, a_stride, b, k + i + part, part);
  }
  for (; k + B::kStep <= shape.depth; k += B::kStep)
    for (int part = 0; part < B::kStep; ++part) add_products(acc, a, a_stride, b, k + part, part);
  for (; k < shape.depth; ++k) add_products(acc, a, a_stride, b, k, 0);
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) store(c + r * c_stride + v * kLanes, acc[r][v]);
}

// c [Rows, columns] (+)= a [Rows, depth] x b [depth, columns]; `fresh` starts from zero.
// Columns are a multiple of kLanes; widths that do not fill the registers come last.
template <int Rows, class B, class Ahead>
inline __attribute__((noinline)) void tile_rows(float* c, ptrdiff_t c_stride, const float* a,
                                                ptrdiff_t a_stride, B b, TileShape shape,
                                                Ahead& ahead) {
  constexpr int vectors = vectors_for(Rows);
  int64_t column = 0;
  for (; column + vectors * kLanes <= shape.columns; column += vectors * kLanes)
    walk<Rows, vectors>(c + column, c_stride, a, a_stride, b.shifted(column), shape, ahead);
  for (; column < shape.columns; column += kLanes)
    walk<Rows, 1>(c + column, c_stride, a, a_stride, b.shifted(column), shape, ahead);
}

template <class B, class Ahead>
inline void tile(int rows, float* c, ptrdiff_t c_stride, const float* a, ptrdiff_t a_stride, B b,
                 TileShape shape, Ahead& ahead) {
  switch (rows) {
    case 1: return tile_rows<1>(c, c_stride, a, a_stride, b, shape, ahead);
    case 2: return tile_rows<2>(c, c_stride, a, a_stride, b, shape, ahead);
    case 3: return tile_rows<3>(c, c_stride, a, a_stride, b, shape, ahead);
    case 4: return tile_rows<4>(c, c_stride, a, a_stride, b, shape, ahead);
    case 5: return tile_rows<5>(c, c_stride, a, a_stride, b, shape, ahead);
    default: return tile_rows<6>(c, c_stride, a, a_stride, b, shape, ahead);
  }
}

template <class B>
inline void tile(int rows, float* c, ptrdiff_t c_stride, const float* a, ptrdiff_t a_stride, B b,
                 TileShape shape) {
  NoReadAhead nothing;
  tile(rows, c, c_stride, a, a_stride, b, shape, nothing);
}

// Sharing work with another thread costs one or two microseconds: as much as so many multiply-adds.
constexpr int64_t kThreadMultiplyAdds = 1 << 17;

inline int threads_for(int64_t multiply_adds, int64_t most) {
  const int64_t worth = multiply_adds / kThreadMultiplyAdds;
  return (int)(worth < 1 ? 1 : worth < most ? worth : most);
}

// A block's tile of partial sums (256 bytes a row) should stay in the second-level cache.
constexpr int64_t kMostRows = 384;
constexpr int64_t kLeastRows = 48;
constexpr int64_t kItemsAThread = 6;

// Large blocks reuse a widened panel more often; enough items keep all threads busy.
inline int64_t block_rows_for(int64_t rows, int64_t panels, int threads) {
  const int64_t items = threads > 1 ? kItemsAThread * threads : 1;
  const int64_t fewest = (rows + kMostRows - 1) / kMostRows, wanted = (items + panels - 1) / panels;
  const int64_t blocks = fewest > wanted ? fewest : wanted;
  const int64_t even = (rows + blocks - 1) / blocks;
  return even > kLeastRows ? even : kLeastRows;
}

// Calls block(row, rows, panel) for blocks of rows by panels of columns, shared out among threads.
template <class Block>
inline void for_each_block(int64_t rows, int64_t columns, int threads, const Block& block) {
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  const int64_t block_rows = block_rows_for(rows, panels, threads);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  // Where rows are few, weights are read once and memory is what is waited for: threads go through
  // panels that lie in a row, so that what is asked for ahead of one is the next, and share the end.
  if (blocks == 1) {
#pragma omp parallel for schedule(guided) num_threads(threads)
    for (int64_t panel = 0; panel < panels; ++panel) block(0, rows, panel);
    return;
  }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t item = 0; item < blocks * panels; ++item) {
    const int64_t row = item / panels * block_rows;
    block(row, rows - row < block_rows ? rows - row : block_rows, item % panels);
  }
}

// Whether a whole tile has to pass over the columns of a panel more than once. Smaller ones are no
// quicker there for each row.
constexpr bool kPassesOften = vectors_for(kTileRows) < kPanelVectors;

// Splits `rows` into the fewest groups of at most `most`: as even as possible, or all but the last of
// that size.
struct RowGroups {
  int64_t rows;
  int64_t most;
  int64_t count;
  bool even;
  explicit RowGroups(int64_t total, int64_t most_rows = kTileRows, bool as_even = true)
      : rows(total), most(most_rows), count((total + most - 1) / most), even(as_even) {}
  int64_t begin(int64_t group) const {
    if (group == count) return rows;
    return even ? rows * group / count : group * most;
  }
  int size(int64_t group) const { return (int)(begin(group + 1) - begin(group)); }
};

}  // namespace tandem
