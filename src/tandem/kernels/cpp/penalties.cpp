// Logits of tokens that were said before become smaller: divided once a token (repetition), and
// less by how often the answer has it (frequency) and whether it does (presence).
#include <cstdint>
#include <vector>

namespace {

struct Factors {
  float repetition, frequency, presence;
};

// How often a token was met; all zero between rows.
class Counts {
 public:
  int32_t* of(int64_t vocabulary) {
    if ((int64_t)counts_.size() < vocabulary) counts_.resize(vocabulary, 0);
    return counts_.data();
  }

 private:
  std::vector<int32_t> counts_;
};

// Rounded by itself, as elsewhere: in doubles the product is exact.
float product(float a, float b) { return (float)((double)a * (double)b); }

void penalise_row(float* logits, int64_t vocabulary, const int32_t* tokens, int64_t said,
                  int64_t answer, Factors factors) {
  static thread_local Counts held;
  int32_t* counts = held.of(vocabulary);
  const auto known = [&](int64_t i) { return tokens[i] >= 0 && tokens[i] < vocabulary; };
  if (factors.repetition != 1.0f) {
    for (int64_t i = 0; i < said; ++i) {
      if (!known(i) || counts[tokens[i]]++) continue;
      float& logit = logits[tokens[i]];
      logit = logit > 0 ? logit / factors.repetition : logit * factors.repetition;
    }
    for (int64_t i = 0; i < said; ++i)
      if (known(i)) counts[tokens[i]] = 0;
  }
  if (factors.frequency == 0.0f && factors.presence == 0.0f) return;
  for (int64_t i = answer; i < said; ++i)
    if (known(i)) ++counts[tokens[i]];
  for (int64_t i = answer; i < said; ++i) {
    if (!known(i) || !counts[tokens[i]]) continue;
    logits[tokens[i]] -= product((float)counts[tokens[i]], factors.frequency) + factors.presence;
    counts[tokens[i]] = 0;
  }
}

}  // namespace

extern "C" void tandem_penalise(float* logits, int64_t row_stride, int64_t vocabulary,
                                int64_t penalised, const int64_t* rows, const int32_t* tokens,
                                const int64_t* starts, const int64_t* answers,
                                const float* factors, int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (starts[penalised] > 4096)
  for (int64_t p = 0; p < penalised; ++p)
    penalise_row(logits + rows[p] * row_stride, vocabulary, tokens + starts[p],
                 starts[p + 1] - starts[p], answers[p] - starts[p],
                 Factors{factors[3 * p], factors[3 * p + 1], factors[3 * p + 2]});
}
