// Layers of a decoder in one call: the operations that models/decoder.py names one by one, in its
// order and with its arguments, so that their bits are the same. Nothing is computed here but where
// each of them reads and writes.
#include <algorithm>
#include <cstring>

#include "layers.h"

namespace {

// So many rows at a time go through what follows attention: what lies between the linears takes the
// most memory of all, and should stay in the last of the caches.
constexpr int64_t kTogether = 256;

void gather(const float* rows, int64_t features, const int64_t* wanted, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(out + i * features, rows + wanted[i] * features, features * sizeof(float));
}

struct Run {
  const Model& model;
  const Step& step;

  int64_t query_features() const { return model.heads * model.head_dim; }
  int64_t kv_features() const { return model.kv_heads * model.head_dim; }

  // Turns what rows of the residual have attended to into what the layer adds to them at its end.
  // `wide` has room for gates, ups and their product.
  void feed_forward(const Layer& layer, const float* attended, float* residual, int64_t rows,
                    float* update, float* x, float* wide) const {
    float* gated = wide + rows * 2 * model.inner;
    multiply(layer.attention_output, attended, rows, update, step.threads);
    norm(update, residual, rows, layer.feed_forward_norm, x);
    multiply(layer.gate_up, x, rows, wide, step.threads);
    tandem_gated_activation(wide, 2 * model.inner, rows, model.inner, model.activation, gated,
                            step.threads);
    multiply(layer.down, gated, rows, update, step.threads);
  }

  void norm(const float* x, float* residual, int64_t rows, const float* weight, float* out) const {
    tandem_rms_norm(x, model.hidden, 0, rows, 1, model.hidden, residual, weight,
                    (float)model.norm_eps, (float)model.norm_offset, out, step.threads);
  }

  // Heads of each token, normed on their own, contiguous.
  void norm_heads(const float* x, int64_t stride, int64_t heads, const float* weight,
                  float* out) const {
    tandem_rms_norm(x, stride, model.head_dim, step.tokens * heads, heads, model.head_dim, nullptr,
                    weight, (float)model.norm_eps, (float)model.norm_offset, out, step.threads);
  }

  // What the queries of all tokens attend to, from `qkv`; `normed` has room for queries and keys.
  void attend(const Layer& layer, void* kv, float* qkv, float* normed, float* attended) const {
    const int64_t width = query_features() + 2 * kv_features(), dim = model.head_dim;
    float *q = qkv, *k = qkv + query_features(), *v = k + kv_features();
    int64_t q_stride = width, k_stride = width;
    if (layer.query_norm) {
      norm_heads(q, width, model.heads, layer.query_norm, normed);
      q = normed, q_stride = query_features();
      normed += step.tokens * query_features();
    }
    if (layer.key_norm) {
      norm_heads(k, width, model.kv_heads, layer.key_norm, normed);
      k = normed, k_stride = kv_features();
    }
    const int64_t strides[] = {q_stride, dim, k_stride, dim, width, dim};
    const int64_t rotated[] = {model.heads, model.kv_heads, dim, model.half, step.pool.block_size};
    tandem_rotate_and_store(q, k, v, strides, rotated, step.tokens, model.cos, model.sin,
                            step.positions, step.slots, kv, step.pool.dtype, step.pool.strides,
                            step.threads);
    const int64_t shape[] = {model.heads, model.kv_heads, dim, step.pool.block_size};
    tandem_paged_attention(q, q_stride, dim, kv, step.pool.dtype, step.pool.strides, step.query_start,
                           step.context, step.table, step.table_stride, step.sequences,
                           step.parents, attended, shape, (float)model.attention_scale,
                           layer.window, step.tile_tokens, model.narrow, step.threads);
  }
};

}  // namespace

// Sizes of what Python lays out, for it to compare.
extern "C" int64_t tandem_layer_bytes() { return sizeof(Layer); }
extern "C" int64_t tandem_model_bytes() { return sizeof(Model); }
extern "C" int64_t tandem_step_bytes() { return sizeof(Step); }

// Floats between the linears of a layer, for so many rows: `wide`.
extern "C" void tandem_wide_floats(const void* of_model, int64_t rows, int64_t* floats) {
  const Model& model = *(const Model*)of_model;
  const int64_t heads = (model.heads + model.kv_heads) * model.head_dim;
  *floats = rows * 3 * heads + std::min(kTogether, rows) * 3 * model.inner;
}

extern "C" void tandem_layers(const void* of_model, const void* of_layers, int64_t count,
                              const void* of_step, float* residual, float* update, float* x,
                              float* wide, float* out) {
  const Model& model = *(const Model*)of_model;
  const Layer* layers = (const Layer*)of_layers;
  const Step& step = *(const Step*)of_step;
  const Run run{model, step};
  const int64_t queries = run.query_features(), keys = run.kv_features();
  const int64_t room = std::max(step.tokens, step.wanted_tokens);
  float* normed = wide + room * (queries + 2 * keys);
  float* attended = normed + room * (queries + keys);
  float* between = attended + room * queries;
  int64_t rows = step.tokens;
  for (int64_t i = 0; i < count; ++i) {
    const Layer& layer = layers[i];
    run.norm(i ? update : residual, i ? residual : nullptr, rows, layer.attention_norm, x);
    multiply(layer.qkv, x, rows, wide, step.threads);
    run.attend(layer, step.pool.layers[i], wide, normed, attended);
    if (i == count - 1 && step.wanted_tokens >= 0) {
      // Nothing after the last attention looks at other tokens.
      rows = step.wanted_tokens;
      gather(attended, queries, step.wanted, rows, normed);
      gather(residual, model.hidden, step.wanted, rows, out);
      attended = normed, residual = out;
    }
    for (int64_t row = 0; row < rows; row += kTogether) {
      const int64_t count = std::min(kTogether, rows - row), first = row * model.hidden;
      run.feed_forward(layer, attended + row * queries, residual + first, count, update + first, x,
                       between);
    }
  }
  for (int64_t i = 0; i < rows * model.hidden; ++i) out[i] = residual[i] + update[i];
}
