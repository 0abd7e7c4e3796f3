// Guesses of heads beside a model's own (Medusa) in one call: the operations that
// engine/proposers/medusa.py names one by one, in its order.
#include <vector>

#include "mathematics.h"
#include "slots.h"
#include "weight.h"

using namespace tandem;

namespace {

// `layers` are those of all heads, one below the other; `head` is the model's own.
struct Heads {
  int64_t hidden;
  const float* final_norm;
  double norm_eps;
  double norm_offset;
  Weight layers;
  Weight head;
};

// A guess with a smaller logarithm of its chance than `sure` gives way to what followed an end of
// `least` to `most` tokens before.
struct LookUp {
  double sure;
  int64_t least;
  int64_t most;
};

// states[h] = x + silu(states[h]).
void add_residual(const float* x, int64_t hidden, int64_t heads, float* states) {
  for (int64_t h = 0; h < heads; ++h, states += hidden)
    for (int64_t c = 0; c < hidden; c += kLanes) {
      const int64_t rest = hidden - c;
      store_some(states + c, load_some(x + c, rest) + silu(load_some(states + c, rest)), rest);
    }
}

}  // namespace

extern "C" int64_t tandem_heads_bytes() { return sizeof(Heads); }
extern "C" int64_t tandem_heads_look_up_bytes() { return sizeof(LookUp); }

// The first `heads` guesses behind each of some sequences in `row_slots`, of which the first `ends`
// tokens are known, from the hidden states that the last of these were drawn from. `normed` has room
// for as many rows, `states` and `logits` for one of each guess.
extern "C" void tandem_guess_ahead(const void* of_heads, const void* of_look_up,
                                   const void* of_slots, const int32_t* row_slots,
                                   const int32_t* ends, int64_t rows, int64_t heads,
                                   const float* hidden, float* normed, float* states, float* logits,
                                   int64_t* guesses, int64_t threads) {
  static thread_local SlotDraws draws;
  static thread_local std::vector<float> logprobs;
  static thread_local std::vector<int64_t> ranks;
  static thread_local std::vector<char> unsure;
  const Heads& of = *(const Heads*)of_heads;
  const LookUp& look_up = *(const LookUp*)of_look_up;
  const Slots& slots = *(const Slots*)of_slots;
  const int64_t vocabulary = of.head.out_features, count = rows * heads;
  tandem_rms_norm(hidden, of.hidden, 0, rows, 1, of.hidden, nullptr, of.final_norm,
                  (float)of.norm_eps, (float)of.norm_offset, normed, threads);
  Weight layers = of.layers;
  layers.out_features = heads * of.hidden;
  multiply(layers, normed, rows, states, threads);
  draws.clear();
  for (int64_t i = 0; i < rows; ++i) {
    add_residual(normed + i * of.hidden, of.hidden, heads, states + i * heads * of.hidden);
    for (int64_t h = 0; h < heads; ++h) draws.add(slots, row_slots[i], ends[i] + h);
  }
  multiply(of.head, states, count, logits, threads);
  draws.sample(logits, vocabulary, guesses, threads);
  logprobs.resize(count), ranks.resize(count), unsure.resize(count);
  tandem_token_logprobs(logits, vocabulary, count, vocabulary, guesses, 0, logprobs.data(),
                        ranks.data(), nullptr, nullptr, threads);
  // Of one that is none the chance is not a number.
  for (int64_t i = 0; i < count; ++i) unsure[i] = !(logprobs[i] >= look_up.sure);
  tandem_look_up_prompt(slots.tokens, slots.tokens_stride, row_slots, ends, rows, look_up.least,
                        look_up.most, guesses, heads, (const bool*)unsure.data());
}
