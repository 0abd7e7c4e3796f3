// Operations on numbers that are the same everywhere, for processors that tests do not run on: built
// with the kernels for two of them, its lines are compared. A line is the name of a case, then what it
// gives, floats as hexadecimal.
#include <cstdio>
#include <cstring>
#include <vector>

#include "operations.h"
#include "vectors.h"

using namespace tandem;

extern "C" {
void tandem_pack(const void* rows, int64_t row_stride, int64_t out_features, int64_t in_features,
                 int64_t element_bytes, void* panels, int64_t most_threads);
void tandem_extremes(const void* rows, int64_t dtype, int64_t row_stride, int64_t out_features,
                     int64_t in_features, int64_t group, float* out, int64_t threads);
void tandem_code(const void* rows, int64_t dtype, int64_t row_stride, int64_t out_features,
                 int64_t in_features, int64_t group, const float* scale, int64_t least, int64_t most,
                 int64_t zero, uint8_t* codes, int64_t threads);
int64_t tandem_int8_products();
void tandem_checksum_runs(const char* memory, const int64_t* offsets, int64_t count,
                          int64_t run_bytes, uint64_t* out);
void tandem_sum_runs(const char* memory, const int64_t* offsets, int64_t count, int64_t run_bytes,
                     const uint64_t* key, uint64_t* out);
}

namespace {

constexpr int64_t kThreads = 2, kPanel = 64;

uint64_t state = 1;
uint32_t draw() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}
// Multiples of 2^-10 between -1 and 1.
float number() { return (float)((int)(draw() % 2049) - 1024) / 1024; }
std::vector<float> numbers(int64_t count) {
  std::vector<float> found(count);
  for (float& each : found) each = number();
  return found;
}
// Rounded down to what is left of them.
std::vector<uint16_t> bfloats(const std::vector<float>& wide) {
  std::vector<uint16_t> found;
  for (float each : wide) found.push_back((uint16_t)(load_raw<uint32_t>(&each) >> 16));
  return found;
}
// Of magnitudes from 2^-6 to 2.
std::vector<uint16_t> halves(int64_t count) {
  std::vector<uint16_t> found(count);
  for (uint16_t& each : found)
    each = (uint16_t)((draw() & 1) << 15 | (9 + draw() % 7) << 10 | (draw() & 1023));
  return found;
}

void show(const char* name, const std::vector<float>& values) {
  std::printf("%s", name);
  for (float each : values) std::printf(" %a", (double)each);
  std::printf("\n");
}
template <class T>
void show(const char* name, const std::vector<T>& values) {
  std::printf("%s", name);
  for (T each : values) std::printf(" %llu", (unsigned long long)each);
  std::printf("\n");
}

constexpr int64_t kIn = 71, kOut = 130, kPanels = (kOut + kPanel - 1) / kPanel;

void check_linear(const char* name, int64_t storage, const void* rows, int64_t bytes) {
  // Of bfloat16 pairs are moved as one.
  const bool paired = storage == kBfloat16;
  const int64_t height = paired ? (kIn + 1) / 2 : kIn, moved = paired ? 4 : bytes;
  std::vector<char> padded(kOut * height * moved), panels(kPanels * kPanel * height * moved);
  for (int64_t n = 0; n < kOut; ++n)
    std::memcpy(&padded[n * height * moved], (const char*)rows + n * kIn * bytes, kIn * bytes);
  tandem_pack(padded.data(), height, kOut, height, moved, panels.data(), kThreads);
  const std::vector<float> bias = numbers(kOut), scale = numbers(kOut);
  for (int64_t count : {1, 4, 6, 13, 100}) {
    const std::vector<float> x = numbers(count * kIn);
    std::vector<float> out(count * kOut);
    tandem_linear(x.data(), kIn, count, panels.data(), storage, 0, scale.data(), bias.data(),
                  out.data(), kOut, kIn, kOut, kThreads);
    show(name, out);
  }
}

void check_linears() {
  check_linear("linear float32", kFloat32, numbers(kOut * kIn).data(), 4);
  check_linear("linear bfloat16", kBfloat16, bfloats(numbers(kOut * kIn)).data(), 2);
  check_linear("linear float16", kFloat16, halves(kOut * kIn).data(), 2);
  std::vector<int8_t> bytes(kOut * kIn);
  for (int8_t& each : bytes) each = (int8_t)draw();
  check_linear("linear int8", kInt8, bytes.data(), 1);
}

// Codes of rows, in groups or as wholes, and their products.
void check_codes(const char* name, int64_t bits, int64_t dtype, const void* rows) {
  constexpr int64_t in = 160;
  const int64_t size = bits == 4 ? 32 : in, group = bits == 4 ? 32 : 128, most = bits == 4 ? 7 : 127;
  std::vector<float> scale(kOut * (in / size));
  tandem_extremes(rows, dtype, in, kOut, in, size, scale.data(), kThreads);
  show(name, scale);
  for (float& each : scale) each = each == 0 ? 1 : each / -(float)(most + 1);
  std::vector<uint8_t> codes(kOut * in), panels(kPanels * kPanel * in * bits / 8);
  tandem_code(rows, dtype, in, kOut, in, size, scale.data(), bits == 4 ? -8 : -127, most,
              bits == 4 ? 8 : 128, codes.data(), kThreads);
  show(name, codes);
  std::vector<uint32_t> words(codes.size() / 4);
  std::memcpy(words.data(), codes.data(), codes.size());
  if (bits == 4)
    for (size_t i = 0; 2 * i + 1 < words.size(); ++i) words[i] = words[2 * i] | words[2 * i + 1] << 4;
  const int64_t height = in * bits / 32;
  tandem_pack(words.data(), height, kOut, height, 4, panels.data(), kThreads);
  const int64_t groups = (in + group - 1) / group;
  const std::vector<uint16_t> scales = halves(kPanels * groups * kPanel);
  const std::vector<uint16_t> offsets = halves(kPanels * groups * kPanel);
  const std::vector<float> column = numbers(kPanels * kPanel), bias = numbers(kOut);
  for (int64_t count : {1, 3, 6, 11})
    for (int64_t coded = 0; coded <= 1; ++coded) {
      const std::vector<float> x = numbers(count * in);
      std::vector<float> out(count * kOut);
      // Processors without products of bytes have no others.
      if (coded && !tandem_int8_products()) continue;
      tandem_coded_linear(x.data(), in, count, panels.data(), bits, group, bits == 4 ? 8 : 128,
                          scales.data(), bits == 4 ? offsets.data() : nullptr, column.data(),
                          bias.data(), coded, out.data(), kOut, in, kOut, kThreads);
      char whole[64];
      std::snprintf(whole, sizeof whole, "%s %s", name, coded ? "products of bytes" : "widened");
      show(whole, out);
    }
}

void check_attention(const char* name, int64_t dtype, const void* kv) {
  constexpr int64_t heads = 4, kv_heads = 2, dim = 40, block = 16, blocks = 40;
  const int64_t strides[] = {2 * kv_heads * block * dim, kv_heads * block * dim, block * dim, dim};
  const int64_t shape[] = {heads, kv_heads, dim, block};
  const int32_t starts[] = {0, 1, 24}, context[] = {300, 290};
  std::vector<int32_t> table(2 * 20);
  for (int32_t i = 0; i < 40; ++i) table[i] = (i * 7 + 3) % blocks;
  for (int64_t window : {0, 100}) {
    const std::vector<float> q = numbers(24 * heads * dim);
    std::vector<float> out(q.size());
    tandem_paged_attention(q.data(), heads * dim, dim, kv, dtype, strides, starts, context,
                           table.data(), 20, 2, nullptr, out.data(), shape, 0.15f, window, 16, 0,
                           kThreads);
    show(name, out);
  }
}

void check_attentions() {
  constexpr int64_t count = 40 * 2 * 2 * 16 * 40;
  const std::vector<float> wide = numbers(count);
  check_attention("attention float32", kFloat32, wide.data());
  check_attention("attention bfloat16", kBfloat16, bfloats(wide).data());
  check_attention("attention float16", kFloat16, halves(count).data());
}

void check_rows() {
  constexpr int64_t rows = 5, features = 75;
  const std::vector<float> x = numbers(rows * features), weight = numbers(features);
  std::vector<float> residual = numbers(rows * features), out(rows * features);
  tandem_rms_norm(x.data(), features, 0, rows, 1, features, residual.data(), weight.data(), 1e-6f,
                  0.0f, out.data(), kThreads);
  show("rms_norm", out);
  const std::vector<float> gates = numbers(rows * 2 * features);
  for (int64_t activation : {0, 1}) {
    tandem_gated_activation(gates.data(), 2 * features, rows, features, activation, out.data(),
                            kThreads);
    show("activation", out);
  }
}

void check_draws() {
  constexpr int64_t rows = 6, vocabulary = 1037;
  std::vector<float> logits = numbers(rows * vocabulary);
  for (float& each : logits) each *= 6;
  const float temperature[] = {0, 1, 0.7f, 1, 1.3f, 1}, top_p[] = {1, 1, 1, 0.9f, 0.8f, 1};
  const float min_p[] = {0, 0, 0, 0, 0, 0.02f};
  const int32_t top_k[] = {0, 0, 0, 0, 0, 40};
  const int64_t seed[] = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> tokens(rows), ids(rows * 5), rank(rows);
  for (int64_t first = 0; first < 40; ++first) {
    const int64_t position[] = {first, first, first, first, first, first};
    tandem_sample(logits.data(), vocabulary, rows, vocabulary, temperature, top_k, top_p, min_p,
                  nullptr, nullptr, nullptr, seed, position, tokens.data(), kThreads);
    show("drawn", tokens);
  }
  std::vector<float> logprob(rows), top(rows * 5);
  tandem_token_logprobs(logits.data(), vocabulary, rows, vocabulary, tokens.data(), 5,
                        logprob.data(), rank.data(), ids.data(), top.data(), kThreads);
  show("ranks", rank);
  show("likeliest", ids);
  show("logprobs", logprob);
}

void check_sums() {
  std::vector<char> memory(20000);
  for (char& each : memory) each = (char)draw();
  const int64_t offsets[] = {0, 4096, 9000}, bytes = 7168;
  std::vector<uint64_t> out(3), sums(3 * 2 * 16);
  tandem_checksum_runs(memory.data(), offsets, 3, bytes, out.data());
  show("checksums", out);
  std::vector<uint64_t> key(4096);
  for (uint64_t& each : key) each = (uint64_t)draw() << 32 | draw();
  tandem_sum_runs(memory.data(), offsets, 3, bytes, key.data(), sums.data());
  show("sums", sums);
}

}  // namespace

int main() {
  std::printf("products of bytes: %d\n", (int)tandem_int8_products());
  check_linears();
  const std::vector<float> wide = numbers(kOut * 160);
  check_codes("8 bits of float32", 8, kFloat32, wide.data());
  check_codes("8 bits of bfloat16", 8, kBfloat16, bfloats(wide).data());
  check_codes("4 bits of float32", 4, kFloat32, wide.data());
  check_codes("4 bits of float16", 4, kFloat16, halves(kOut * 160).data());
  check_attentions();
  check_rows();
  check_draws();
  check_sums();
}
