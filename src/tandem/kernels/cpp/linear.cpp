// Linear layers over panels of 64 output columns in any storage type: [panel][C][64], and for
// bfloat16 [panel][C / 2][64][2]. Products are in fp32, or in bfloat16 where both factors are.
// Few rows: the weight streams straight through the registers. Many rows: a stretch of a panel is
// reused by all row groups of a block, for products in fp32 widened into scratch. Whatever the
// rows, C is walked in the same order.
#include <type_traits>

#include "compact.h"
#include "operations.h"
#include "tile_bf16.h"

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
  // x in bfloat16, rows of an even length: for products in that.
  const bf16* rounded;
  int64_t rounded_stride;
};

constexpr int64_t kChunk = 256;
// Where a tile has to pass over the columns of a panel more than once, few rows do so stretch by
// stretch of these bytes: each comes from memory once, while the one before it is computed with.
constexpr bool kPassesOften = vectors_for(kTileRows) < kPanelVectors;
constexpr int64_t kPassBytes = 4096;
constexpr int64_t kPassGroups = 8;
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

// What lies between k and k + depth of a panel, and where: bfloat16 is stored in pairs of k.
struct Stretch {
  int64_t panel;
  int64_t k;
  int64_t depth;

  template <class T>
  const T* of(const LinearCall& call) const {
    const int64_t height =
        std::is_same<T, bf16>::value ? (call.in_features + 1) / 2 * 2 : call.in_features;
    return (const T*)call.weight + (panel * height + k) * kPanelColumns;
  }
};

// So many cache lines are asked for evenly, from the first pass of the first group to the last of all.
int64_t lines_a_step(int64_t lines, const Stretch& stretch, const RowGroups& groups) {
  const int64_t passes = kPanelVectors / vectors_for(groups.size(0)) * groups.count;
  const int64_t steps = stretch.depth / ReadAhead::kStride * passes;
  return steps < 1 ? lines : (lines + steps - 1) / steps;
}

template <class T>
StridedRows<T> rows_of(const T* stretch) {
  return {stretch, kPanelColumns};
}
PairedRows rows_of(const bf16* stretch) { return {stretch, 2 * kPanelColumns}; }

template <class T>
void widen_stretch(const T* stretch, int64_t depth, float* wide) {
  for (int64_t i = 0; i < depth * kPanelColumns; i += kLanes) store(wide + i, load(stretch + i));
}

// Writes a whole last pair, of which nobody reads the second half if depth is odd.
void widen_stretch(const bf16* stretch, int64_t depth, float* wide) {
  for (int64_t k = 0; k < depth; k += 2)
    for (int64_t n = 0; n < kPanelColumns; n += kLanes) {
      const Words both = load_raw<Words>(stretch + k * kPanelColumns + 2 * n);
      store(wide + k * kPanelColumns + n, (Floats)(both << 16));
      store(wide + (k + 1) * kPanelColumns + n, (Floats)(both & 0xffff0000u));
    }
}

// Products in fp32 of weights of any type.
template <class T>
struct WideProducts {
  static constexpr int64_t kScratch = (kChunk + 1) * kPanelColumns;

  // Row groups share a stretch in cache; and a single row reads memory faster in stretches, too.
  static int64_t chunk(const LinearCall&, const RowGroups& groups) {
    return in_passes(groups) ? kPassBytes / (kPanelColumns * (int64_t)sizeof(T)) : kChunk;
  }
  static bool in_passes(const RowGroups& groups) {
    return kPassesOften && groups.count <= kPassGroups;
  }

  // Few rows ask meanwhile for the memory that comes `next`.
  template <class B>
  static void walk(const LinearCall& call, int64_t row, const RowGroups& groups,
                   const Stretch& stretch, B b, Span next, float* sums) {
    const auto tiles = [&](auto& ahead) {
      for (int64_t g = 0; g < groups.count; ++g) {
        const int64_t begin = groups.begin(g);
        tile(groups.size(g), sums + begin * kPanelColumns, kPanelColumns,
             call.x + (row + begin) * call.x_stride + stretch.k, call.x_stride, b,
             TileShape{stretch.depth, kPanelColumns, stretch.k == 0}, ahead);
      }
    };
    if (in_passes(groups)) {
      ReadAhead ahead(&next, &next + 1, lines_a_step((next.end - next.begin) / 64, stretch, groups));
      tiles(ahead);
    } else {
      NoReadAhead nothing;
      tiles(nothing);
    }
  }

  static void add(const LinearCall& call, int64_t row, const RowGroups& groups,
                  const Stretch& stretch, float* wide, float* sums) {
    const T* stored = stretch.of<T>(call);
    const char* end = (const char*)(stored + stretch.depth * kPanelColumns);
    const Span next{end, end + kPassBytes};
    if (sizeof(T) < sizeof(float) && groups.rows >= kWidenRows) {
      widen_stretch(stored, stretch.depth, wide);
      walk(call, row, groups, stretch, rows_of((const float*)wide), next, sums);
    } else {
      walk(call, row, groups, stretch, rows_of(stored), next, sums);
    }
  }
};

#if defined(TANDEM_COMPACT)

// Products in fp32 of compact weights: the same values in the same order as of bfloat16. One or two
// passes look values up on their way into registers; more of them share a copy of a stretch.
struct CompactProducts {
  using Plain = WideProducts<bf16>;
  static constexpr int64_t kScratch = Plain::kScratch;

  static int64_t chunk(const LinearCall&, const RowGroups& groups) {
    return Plain::in_passes(groups) ? kListedDepth : kChunk;
  }

  static void add(const LinearCall& call, int64_t row, const RowGroups& groups,
                  const Stretch& stretch, float* wide, float* sums) {
    const CompactStretch packed(*(const Compact*)call.weight, stretch.panel, stretch.k, stretch.depth);
    if (groups.rows <= kCompactRows)
      return packed.multiply((int)groups.rows, sums, call.x + row * call.x_stride + stretch.k,
                             call.x_stride, stretch.k == 0);
    if (groups.count == 1) return walk(call, row, groups, stretch, packed, (bf16*)wide, sums);
    walk(call, row, groups, stretch, packed, wide, sums);
  }

  template <class T>
  static void walk(const LinearCall& call, int64_t row, const RowGroups& groups,
                   const Stretch& stretch, const CompactStretch& packed, T* copy, float* sums) {
    packed.expand(copy);
    const Span next{packed.end(), packed.end() + packed.bytes()};
    Plain::walk(call, row, groups, stretch, rows_of((const T*)copy), next, sums);
  }
};

#endif

// Products in bfloat16 of weights and x in it.
struct NarrowProducts {
  static constexpr int64_t kScratch = 0;

  // A single group reads the panel once from end to end.
  static int64_t chunk(const LinearCall& call, const RowGroups& groups) {
    return groups.count == 1 ? call.in_features : kChunk;
  }

  static void add(const LinearCall& call, int64_t row, const RowGroups& groups,
                  const Stretch& stretch, float*, float* sums) {
    const bf16* stored = stretch.of<bf16>(call);
    for (int64_t g = 0; g < groups.count; ++g) {
      const int64_t begin = groups.begin(g);
      tile_pairs(groups.size(g), sums + begin * kPanelColumns,
                 call.rounded + (row + begin) * call.rounded_stride + stretch.k,
                 call.rounded_stride, stored, (stretch.depth + 1) / 2, stretch.k == 0);
    }
  }
};

template <class Products>
void block_panel(const LinearCall& call, int64_t row, int64_t rows, int64_t panel) {
  static thread_local Scratch held;
  float* wide = held.take(Products::kScratch + rows * kPanelColumns);
  float* sums = wide + Products::kScratch;
  const RowGroups groups(rows);
  const int64_t chunk = Products::chunk(call, groups);
  for (int64_t k = 0; k < call.in_features; k += chunk) {
    const int64_t depth = call.in_features - k < chunk ? call.in_features - k : chunk;
    Products::add(call, row, groups, Stretch{panel, k, depth}, wide, sums);
  }
  for (int64_t r = 0; r < rows; r += kTileRows)
    finish(call, row + r, (int)(rows - r < kTileRows ? rows - r : kTileRows), panel,
           sums + r * kPanelColumns);
}

template <class Products>
void run(const LinearCall& call, int threads) {
  for_each_block(call.rows, call.out_features, threads,
                 [&](int64_t row, int64_t rows, int64_t panel) {
                   block_panel<Products>(call, row, rows, panel);
                 });
}

void run_narrow(LinearCall call, int threads) {
  static thread_local Scratch held;
  call.rounded_stride = (call.in_features + 1) / 2 * 2;
  bf16* rounded = (bf16*)held.take((size_t)(call.rows * call.rounded_stride + 1) / 2);
#pragma omp parallel for num_threads(threads) if (call.rows > kTileRows)
  for (int64_t row = 0; row < call.rows; ++row) {
    bf16* target = rounded + row * call.rounded_stride;
    target[call.rounded_stride - 1] = bf16{0};
    round_row(call.x + row * call.x_stride, call.in_features, target);
  }
  call.rounded = rounded;
  run<NarrowProducts>(call, threads);
}

}  // namespace

extern "C" int64_t tandem_lanes() { return kLanes; }

// Whether products in bfloat16 are computed as such.
extern "C" int64_t tandem_bf16_products() { return kHasBf16Products; }

extern "C" void tandem_linear(const float* x, int64_t x_stride, int64_t rows, const void* weight,
                              int64_t storage, int64_t narrow, const float* scale,
                              const float* bias, float* out, int64_t out_stride,
                              int64_t in_features, int64_t out_features, int64_t most_threads) {
  const LinearCall call{x,          x_stride,    rows,         weight,  scale, bias, out,
                        out_stride, in_features, out_features, nullptr, 0};
  const int threads = threads_for(rows * in_features * out_features, most_threads);
  if (narrow) return run_narrow(call, threads);
  switch (storage) {
    case kBfloat16: return run<WideProducts<bf16>>(call, threads);
    case kFloat16: return run<WideProducts<fp16>>(call, threads);
    case kInt8: return run<WideProducts<int8_t>>(call, threads);
#if defined(TANDEM_COMPACT)
    case kCompactBfloat16: return run<CompactProducts>(call, threads);
#endif
    default: return run<WideProducts<float>>(call, threads);
  }
}
