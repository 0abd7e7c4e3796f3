// Elementary functions on a register of floats; every lane gets the same arithmetic.
#pragma once

#include "vectors.h"

namespace tandem {

constexpr float kLog2e = 1.44269504088896341f;

// 2^x for x <= 127, zero below -126 (and for -inf); relative error about 1e-7.
inline Floats exp2_of(Floats x) {
  const Floats shifter = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits hold the integer.
  const Ints underflow = x < splat(-126.0f);
  const Floats shifted = x + shifter;
  const Floats part = x - (shifted - shifter);
  Floats value = splat(1.52527338e-5f);
  value = value * part + splat(1.54035304e-4f);
  value = value * part + splat(1.33335581e-3f);
  value = value * part + splat(9.61812911e-3f);
  value = value * part + splat(5.55041087e-2f);
  value = value * part + splat(2.40226507e-1f);
  value = value * part + splat(6.93147181e-1f);
  value = value * part + splat(1.0f);
  const Ints exponent = ((Ints)shifted - 0x4b400000) << 23;
  return select(underflow, Floats{}, (Floats)((Ints)value + exponent));
}

// 2^x for x <= 127, next to zero below -126; relative error below 1e-4.
inline Floats rough_exp2_of(Floats x) {
  const Floats shifter = splat(12582912.0f);
  const Floats bounded = maximum(x, splat(-126.0f));
  const Floats shifted = bounded + shifter;
  const Floats part = bounded - (shifted - shifter);
  Floats value = splat(0.05517144f);
  value = multiply_add(value, part, splat(0.24261081f));
  value = multiply_add(value, part, splat(0.69326099f));
  value = multiply_add(value, part, splat(0.99992809f));
  // The shifter's own low bits are zero.
  return (Floats)((Ints)value + ((Ints)shifted << 23));
}

inline Floats exp_of(Floats x) { return exp2_of(x * kLog2e); }

inline Floats silu(Floats x) {
  // Beyond 126 / log2(e) the sigmoid is 1 or 0 in float anyway; exp2_of must not overflow.
  const Floats bounded = maximum(x, splat(-87.0f));
  return bounded / (exp_of(Floats{} - bounded) + 1.0f);
}

}  // namespace tandem
