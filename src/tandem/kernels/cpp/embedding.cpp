// Rows of a weight as floats: of the table that embeds tokens, or of panels where the head does. An
// element of a row lies in a cache line of its own there, so that waiting for memory is all the work.
#include <vector>

#include "compact.h"
#include "weight.h"

using namespace tandem;

namespace {

// Element k of a column, `step` elements after the one before.
template <class T>
void copy_column(const T* first, int64_t step, int64_t count, float* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = widen(first[k * step]);
}

void compact_column(const Compact& weight, int64_t panel, int64_t column, int64_t count, float* out) {
  static thread_local std::vector<uint16_t> held;
  held.resize(count);
  // Values of a pair of k lie side by side.
  const uint8_t* first = weight.panel(panel) + column / 32 * kUnitBytes;
  for (int64_t k = 0; k < count; ++k) {
    const uint8_t* unit = first + k / 2 * kPairBytes;
    const int64_t place = compact_place(column % 32 * 2 + k % 2);
    const uint8_t code = unit[place % 32] >> place / 32 * 4 & 15;
    held[k] = (uint16_t)(weight.known[code] << 8 | unit[32 + place]);
  }
  const uint32_t* begins = weight.first_exceptions(panel);
  for (int64_t stretch = 0; stretch < weight.stretches(); ++stretch)
    for (uint32_t i = begins[stretch]; i < begins[stretch + 1]; ++i) {
      const uint32_t exception = weight.exceptions()[i], place = exception >> 8;
      const int64_t k = stretch * kListedDepth + place / kPairValues * 2 + place % 2;
      if (place % kPairValues / 2 == column && k < count)
        held[k] = (uint16_t)(exception << 8 | (held[k] & 255));
    }
  for (int64_t k = 0; k < count; ++k) out[k] = widen(bf16{held[k]});
}

void float_row(const Weight& of, int64_t panel, int64_t column, float* out) {
  const int64_t count = of.in_features;
  const auto from = [&](auto* values) { return values + panel * count * kPanelColumns + column; };
  switch (of.storage) {
    case kBfloat16: {
      // In pairs of k.
      const int64_t pairs = (count + 1) / 2;
      const bf16* first = (const bf16*)of.values + (panel * pairs * kPanelColumns + column) * 2;
      for (int64_t k = 0; k < count; ++k)
        out[k] = widen(first[k / 2 * 2 * kPanelColumns + k % 2]);
      break;
    }
    case kCompactBfloat16:
      return compact_column(*(const Compact*)of.values, panel, column, count, out);
    case kFloat16: copy_column(from((const fp16*)of.values), kPanelColumns, count, out); break;
    case kInt8: copy_column(from((const int8_t*)of.values), kPanelColumns, count, out); break;
    default: copy_column(from((const float*)of.values), kPanelColumns, count, out);
  }
}

void coded_row(const Weight& of, int64_t panel, int64_t column, float* out) {
  // Fours of k lie together; of four bits two fours share their bytes.
  const int64_t together = 32 / of.bits, depth = (of.in_features + together - 1) / together;
  const int64_t groups = (depth * together + of.group - 1) / of.group;
  const uint8_t* codes = (const uint8_t*)of.values + (panel * depth * kPanelColumns + column) * 4;
  const fp16* scale = (const fp16*)of.scale + panel * groups * kPanelColumns + column;
  const fp16* offset = (const fp16*)of.offset + panel * groups * kPanelColumns + column;
  for (int64_t k = 0; k < of.in_features; ++k) {
    const uint8_t byte = codes[k / together * kPanelColumns * 4 + k % 4];
    const int32_t code = of.bits == 8 ? byte : (k % 8 < 4 ? byte & 15 : byte >> 4);
    const int64_t group = k / of.group * kPanelColumns;
    float value = (float)(code - (int32_t)of.zero);
    // A product of its own, which no compiler adds the offset to before it is rounded.
    if (of.scale) value = (float)((double)value * (double)widen(scale[group]));
    if (of.offset) value += widen(offset[group]);
    out[k] = value;
  }
}

template <class T>
void look_up(const int64_t* ids, int64_t count, const T* table, int64_t features, float* out) {
  for (int64_t i = 0; i < count; ++i)
    copy_column(table + ids[i] * features, 1, features, out + i * features);
}

}  // namespace

extern "C" void tandem_embed(const int64_t* ids, int64_t count, const void* weight, float* out) {
  const Weight& of = *(const Weight*)weight;
  for (int64_t i = 0; i < count; ++i) {
    float* row = out + i * of.in_features;
    const int64_t panel = ids[i] / kPanelColumns, column = ids[i] % kPanelColumns;
    if (of.bits)
      coded_row(of, panel, column, row);
    else
      float_row(of, panel, column, row);
    if (of.column_scale)
      for (int64_t k = 0; k < of.in_features; ++k) row[k] *= of.column_scale[ids[i]];
  }
}

extern "C" void tandem_look_up(const int64_t* ids, int64_t count, const void* table, int64_t dtype,
                               int64_t features, float* out) {
  switch (dtype) {
    case kBfloat16: return look_up(ids, count, (const bf16*)table, features, out);
    case kFloat16: return look_up(ids, count, (const fp16*)table, features, out);
    default: return look_up(ids, count, (const float*)table, features, out);
  }
}
