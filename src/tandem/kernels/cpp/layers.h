// A decoder's layers and the tokens that go through them, as kernels/layers.py lays them out.
#pragma once

#include "weight.h"

// Norms of heads are null where the model has none; `window` is 0 where all keys are seen.
struct Layer {
  const float* attention_norm;
  const float* query_norm;
  const float* key_norm;
  const float* feed_forward_norm;
  int64_t window;
  Weight qkv;
  Weight attention_output;
  Weight gate_up;
  Weight down;
};

// Of all layers. `half` is 0 where nothing is rotated; `narrow`: attention in bfloat16.
struct Model {
  int64_t hidden;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t inner;
  int64_t activation;
  int64_t half;
  const float* cos;
  const float* sin;
  int64_t narrow;
  double norm_eps;
  double norm_offset;
  double attention_scale;
};

// The KV pool, with an address for each layer.
struct Pool {
  void* const* layers;
  int64_t dtype;
  int64_t strides[4];
  int64_t block_size;
};

// The tokens of a step. Of the last layer only the `wanted_tokens` leave attention; -1: all.
struct Step {
  int64_t tokens;
  const int64_t* positions;
  const int64_t* slots;
  const int32_t* query_start;
  const int32_t* context;
  const int32_t* table;
  int64_t table_stride;
  int64_t sequences;
  const int32_t* parents;
  const int64_t* wanted;
  int64_t wanted_tokens;
  Pool pool;
  int64_t tile_tokens;
  int64_t threads;
};

// Turns `residual` [tokens, hidden] into `out`, the hidden states of the tokens that are wanted.
// `update` and `x` have room for as many rows as the larger of them, and `wide` for what lies between
// linears of so many: qkv, normed queries and keys and what they attend to; gates, ups and products.
extern "C" void tandem_layers(const void* of_model, const void* of_layers, int64_t count,
                              const void* of_step, float* residual, float* update, float* x,
                              float* wide, float* out);
