// Activations, lane by lane: silu(gate) * up, gelu_tanh(gate) * up, gelu(x) and gelu(gate) * up.
#include "mathematics.h"
#include "operations.h"

using namespace tandem;

namespace {

constexpr int64_t kParallelElements = int64_t{1} << 15;

Floats silu_mul(Floats gate, Floats up) { return silu(gate) * up; }

Floats gelu_tanh_mul(Floats gate, Floats up) {
  // (1 + tanh(u)) / 2 is the sigmoid of 2u, here with 2u = gate * (2c + 2c * 0.044715 * gate^2).
  const Floats doubled = gate * (gate * gate * 0.0713548162726009f + 1.59576912160573f);
  const Floats bounded = maximum(doubled, splat(-87.0f));
  return gate / (exp_of(Floats{} - bounded) + 1.0f) * up;
}

// x * P(X <= x) of a standard normal X, by Abramowitz and Stegun's 7.1.26 for the error function:
// wrong by less than 1e-7 times |x|.
Floats gelu(Floats x) {
  const Floats size = maximum(x, Floats{} - x);
  // exp2_of is zero from there on; its argument stays a number.
  const Floats z = select(size > splat(20.0f), splat(20.0f), size) * 0.70710678118654752f;
  const Floats t = 1.0f / (z * 0.3275911f + 1.0f);
  Floats tail = t * 1.061405429f - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = tail * t + 0.254829592f;
  const Floats beyond = x * (tail * t * exp_of(Floats{} - z * z) * 0.5f);
  return select(x > Floats{}, x - beyond, beyond);
}

Floats gelu_alone(Floats x, Floats) { return gelu(x); }
Floats gelu_mul(Floats gate, Floats up) { return gelu(gate) * up; }

template <Floats (*kActivation)(Floats, Floats)>
void activate_row(const float* gate, const float* up, float* out, int64_t features) {
  int64_t f = 0;
  for (; f + kLanes <= features; f += kLanes)
    store(out + f, kActivation(load(gate + f), load(up + f)));
  if (f == features) return;
  const size_t bytes = (features - f) * sizeof(float);
  float lanes[3][kLanes] = {};
  std::memcpy(lanes[0], gate + f, bytes);
  std::memcpy(lanes[1], up + f, bytes);
  store(lanes[2], kActivation(load(lanes[0]), load(lanes[1])));
  std::memcpy(out + f, lanes[2], bytes);
}

}  // namespace

// `activation` as kernels/activation.py numbers them.
extern "C" void tandem_gated_activation(const float* gate_up, int64_t stride, int64_t rows,
                                        int64_t features, int64_t activation, float* out,
                                        int64_t threads) {
  const auto activate = activation == 0 ? activate_row<silu_mul> : activate_row<gelu_tanh_mul>;
#pragma omp parallel for num_threads((int)threads) if (rows * features >= kParallelElements)
  for (int64_t i = 0; i < rows; ++i)
    activate(gate_up + i * stride, gate_up + i * stride + features, out + i * features, features);
}

// `up` is null or has the stride of `x`.
extern "C" void tandem_gelu(const float* x, const float* up, int64_t stride, int64_t rows,
                            int64_t features, float* out, int64_t threads) {
  const auto activate = up == nullptr ? activate_row<gelu_alone> : activate_row<gelu_mul>;
  const float* other = up == nullptr ? x : up;
#pragma omp parallel for num_threads((int)threads) if (rows * features >= kParallelElements)
  for (int64_t i = 0; i < rows; ++i)
    activate(x + i * stride, other + i * stride, out + i * features, features);
}
