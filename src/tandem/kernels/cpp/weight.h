// A weight as Python packed it (kernels/packed.py), in any of its forms.
#pragma once

#include "operations.h"

// As tandem_linear takes it or, of `bits` that are not 0, tandem_coded_linear. `narrow`: products in
// what it is stored in.
struct Weight {
  const void* values;
  int64_t storage;
  int64_t narrow;
  int64_t bits;
  int64_t group;
  int64_t zero;
  const void* scale;
  const void* offset;
  const float* column_scale;
  const float* bias;
  int64_t in_features;
  int64_t out_features;
};

inline void multiply(const Weight& by, const float* x, int64_t rows, float* out, int64_t threads) {
  if (by.bits)
    tandem_coded_linear(x, by.in_features, rows, by.values, by.bits, by.group, by.zero, by.scale,
                        by.offset, by.column_scale, by.bias, by.narrow, out, by.out_features,
                        by.in_features, by.out_features, threads);
  else
    tandem_linear(x, by.in_features, rows, by.values, by.storage, by.narrow, by.column_scale,
                  by.bias, out, by.out_features, by.in_features, by.out_features, threads);
}

extern "C" {
// Rows `ids` of the weight as floats, [count, in_features].
void tandem_embed(const int64_t* ids, int64_t count, const void* weight, float* out);

// Rows of a table in a float type, one after the other.
void tandem_look_up(const int64_t* ids, int64_t count, const void* table, int64_t dtype,
                    int64_t features, float* out);
}
