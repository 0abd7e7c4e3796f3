// Rotates queries and keys in place and writes keys and values into the paged pool.
#include <cmath>

#include "operations.h"
#include "vectors.h"

using namespace tandem;

namespace {

constexpr int64_t kParallelElements = int64_t{1} << 15;

struct Heads {
  float* data;
  int64_t token_stride, head_stride, count;
};

struct RotaryCall {
  Heads q, k, v;
  int64_t tokens, head_dim;
  const float *cos, *sin;
  int64_t half;  // Zero without a table.
  const int64_t *positions, *slots;
  void* kv;
  const int64_t* kv_strides;
  int64_t block_size;
};

void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats first = load(x + i), second = load(x + half + i);
    const Floats c = load(cos + i), s = load(sin + i);
    store(x + i, first * c - second * s);
    store(x + half + i, second * c + first * s);
  }
  for (; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] - second * sin[i];
    x[half + i] = second * cos[i] + first * sin[i];
  }
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void narrow(float value, float* target) { *target = value; }

// Round to nearest, ties to even; NaN stays NaN.
void narrow(float value, bf16* target) {
  const uint32_t bits = bits_of(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  target->bits = (uint16_t)(is_nan ? (bits >> 16) | 0x40u
                                   : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void narrow(float value, fp16* target) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the subnormal half's units at the end of the mantissa, rounded to even.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    half = bits_of(shifted + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  target->bits = (uint16_t)(half | sign);
}

template <class T>
void write_row(const float* source, int64_t dim, T* target) {
  for (int64_t d = 0; d < dim; ++d) narrow(source[d], target + d);
}

// Codes with their scale before them. A row that is not finite has no number as its scale.
void write_row(const float* source, int64_t dim, int8_t* target) {
  float peak = 0.0f, zero = 0.0f;
  for (int64_t d = 0; d < dim; ++d) {
    peak = std::fmax(peak, std::fabs(source[d]));
    zero += source[d] * 0.0f;
  }
  const float scale = peak / 127.0f;
  const bool usable = zero == 0.0f && scale > 0.0f;
  store_raw(target, usable ? scale : zero);
  target += sizeof(float);
  for (int64_t d = 0; d < dim; ++d) {
    const float steps = usable ? source[d] / scale : 0.0f;
    target[d] = (int8_t)std::nearbyint(std::fmin(std::fmax(steps, -127.0f), 127.0f));
  }
}

template <class T>
void write(const RotaryCall& call, const Heads& heads, int64_t token, int64_t side) {
  const int64_t slot = call.slots[token];
  if (slot < 0) return;
  T* block = (T*)call.kv + slot / call.block_size * call.kv_strides[0] + side * call.kv_strides[1];
  for (int64_t head = 0; head < heads.count; ++head) {
    const float* source = heads.data + token * heads.token_stride + head * heads.head_stride;
    T* target = block + head * call.kv_strides[2] + slot % call.block_size * call.kv_strides[3];
    write_row(source, call.head_dim, target);
  }
}

void rotate_heads(const RotaryCall& call, const Heads& heads, int64_t token) {
  const int64_t row = call.positions[token] * call.half;
  for (int64_t head = 0; head < heads.count; ++head)
    rotate(heads.data + token * heads.token_stride + head * heads.head_stride, call.cos + row,
           call.sin + row, call.half);
}

template <class T>
void run(const RotaryCall& call, int threads) {
  const int64_t elements = call.tokens * call.head_dim * (call.q.count + 2 * call.k.count);
#pragma omp parallel for num_threads(threads) if (elements >= kParallelElements)
  for (int64_t token = 0; token < call.tokens; ++token) {
    if (call.half > 0) {
      rotate_heads(call, call.q, token);
      rotate_heads(call, call.k, token);
    }
    write<T>(call, call.k, token, 0);
    write<T>(call, call.v, token, 1);
  }
}

}  // namespace

// strides: token and head strides of q, k and v. shape: H, K, D, R, S.
extern "C" void tandem_rotate_and_store(float* q, float* k, float* v, const int64_t* strides,
                                        const int64_t* shape, int64_t tokens, const float* cos,
                                        const float* sin, const int64_t* positions,
                                        const int64_t* slots, void* kv, int64_t dtype,
                                        const int64_t* kv_strides, int64_t threads) {
  const RotaryCall call{{q, strides[0], strides[1], shape[0]},
                        {k, strides[2], strides[3], shape[1]},
                        {v, strides[4], strides[5], shape[1]},
                        tokens, shape[2], cos, sin, shape[3], positions, slots, kv, kv_strides,
                        shape[4]};
  switch (dtype) {
    case kBfloat16: return run<bf16>(call, (int)threads);
    case kFloat16: return run<fp16>(call, (int)threads);
    case kInt8: return run<int8_t>(call, (int)threads);
    default: return run<float>(call, (int)threads);
  }
}
