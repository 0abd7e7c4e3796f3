// Linear layers over panels of 64 output columns of codes, with scales of groups along C: products
// of bytes, of x coded in the same groups, or in fp32 of values that are widened into scratch.
#include <cmath>

#include "operations.h"
#include "tile_int8.h"

using namespace tandem;

namespace {

struct CodedCall {
  const float* x;
  int64_t x_stride;
  int64_t rows;
  const uint8_t* codes;
  int64_t bits;
  int64_t group;
  int32_t zero;
  const fp16* scale;
  const fp16* offset;
  const float* column_scale;
  const float* bias;
  float* out;
  int64_t out_stride;
  int64_t in_features;
  int64_t out_features;
  CodedRows coded;

  // Whole fours, and of four bits whole pairs of them.
  int64_t depth() const { return padded(in_features, 32 / bits); }
  int64_t groups() const { return (depth() + group - 1) / group; }
  static int64_t padded(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

  // The stretch of a panel from group to group.
  CodedPanel stretch(int64_t panel, int64_t first, int64_t count) const {
    const int64_t k = first * group, place = (panel * groups() + first) * kPanelColumns;
    const int64_t rest = depth() - k;
    return {codes + (panel * depth() + k) * kPanelColumns * bits / 8,
            scale ? scale + place : nullptr,
            offset ? offset + place : nullptr,
            group,
            rest < count * group ? rest : count * group,
            zero};
  }
};

// How deep a stretch is: of codes, and of values that are widened into scratch.
constexpr int64_t kCodedChunk = 1024;
constexpr int64_t kWideChunk = 256;

void finish(const CodedCall& call, int64_t row, int64_t rows, int64_t panel, const float* sums) {
  const int64_t first = panel * kPanelColumns;
  const int64_t rest = call.out_features - first;
  const int64_t width = rest < kPanelColumns ? rest : kPanelColumns;
  for (int64_t r = 0; r < rows; ++r) {
    float* out = call.out + (row + r) * call.out_stride + first;
    for (int64_t n = 0; n < width; ++n) {
      const float sum = sums[r * kPanelColumns + n] * call.column_scale[first + n];
      out[n] = call.bias ? sum + call.bias[first + n] : sum;
    }
  }
}

// The values of a stretch, [depth][64].
template <int Bits>
void widen(const CodedPanel& panel, float* wide) {
  constexpr int parts = 8 / Bits;
  constexpr uint32_t mask = (1u << Bits) - 1;
  const auto value_of = [&](Words words, int shift, Floats scale) {
    const Ints code = (Ints)((words >> shift) & mask) - splat_int(panel.zero);
    return __builtin_convertvector(code, Floats) * scale;
  };
  for (int64_t first = 0; first < panel.depth; first += panel.group)
    for (int column = 0; column < kPanelColumns; column += kLanes) {
      const int64_t end = first + panel.group < panel.depth ? first + panel.group : panel.depth;
      const int64_t place = first / panel.group * kPanelColumns + column;
      const Floats scale = panel.scale ? load(panel.scale + place) : splat(1.0f);
      const Floats offset = panel.offset ? load(panel.offset + place) : Floats{};
      float* out = wide + column;
      for (int64_t k = first; k < end; k += 4 * parts) {
        const Words words =
            load_raw<Words>(panel.codes + k / parts * kPanelColumns + 4 * column);
        for (int part = 0; part < parts; ++part)
          for (int i = 0; i < 4; ++i) {
            Floats value = value_of(words, 8 * i + 4 * part, scale);
            if (panel.offset) value += offset;
            store(out + (k + 4 * part + i) * kPanelColumns, value);
          }
      }
    }
}

// One block of rows by one panel, stretch after stretch; a stretch stays in the nearest cache.
template <bool Coded>
void block_panel(const CodedCall& call, int64_t row, int64_t rows, int64_t panel) {
  static thread_local Scratch held;
  constexpr int64_t chunk = Coded ? kCodedChunk : kWideChunk;
  const int64_t most_groups = call.group < chunk ? chunk / call.group : 1;
  const int64_t deepest = Coded ? 0 : most_groups * call.group;
  float* sums = held.take((rows + deepest) * kPanelColumns);
  float* wide = sums + rows * kPanelColumns;
  const RowGroups tiles(rows, Coded ? kCodeRows : kTileRows, !kPassesOften);
  const int64_t step = Coded && tiles.count == 1 ? call.groups() : most_groups;
  for (int64_t first = 0; first < call.groups(); first += step) {
    const int64_t left = call.groups() - first;
    const CodedPanel stretch = call.stretch(panel, first, left < step ? left : step);
    const int64_t k = first * call.group;
    if (!Coded) call.bits == 4 ? widen<4>(stretch, wide) : widen<8>(stretch, wide);
    for (int64_t t = 0; t < tiles.count; ++t) {
      float* c = sums + tiles.begin(t) * kPanelColumns;
      const int64_t begin = row + tiles.begin(t);
      if (!Coded) {
        const int64_t depth = call.in_features - k < stretch.depth ? call.in_features - k : stretch.depth;
        tile(tiles.size(t), c, kPanelColumns, call.x + begin * call.x_stride + k, call.x_stride,
             StridedRows<float>{wide, kPanelColumns}, TileShape{depth, kPanelColumns, k == 0});
      } else if (call.bits == 4) {
        tile_codes<4>(tiles.size(t), c, call.coded.from(begin, k, first), stretch, k == 0);
      } else {
        tile_codes<8>(tiles.size(t), c, call.coded.from(begin, k, first), stretch, k == 0);
      }
    }
  }
  finish(call, row, rows, panel, sums);
}

template <bool Coded>
void run(const CodedCall& call, int threads) {
  for_each_block(call.rows, call.out_features, threads,
                 [&](int64_t row, int64_t rows, int64_t panel) {
                   block_panel<Coded>(call, row, rows, panel);
                 });
}

void run_coded(CodedCall call, int threads) {
  static thread_local Scratch held;
  const int64_t depth = call.depth(), groups = call.groups();
  float* scales = held.take(call.rows * (2 * groups + (depth + 3) / 4));
  int32_t* sums = (int32_t*)(scales + call.rows * groups);
  int8_t* codes = (int8_t*)(sums + call.rows * groups);
#pragma omp parallel for num_threads(threads) if (call.rows > kTileRows)
  for (int64_t row = 0; row < call.rows; ++row)
    code_row(call.x + row * call.x_stride, call.in_features, depth, call.group, codes + row * depth,
             scales + row * groups, sums + row * groups);
  call.coded = CodedRows{codes, depth, scales, sums, groups};
  run<true>(call, threads);
}

}  // namespace

// Whether products of bytes are computed as such.
extern "C" int64_t tandem_int8_products() { return kHasInt8Products; }

extern "C" void tandem_coded_linear(const float* x, int64_t x_stride, int64_t rows,
                                    const void* codes, int64_t bits, int64_t group, int64_t zero,
                                    const void* scale, const void* offset,
                                    const float* column_scale, const float* bias, int64_t coded,
                                    float* out, int64_t out_stride, int64_t in_features,
                                    int64_t out_features, int64_t most_threads) {
  const CodedCall call{x,
                       x_stride,
                       rows,
                       (const uint8_t*)codes,
                       bits,
                       group,
                       (int32_t)zero,
                       (const fp16*)scale,
                       (const fp16*)offset,
                       column_scale,
                       bias,
                       out,
                       out_stride,
                       in_features,
                       out_features,
                       CodedRows{}};
  const int threads = threads_for(rows * in_features * out_features, most_threads);
  if (coded) return run_coded(call, threads);
  run<false>(call, threads);
}
