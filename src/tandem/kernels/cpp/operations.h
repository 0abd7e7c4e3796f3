// The operations that whole steps are made of, each a function of its own that Python calls, too.
// Whoever defines one includes this, so that the compiler finds whatever differs.
#pragma once

#include <cstdint>

extern "C" {

void tandem_rms_norm(const float* x, int64_t token_stride, int64_t head_stride, int64_t rows,
                     int64_t heads, int64_t features, float* residual, const float* weight,
                     float eps, float offset, float* out, int64_t threads);

void tandem_linear(const float* x, int64_t x_stride, int64_t rows, const void* weight,
                   int64_t storage, int64_t narrow, const float* scale, const float* bias,
                   float* out, int64_t out_stride, int64_t in_features, int64_t out_features,
                   int64_t most_threads);

void tandem_coded_linear(const float* x, int64_t x_stride, int64_t rows, const void* codes,
                         int64_t bits, int64_t group, int64_t zero, const void* scale,
                         const void* offset, const float* column_scale, const float* bias,
                         int64_t coded, float* out, int64_t out_stride, int64_t in_features,
                         int64_t out_features, int64_t most_threads);

void tandem_rotate_and_store(float* q, float* k, float* v, const int64_t* strides,
                             const int64_t* shape, int64_t tokens, const float* cos,
                             const float* sin, const int64_t* positions, const int64_t* slots,
                             void* kv, int64_t dtype, const int64_t* kv_strides, int64_t threads);

void tandem_paged_attention(const float* q, int64_t q_token_stride, int64_t q_head_stride,
                            const void* kv, int64_t dtype, const int64_t* kv_strides,
                            const int32_t* query_start, const int32_t* context,
                            const int32_t* table, int64_t table_stride, int64_t sequences,
                            const int32_t* parents, float* out, const int64_t* shape, float scale,
                            int64_t window, int64_t tile_tokens, int64_t narrow, int64_t threads);

void tandem_gated_activation(const float* gate_up, int64_t stride, int64_t rows, int64_t features,
                             int64_t activation, float* out, int64_t threads);

void tandem_sample(const float* logits, int64_t stride, int64_t rows, int64_t vocabulary,
                   const float* temperature, const int32_t* top_k, const float* top_p,
                   const float* min_p, const float* typical_p, const float* xtc_threshold,
                   const float* xtc_probability, const int64_t* seed, const int64_t* position,
                   int64_t* tokens, int64_t threads);

void tandem_token_logprobs(const float* logits, int64_t stride, int64_t rows, int64_t vocabulary,
                           const int64_t* tokens, int64_t top_n, float* logprob, int64_t* rank,
                           int64_t* top_ids, float* top_logprobs, int64_t threads);

void tandem_look_up_prompt(const int32_t* tokens, int64_t stride, const int32_t* slots,
                           const int32_t* ends, int64_t rows, int64_t least, int64_t most,
                           int64_t* guesses, int64_t places, const bool* wanted);
}
