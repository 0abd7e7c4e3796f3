// Low-rank adapters beside a linear layer: y[t] += scaling * B (A x[t]) for the rows that have one.
// Rows are visited adapter by adapter. A row's sums run along the inputs, then along the rank, from
// zero and in order, whatever rows stand beside it.
#include <vector>

#include "tile.h"

using namespace tandem;

namespace {

constexpr int kMostParts = 3;
// So many outputs of a row group at once: enough work for a thread to be woken for.
constexpr int64_t kSpan = 1024;

// One of the linears that are fused; `up` is [rank][outputs, filled up to whole registers].
struct Part {
  const void* up;
  int64_t up_stride;
  int64_t first_rank;
  int64_t rank;
  int64_t first_output;
  int64_t outputs;
  double scaling;
};

// `down` is [in_features][ranks]: the ranks of all parts, filled up to whole registers.
struct Adapter {
  const void* down;
  int64_t ranks;
  int64_t storage;
  int64_t parts;
  Part part[kMostParts];
};

struct LowRankCall {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  const int64_t* order;
  const Adapter* adapters;
  int64_t in_features;
  float* inner;
  int64_t inner_stride;
};

// Rows `begin .. begin + rows` of the order, which have this adapter; of them a stretch of ranks or,
// of one part, of outputs.
struct Item {
  int64_t adapter, begin;
  int rows;
  int64_t part, first, columns;
};

// The rows of x below each other; copied where they are not already.
const float* gathered(const LowRankCall& call, const Item& item, int64_t* stride) {
  const int64_t* order = call.order + item.begin;
  *stride = call.x_stride;
  if (order[item.rows - 1] - order[0] == item.rows - 1) return call.x + order[0] * call.x_stride;
  static thread_local Scratch held;
  float* rows = held.take(kTileRows * call.in_features);
  for (int r = 0; r < item.rows; ++r)
    std::memcpy(rows + r * call.in_features, call.x + order[r] * call.x_stride,
                call.in_features * sizeof(float));
  *stride = call.in_features;
  return rows;
}

template <class T>
void project_down(const LowRankCall& call, const Item& item) {
  const Adapter& adapter = call.adapters[item.adapter];
  int64_t stride;
  const float* x = gathered(call, item, &stride);
  tile(item.rows, call.inner + item.begin * call.inner_stride + item.first, call.inner_stride, x,
       stride, StridedRows<T>{(const T*)adapter.down + item.first, adapter.ranks},
       TileShape{call.in_features, item.columns, true});
}

template <class T>
void project_up(const LowRankCall& call, const Item& item) {
  const Part& part = call.adapters[item.adapter].part[item.part];
  const float* inner = call.inner + item.begin * call.inner_stride + part.first_rank;
  const float scaling = (float)part.scaling;
  float sums[kTileRows * kPanelColumns];
  for (int64_t first = item.first; first < item.first + item.columns; first += kPanelColumns) {
    const int64_t left = part.up_stride - first, outputs = part.outputs - first;
    const int64_t filled = left < kPanelColumns ? left : kPanelColumns;
    const int64_t columns = outputs < kPanelColumns ? outputs : kPanelColumns;
    tile(item.rows, sums, kPanelColumns, inner, call.inner_stride,
         StridedRows<T>{(const T*)part.up + first, part.up_stride},
         TileShape{part.rank, filled, true});
    for (int r = 0; r < item.rows; ++r) {
      float* y = call.y + call.order[item.begin + r] * call.y_stride + part.first_output + first;
      for (int64_t n = 0; n < columns; ++n) y[n] += scaling * sums[r * kPanelColumns + n];
    }
  }
}

using Project = void (*)(const LowRankCall&, const Item&);

Project down_of(int64_t storage) {
  if (storage == kBfloat16) return project_down<bf16>;
  return storage == kFloat16 ? project_down<fp16> : project_down<float>;
}

Project up_of(int64_t storage) {
  if (storage == kBfloat16) return project_up<bf16>;
  return storage == kFloat16 ? project_up<fp16> : project_up<float>;
}

void run(const LowRankCall& call, const std::vector<Item>& items, Project (*project_of)(int64_t),
         int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (size_t i = 0; i < items.size(); ++i)
    project_of(call.adapters[items[i].adapter].storage)(call, items[i]);
}

void add_stretches(std::vector<Item>& items, Item item, int64_t total, int64_t stretch) {
  for (int64_t first = 0; first < total; first += stretch) {
    item.first = first;
    item.columns = total - first < stretch ? total - first : stretch;
    items.push_back(item);
  }
}

}  // namespace

// `order` holds rows of x and y, those of adapter a at `starts[a] .. starts[a + 1]`; `inner` has a
// row for each of them.
extern "C" void tandem_add_low_rank(const float* x, int64_t x_stride, float* y, int64_t y_stride,
                                    const int64_t* order, const int64_t* starts, int64_t adapters,
                                    const void* table, int64_t in_features, float* inner,
                                    int64_t inner_stride, int64_t multiply_adds,
                                    int64_t most_threads) {
  const LowRankCall call{x,           x_stride, y,           y_stride, order, (const Adapter*)table,
                         in_features, inner,    inner_stride};
  std::vector<Item> down, up;
  for (int64_t a = 0; a < adapters; ++a) {
    const Adapter& adapter = call.adapters[a];
    const int64_t rows = starts[a + 1] - starts[a];
    if (!adapter.parts || !rows) continue;
    const RowGroups groups(rows);
    for (int64_t g = 0; g < groups.count; ++g) {
      const Item item{a, starts[a] + groups.begin(g), groups.size(g), 0, 0, 0};
      add_stretches(down, item, adapter.ranks, kPanelColumns);
      for (int64_t p = 0; p < adapter.parts; ++p) {
        Item of_part = item;
        of_part.part = p;
        add_stretches(up, of_part, adapter.part[p].outputs, kSpan);
      }
    }
  }
  const int threads = threads_for(multiply_adds, most_threads);
  run(call, down, down_of, threads);
  run(call, up, up_of, threads);
}
