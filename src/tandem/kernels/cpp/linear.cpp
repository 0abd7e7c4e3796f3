// Linear layers over panels of 64 output columns, [panel][C][64], in any storage type.
// Few rows: the weight streams straight through the registers. Many rows: a stretch of a panel is
// widened into scratch and reused by all row groups of a block. Both walk C in the same order.
// bfloat16 panels interleave columns j and j + lanes, so one load yields two registers of floats.
#include "tile.h"

using namespace tandem;

namespace {

struct LinearCall {
  const float* x;
  int64_t x_stride;
  int64_t rows;
  const void* weight;
  const float* scale;
  const float* bias;
  float* out;
  int64_t out_stride;
  int64_t in_features;
  int64_t out_features;
};

constexpr int64_t kChunk = 256;
// From here on the copy of a widened stretch costs less than widening it for each row group.
constexpr int64_t kWidenRows = 96;

// Scale, bias and the possibly narrow last panel; the only place where results leave the tile.
void finish(const LinearCall& call, int64_t row, int rows, int64_t panel, const float* sums) {
  const int64_t first = panel * kPanelColumns;
  const int64_t width = call.out_features - first < kPanelColumns ? call.out_features - first
                                                                  : kPanelColumns;
  float scale[kPanelColumns], bias[kPanelColumns] = {};
  for (int n = 0; n < kPanelColumns; ++n) scale[n] = 1.0f;
  if (call.scale) std::memcpy(scale, call.scale + first, width * sizeof(float));
  if (call.bias) std::memcpy(bias, call.bias + first, width * sizeof(float));
  for (int r = 0; r < rows; ++r) {
    float done[kPanelColumns];
    for (int n = 0; n < kPanelColumns; n += kLanes) {
      const Floats sum = load(sums + r * kPanelColumns + n);
      store(done + n, sum * load(scale + n) + load(bias + n));
    }
    std::memcpy(call.out + (row + r) * call.out_stride + first, done, width * sizeof(float));
  }
}

// Walks one stretch of C for all row groups of a block; b is that stretch of the panel.
template <class T>
void walk_groups(const LinearCall& call, int64_t row, const RowGroups& groups, int64_t k,
                 int64_t depth, const T* b, float* sums) {
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t begin = groups.begin(g);
    tile(groups.size(g), sums + begin * kPanelColumns, kPanelColumns,
         call.x + (row + begin) * call.x_stride + k, call.x_stride,
         StridedRows<T>{b, kPanelColumns}, TileShape{depth, kPanelColumns, k == 0});
  }
}

template <class T>
void widen_stretch(const T* stretch, int64_t depth, float* wide) {
  constexpr int pair = 2;
  for (int64_t i = 0; i < depth * kPanelColumns; i += pair * kLanes) {
    Floats row[pair];
    load_row<pair>(stretch + i, row);
    for (int v = 0; v < pair; ++v) store(wide + i + v * kLanes, row[v]);
  }
}

template <class T>
void block_panel(const LinearCall& call, int64_t row, int64_t rows, int64_t panel) {
  static thread_local Scratch held;
  float* wide = held.take((kChunk + rows) * kPanelColumns);
  float* sums = wide + kChunk * kPanelColumns;
  const T* weight = (const T*)call.weight + panel * call.in_features * kPanelColumns;
  const RowGroups groups(rows);
  // A single group reads the panel once from end to end; more of them share a stretch in cache.
  const int64_t chunk = groups.count == 1 ? call.in_features : kChunk;
  const bool widened = sizeof(T) < sizeof(float) && rows >= kWidenRows;
  for (int64_t k = 0; k < call.in_features; k += chunk) {
    const int64_t depth = call.in_features - k < chunk ? call.in_features - k : chunk;
    const T* stretch = weight + k * kPanelColumns;
    if (widened) {
      widen_stretch(stretch, depth, wide);
      walk_groups<float>(call, row, groups, k, depth, wide, sums);
    } else {
      walk_groups<T>(call, row, groups, k, depth, stretch, sums);
    }
  }
  for (int64_t r = 0; r < rows; r += kTileRows)
    finish(call, row + r, (int)(rows - r < kTileRows ? rows - r : kTileRows), panel,
           sums + r * kPanelColumns);
}

template <class T>
void run(const LinearCall& call, int64_t block_rows, int threads) {
  const int64_t panels = (call.out_features + kPanelColumns - 1) / kPanelColumns;
  const int64_t blocks = (call.rows + block_rows - 1) / block_rows;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t item = 0; item < blocks * panels; ++item) {
    const int64_t row = item / panels * block_rows;
    const int64_t rows = call.rows - row < block_rows ? call.rows - row : block_rows;
    block_panel<T>(call, row, rows, item % panels);
  }
}

}  // namespace

extern "C" int64_t tandem_lanes() { return kLanes; }

extern "C" void tandem_linear(const float* x, int64_t x_stride, int64_t rows, const void* weight,
                              int64_t storage, const float* scale, const float* bias, float* out,
                              int64_t out_stride, int64_t in_features, int64_t out_features,
                              int64_t block_rows, int64_t threads) {
  const LinearCall call{x,   x_stride,   rows,        weight,      scale, bias,
                        out, out_stride, in_features, out_features};
  switch (storage) {
    case kBfloat16: return run<PairedBf16>(call, block_rows, (int)threads);
    case kFloat16: return run<fp16>(call, block_rows, (int)threads);
    case kInt8: return run<int8_t>(call, block_rows, (int)threads);
    default: return run<float>(call, block_rows, (int)threads);
  }
}
