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
// Products of pairs take half as long, and what is around a tile counts for more.
constexpr int64_t kNarrowChunk = 1024;
// Where a tile has to pass over the columns of a panel more than once, few rows do so stretch by
// stretch of these bytes: each comes from memory once, while the one before it is computed with. More
// of them take longer for a stretch than memory does, and rather begin anew less often.
constexpr int64_t kPassBytes = 4096;
constexpr int64_t kPassGroups = 3;
// Up to so many groups are few: they ask for the next stretch, and have shorter ones where a copy of it
// is quickly used up.
constexpr int64_t kFewGroups = 8;
// Of compact weights whose products are in bfloat16, few groups but more than kPassGroups share a copy
// of so many k: it is used up slowly enough to be longer than the nearest cache.
constexpr int64_t kCopiedDepth = 512;
// From here on the copy of a widened stretch costs less than widening it for each row group.
constexpr int64_t kWidenRows = 96;

// Scale, bias and the possibly narrow last panel; the only place where results leave the tile.
void finish(const LinearCall& call, int64_t row, int64_t rows, int64_t panel, const float* sums) {
  const int64_t first = panel * kPanelColumns;
  const int64_t width = call.out_features - first < kPanelColumns ? call.out_features - first
                                                                  : kPanelColumns;
  Floats scale[kPanelVectors], bias[kPanelVectors];
  for (int v = 0; v < kPanelVectors; ++v) {
    const int64_t column = first + v * kLanes, held = call.out_features - column;
    scale[v] = call.scale && held > 0 ? load_some(call.scale + column, held) : splat(1.0f);
    bias[v] = call.bias && held > 0 ? load_some(call.bias + column, held) : Floats{};
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* out = call.out + (row + r) * call.out_stride + first;
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats done = load(sums + r * kPanelColumns + v * kLanes) * scale[v] + bias[v];
      if (width == kPanelColumns)
        store(out + v * kLanes, done);
      else if (width > v * kLanes)
        store_some(out + v * kLanes, done, width - v * kLanes);
    }
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

// So many cache lines are asked for evenly, from the first pass over a stretch to the last.
int64_t lines_a_step(Span asked, const Stretch& stretch, int64_t passes) {
  const int64_t lines = (asked.end - asked.begin) / 64;
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

// Groups of rows from `first` on by one stretch; if it `asks`, for the memory that comes `next`
// meanwhile.
template <class Products, class B>
void walk(bool asks, Span next, const LinearCall& call, int64_t row, const RowGroups& groups,
          const Stretch& stretch, B b, float* sums, int64_t first = 0) {
  if (asks) {
    int64_t passes = 0;
    for (int64_t g = first; g < groups.count; ++g)
      passes += kPanelVectors / vectors_for(groups.size(g));
    ReadAhead ahead(&next, &next + 1, lines_a_step(next, stretch, passes));
    return Products::walk(call, row, groups, first, stretch, b, sums, ahead);
  }
  NoReadAhead nothing;
  Products::walk(call, row, groups, first, stretch, b, sums, nothing);
}

// Products in fp32 of weights of any type.
template <class T>
struct WideProducts {
  static constexpr int64_t kScratch = (kChunk + 1) * kPanelColumns;

  // Row groups share a stretch in cache; and a single row reads memory faster in stretches, too.
  static int64_t chunk(const LinearCall&, const RowGroups& groups) {
    const bool few = kPassesOften && groups.count <= kPassGroups;
    return few ? kPassBytes / (kPanelColumns * (int64_t)sizeof(T)) : kChunk;
  }

  template <class B, class Ahead>
  static void walk(const LinearCall& call, int64_t row, const RowGroups& groups, int64_t first,
                   const Stretch& stretch, B b, float* sums, Ahead& ahead) {
    for (int64_t g = first; g < groups.count; ++g) {
      const int64_t begin = groups.begin(g);
      tile(groups.size(g), sums + begin * kPanelColumns, kPanelColumns,
           call.x + (row + begin) * call.x_stride + stretch.k, call.x_stride, b,
           TileShape{stretch.depth, kPanelColumns, stretch.k == 0}, ahead);
    }
  }

  static void add(const LinearCall& call, int64_t row, const RowGroups& groups,
                  const Stretch& stretch, float* wide, float* sums) {
    const T* stored = stretch.of<T>(call);
    const char* end = (const char*)(stored + stretch.depth * kPanelColumns);
    const Span next{end, end + (end - (const char*)stored)};
    const bool asks = kPassesOften && groups.count <= kFewGroups;
    const auto walk_rows = [&](auto rows) {
      ::walk<WideProducts>(asks, next, call, row, groups, stretch, rows, sums);
    };
    if (sizeof(T) < sizeof(float) && groups.rows >= kWidenRows) {
      widen_stretch(stored, stretch.depth, wide);
      walk_rows(rows_of((const float*)wide));
    } else {
      walk_rows(rows_of(stored));
    }
  }
};

// Products in bfloat16 of weights and x in it.
struct NarrowProducts {
  static constexpr int64_t kScratch = 0;

  // A single group reads the panel once from end to end.
  static int64_t chunk(const LinearCall& call, const RowGroups& groups) {
    return groups.count == 1 ? call.in_features : kNarrowChunk;
  }

  template <class Ahead>
  static void walk(const LinearCall& call, int64_t row, const RowGroups& groups, int64_t first,
                   const Stretch& stretch, PairedRows b, float* sums, Ahead& ahead) {
    for (int64_t g = first; g < groups.count; ++g) {
      const int64_t begin = groups.begin(g);
      tile_pairs(groups.size(g), sums + begin * kPanelColumns, kPanelColumns,
                 call.rounded + (row + begin) * call.rounded_stride + stretch.k,
                 call.rounded_stride, b.first, (stretch.depth + 1) / 2, stretch.k == 0, ahead);
    }
  }

  static void add(const LinearCall& call, int64_t row, const RowGroups& groups,
                  const Stretch& stretch, float*, float* sums) {
    const PairedRows rows = rows_of(stretch.of<bf16>(call));
    ::walk<NarrowProducts>(false, Span{}, call, row, groups, stretch, rows, sums);
  }
};

#if defined(TANDEM_COMPACT)

// Products of compact weights, the same in the same order as of bfloat16: in fp32 or, if `Narrow`, as
// above. Of few rows values are looked up on their way into registers; more of them share a copy of a
// stretch, which the first group leaves behind where its tile has room for that.
template <bool Narrow>
struct CompactProducts {
  using Wide = WideProducts<bf16>;
  using Products = std::conditional_t<Narrow, NarrowProducts, Wide>;
  using Copied = std::conditional_t<Narrow, bf16, float>;
  static constexpr int64_t kScratch = Narrow ? kNarrowChunk * kPanelColumns / 2 : Wide::kScratch;

  static int64_t chunk(const LinearCall&, const RowGroups& groups) {
    if (Narrow && groups.count <= kPassGroups) return kLookedUpDepth;
    if (Narrow && groups.count <= kFewGroups) return kCopiedDepth;
    if (groups.rows <= kLookedUpOnce) return kListedDepth;
    if (groups.count == 1) return kLookedUpDepth;
    if (!kPassesOften && groups.count <= kFewGroups) return 2 * kListedDepth;
    return Narrow ? kNarrowChunk : kChunk;
  }

  static void add(const LinearCall& call, int64_t row, const RowGroups& groups,
                  const Stretch& stretch, float* copy, float* sums) {
    if constexpr (Narrow)
      add(call, call.rounded, call.rounded_stride, row, groups, stretch, copy, sums);
    else
      add(call, call.x, call.x_stride, row, groups, stretch, copy, sums);
  }

 private:
  template <class A>
  static void add(const LinearCall& call, const A* x, ptrdiff_t x_stride, int64_t row,
                  const RowGroups& groups, const Stretch& stretch, float* copy, float* sums) {
    const CompactStretch packed(*(const Compact*)call.weight, stretch.panel, stretch.k, stretch.depth);
    const Span next{packed.end(), packed.end() + packed.bytes()};
    const A* a = x + row * x_stride + stretch.k;
    const auto multiply_once = [&](auto kept) {
      packed.multiply_once(groups.size(0), sums, a, x_stride, stretch.k == 0, kept);
    };
    const auto walk_copy = [&](auto* values, int64_t first) {
      using T = std::remove_pointer_t<decltype(values)>;
      const auto rows = rows_of((const T*)values);
      ::walk<Products>(true, next, call, row, groups, stretch, rows, sums, first);
    };
    const auto walk_expanded = [&](auto* values) {
      packed.expand(values);
      walk_copy(values, 0);
    };
    if (groups.rows <= kLookedUpOnce) return multiply_once(NoCopy{});
    if constexpr (kLookedUpOnce < kLookedUpTwice && Narrow)
      if (groups.rows <= kLookedUpTwice) {
        FarReadAhead ahead(&next, &next + 1, lines_a_step(next, stretch, 2));
        return packed.multiply_twice((int)groups.rows, sums, a, x_stride, stretch.k == 0, ahead);
      }
    if (kTileRows <= kLookedUpOnce) {
      multiply_once((Copied*)copy);
      return walk_copy((Copied*)copy, 1);
    }
    if (groups.count == 1) return walk_expanded((bf16*)copy);
    walk_expanded((Copied*)copy);
  }
};

#endif

template <class Products>
void block_panel(const LinearCall& call, int64_t row, int64_t rows, int64_t panel) {
  static thread_local Scratch held;
  float* wide = held.take(Products::kScratch + rows * kPanelColumns);
  float* sums = wide + Products::kScratch;
  const RowGroups groups(rows, kTileRows, !kPassesOften);
  const int64_t chunk = Products::chunk(call, groups);
  for (int64_t k = 0; k < call.in_features; k += chunk) {
    const int64_t depth = call.in_features - k < chunk ? call.in_features - k : chunk;
    Products::add(call, row, groups, Stretch{panel, k, depth}, wide, sums);
  }
  finish(call, row, rows, panel, sums);
}

template <class Products>
void run(const LinearCall& call, int threads) {
  for_each_block(call.rows, call.out_features, threads,
                 [&](int64_t row, int64_t rows, int64_t panel) {
                   block_panel<Products>(call, row, rows, panel);
                 });
}

void run_narrow(LinearCall call, bool compact, int threads) {
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
#if defined(TANDEM_COMPACT)
  if (compact) return run<CompactProducts<true>>(call, threads);
#endif
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
  if (narrow) return run_narrow(call, storage == kCompactBfloat16, threads);
  switch (storage) {
    case kBfloat16: return run<WideProducts<bf16>>(call, threads);
    case kFloat16: return run<WideProducts<fp16>>(call, threads);
    case kInt8: return run<WideProducts<int8_t>>(call, threads);
#if defined(TANDEM_COMPACT)
    case kCompactBfloat16: return run<CompactProducts<false>>(call, threads);
#endif
    default: return run<WideProducts<float>>(call, threads);
  }
}
