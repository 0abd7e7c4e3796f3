// Rows of a weight, [N][C], become panels of 64 columns, [panel][C][64]. Whatever the elements mean,
// they are moved as they are.
#include "pack.h"

using namespace tandem;

namespace {

template <class T>
void pack(const T* rows, int64_t row_stride, int64_t out_features, int64_t in_features,
          T* panels, int threads) {
  const int64_t count = (out_features + kPanelColumns - 1) / kPanelColumns;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t panel = 0; panel < count; ++panel) {
    const int64_t first = panel * kPanelColumns;
    pack_panel(rows + first * row_stride, row_stride, out_features - first, in_features,
               panels + first * in_features);
  }
}

}  // namespace

extern "C" void tandem_pack(const void* rows, int64_t row_stride, int64_t out_features,
                            int64_t in_features, int64_t element_bytes, void* panels,
                            int64_t most_threads) {
  const int threads = threads_for(out_features * in_features, most_threads);
  switch (element_bytes) {
    case 1: return pack((const uint8_t*)rows, row_stride, out_features, in_features,
                        (uint8_t*)panels, threads);
    case 2: return pack((const uint16_t*)rows, row_stride, out_features, in_features,
                        (uint16_t*)panels, threads);
    default: return pack((const uint32_t*)rows, row_stride, out_features, in_features,
                        (uint32_t*)panels, threads);
  }
}
