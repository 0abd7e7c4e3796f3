// One register of floats and the ways to fill it, on any CPU that GCC or Clang can target.
// Vector extensions throughout; intrinsics only for conversions that compilers lower badly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

// Before a loop over registers: unrolled late, their array would be in memory around every inner loop.
#if defined(__clang__)
#define TANDEM_UNROLL _Pragma("unroll")
#else
#define TANDEM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tandem {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
#else
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Shorts __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

// The stored element types; distinct so that overloads can tell them apart.
struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

enum Dtype : int64_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kInt8 = 3, kCompactBfloat16 = 4 };

template <class V>
inline V load_raw(const void* source) {
  V value;
  std::memcpy(&value, source, sizeof(V));
  return value;
}

template <class V>
inline void store_raw(void* target, V value) {
  std::memcpy(target, &value, sizeof(V));
}

inline Floats splat(float value) { return value - Floats{}; }
inline Ints splat_int(int32_t value) { return value - Ints{}; }

// Has a compiler keep a value in a register where it would read it from memory for each use, which is
// more than a processor's loads keep up with, or would put it back there in between.
inline void keep_in_register(Floats& value) {
#if defined(__x86_64__)
  asm("" : "+v"(value));
#else
  (void)value;
#endif
}

// a * b + c, rounded once where the processor can. Asked for by name, for compilers choose otherwise
// in each copy of a loop: those for AMD's Zen leave sums apart that look like chains to them.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && defined(__AVX__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

inline Floats load(const float* source) { return load_raw<Floats>(source); }
inline void store(float* target, Floats value) { store_raw(target, value); }

// At most so many floats; the other lanes are zero, and stay as they are in memory.
inline Floats load_some(const float* source, int64_t count) {
  if (count >= kLanes) return load(source);
  float lanes[kLanes] = {};
  std::memcpy(lanes, source, count * sizeof(float));
  return load(lanes);
}
inline void store_some(float* target, Floats value, int64_t count) {
  if (count >= kLanes) return store(target, value);
  std::memcpy(target, &value, count * sizeof(float));
}

inline Words load_shorts(const void* source) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)source));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)source));
#else
  return __builtin_convertvector(load_raw<Shorts>(source), Words);
#endif
}

inline Floats load(const bf16* source) { return (Floats)(load_shorts(source) << 16); }

inline Floats load(const int8_t* source) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)source)));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)source)));
#else
  const Ints wide = __builtin_convertvector(load_raw<Bytes>(source), Ints);
  return __builtin_convertvector(wide, Floats);
#endif
}

// Exact for every half: the exponent is rebased by a product, which also handles subnormals.
inline Floats widen_half(Words half) {
  const Words magnitude = (half & 0x7fffu) << 13;
  Floats value = (Floats)magnitude * 0x1p112f;
  const Words special = (Words)(magnitude >= (0x7c00u << 13));
  const Words bits = ((Words)value & ~special) | ((magnitude | 0x7f800000u) & special);
  return (Floats)(bits | ((half & 0x8000u) << 16));
}

inline Floats load(const fp16* source) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)source));
#elif defined(__F16C__) && defined(__AVX__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)source));
#elif defined(__aarch64__)
  return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&source->bits)));
#else
  return widen_half(load_shorts(source));
#endif
}

template <int Vectors, class T>
inline void load_row(const T* source, Floats (&row)[Vectors]) {
  for (int v = 0; v < Vectors; ++v) row[v] = load(source + v * kLanes);
}

inline float widen(float value) { return value; }
inline float widen(int8_t value) { return (float)value; }
inline float widen(bf16 value) {
  const uint32_t bits = (uint32_t)value.bits << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}
inline float widen(fp16 value) { return widen_half(Words{} + value.bits)[0]; }

// Which lanes lie before `count`: all ones there, zero elsewhere.
inline Ints first_lanes(int64_t count) {
  Ints index{};
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = lane;
  return index < splat_int((int32_t)count);
}

inline Floats select(Ints mask, Floats yes, Floats no) {
  return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

// A bit for each lane of a mask.
inline uint32_t bits_of(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX2__)
  return (uint32_t)_mm256_movemask_ps((__m256)mask);
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= ((uint32_t)mask[lane] & 1) << lane;
  return bits;
#endif
}

inline bool any(Ints mask) {
#if defined(__AVX2__)
  return bits_of(mask) != 0;
#else
  int64_t parts[sizeof(Ints) / 8], all = 0;
  std::memcpy(parts, &mask, sizeof mask);
  for (int64_t part : parts) all |= part;
  return all != 0;
#endif
}

// Where either is NaN, b.
inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select(a > b, a, b);
#endif
}
inline Floats magnitude(Floats value) { return (Floats)((Words)value & 0x7fffffffu); }

// To the nearest whole number, halves to the even one.
inline Floats to_nearest(Floats value) {
#if defined(__AVX512F__)
  return (Floats)_mm512_roundscale_ps((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX__)
  return (Floats)_mm256_round_ps((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return (Floats)vrndnq_f32((float32x4_t)value);
#else
  for (int lane = 0; lane < kLanes; ++lane) value[lane] = __builtin_nearbyintf(value[lane]);
  return value;
#endif
}

// Both reductions pair lane i with lane i + half, so their order never varies.
inline float sum_of(Floats value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

inline int32_t sum_of(Ints value) {
  int32_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += value[lane];
  return sum;
}

inline float max_of(Floats value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      lanes[lane] = lanes[lane] > lanes[lane + half] ? lanes[lane] : lanes[lane + half];
  return lanes[0];
}

// A stretch of scratch that belongs to one thread and only ever grows.
class Scratch {
 public:
  ~Scratch() { delete[] raw_; }

  float* take(size_t floats) {
    if (floats > held_) {
      delete[] raw_;
      raw_ = new float[floats + kAlign];
      held_ = floats;
    }
    const uintptr_t address = (uintptr_t)raw_;
    return (float*)((address + 63) & ~(uintptr_t)63);
  }

 private:
  static constexpr size_t kAlign = 16;
  float* raw_ = nullptr;
  size_t held_ = 0;
};

}  // namespace tandem
