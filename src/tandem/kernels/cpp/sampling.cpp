// Draws tokens by Gumbel noise from a counter, and scores given tokens; a row is one thread's work.
// Filters keep an interval of (t descending, id ascending), so they reduce to two tokens.
// Noise is bounded: what lies 17.4 below the best score so far cannot win and gets none, and of the
// rest only tokens whose cheap upper bound reaches that score get their exact one, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "filters.h"
#include "mathematics.h"
#include "operations.h"
#include "philox.h"

using namespace tandem;

namespace {

constexpr float kNoiseSpan = 20.3f, kNoiseMost = 17.4f;
constexpr size_t kShortList = 1024;
constexpr int64_t kNoToken = -1;
// The last word of a counter.
constexpr uint32_t kNoiseStream = 0, kCoinStream = 1;

struct Row {
  const float* logits;
  int64_t vocabulary;
  float temperature;
  uint32_t key[2], place[2];
};

constexpr int64_t kStretch = 4 * kLanes;

// Calls take(first, logits of kStretch tokens) from the row's start on; behind its end they are
// minus infinity.
template <class Take>
inline void for_each_stretch(const Row& row, Take take) {
  int64_t first = 0;
  for (; first + kStretch <= row.vocabulary; first += kStretch) take(first, row.logits + first);
  if (first == row.vocabulary) return;
  float last[kStretch];
  std::fill_n(last, kStretch, kMinusInfinity);
  std::copy(row.logits + first, row.logits + row.vocabulary, last);
  take(first, last);
}

bool holds_nan(const Row& row) {
  for (int64_t i = 0; i < row.vocabulary; ++i)
    if (std::isnan(row.logits[i])) return true;
  return false;
}

// The largest logit; NaN when any is. A row without a finite one draws no token. A maximum forgets
// a NaN, a sum keeps it: a sum that is none clears the row, any other is looked into.
float largest(const Row& row) {
  Floats peaks[4], sums[4] = {};
  for (Floats& peak : peaks) peak = splat(kMinusInfinity);
  for_each_stretch(row, [&](int64_t, const float* stretch) {
    for (int v = 0; v < 4; ++v) {
      const Floats logits = load(stretch + v * kLanes);
      sums[v] += logits, peaks[v] = maximum(logits, peaks[v]);
    }
  });
  const Floats sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (any(sum != sum) && holds_nan(row)) return std::numeric_limits<float>::quiet_NaN();
  return max_of(maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3])));
}

// The lowest id with this logit, which is the row's largest.
int64_t first_with(const Row& row, float logit) {
  const Floats wanted = splat(logit);
  int64_t first = 0;
  for (; first + 4 * kLanes <= row.vocabulary; first += 4 * kLanes) {
    Ints found{};
    for (int v = 0; v < 4; ++v) found |= load(row.logits + first + v * kLanes) == wanted;
    if (any(found)) break;
  }
  for (; first < row.vocabulary; ++first)
    if (row.logits[first] == logit) return first;
  return 0;
}

// The lowest id whose tempered logit equals the maximum.
int64_t first_of(const Row& row, float t_max) {
  for (int64_t i = 0; i < row.vocabulary; ++i)
    if (row.logits[i] / row.temperature == t_max) return i;
  return 0;
}

// -log(-log(u)) <= -log(1 - u); the latter is bounded by a chord of log2 in each octave, which the
// bits of a float are.
Floats noise_bound(Words word) {
  const Floats rest = __builtin_convertvector((Ints)(~word >> 8), Floats);
  const Floats bits = __builtin_convertvector((Ints)rest, Floats);
  return multiply_add(bits, splat(-0.693148f * 0x1p-23f), splat((24.0f + 127.0f) * 0.693148f));
}

double noise(uint32_t word) {
  return -std::log(-std::log(((double)(word >> 8) + 0.5) * 0x1p-24));
}

struct Winner {
  double score = -std::numeric_limits<double>::infinity();
  int64_t id = 0;

  void offer(float t, uint32_t word, int64_t candidate) {
    const double found = (double)t + noise(word);
    if (found > score || (found == score && candidate < id)) score = found, id = candidate;
  }
  // Below this, a bound computed in float rules a token out.
  float hurdle() const { return (float)(score - 1e-3 - 1e-6 * std::fabs(score)); }
};

// The words of a stretch of tokens from `first` on, in their order. A lane computes four of them,
// and two lanes side by side those of tokens that lie kLanes apart.
template <int... Pair>
inline void words_of(const Row& row, const KeySchedule<Longs>& keys, int64_t first,
                     std::integer_sequence<int, Pair...>, Words (&words)[4]) {
  constexpr Longs lanes{(Pair / 2 + Pair % 2 * kLanes / 4)...};
  constexpr uint64_t low = 0xffffffff;
  Longs word[2][4];
  for (int half = 0; half < 2; ++half) {
    word[half][0] = lanes + (uint64_t)(first / 4 + half * kLanes / 2);
    word[half][1] = Longs{} + row.place[0], word[half][2] = Longs{} + row.place[1];
    word[half][3] = Longs{} + kNoiseStream;
  }
  philox(word, keys);
  for (int half = 0; half < 2; ++half) {
    const Longs front = (word[half][0] & low) | (word[half][1] << 32);
    const Longs back = (word[half][2] & low) | (word[half][3] << 32);
    words[2 * half] =
        (Words)__builtin_shufflevector(front, back, (Pair / 2 * 2 + Pair % 2 * kLanes / 2)...);
    words[2 * half + 1] =
        (Words)__builtin_shufflevector(front, back, (Pair / 2 * 2 + 1 + Pair % 2 * kLanes / 2)...);
  }
}

// A logit below which none reaches `t` when it is tempered, however the division rounds.
float logit_floor(const Row& row, float t) {
  const float logit = t * row.temperature;
  return logit - std::fabs(logit) * 0x1p-20f - 1e-30f;
}

bool any_from(float logit_floor, const float* logits) {
  const Floats most = maximum(maximum(load(logits), load(logits + kLanes)),
                              maximum(load(logits + 2 * kLanes), load(logits + 3 * kLanes)));
  return any(most >= splat(logit_floor));
}

// About the mass of what is added, in units of the largest token's: floats are right to a
// ten-thousandth.
class Mass {
 public:
  explicit Mass(float t_max) : t_max_(splat(t_max)) {}

  void add(Floats t, Ints which) {
    sum_ += select(which, rough_exp2_of((t - t_max_) * kLog2e), Floats{});
  }
  // From time to time, so that small masses are not lost beside a large sum.
  void settle() { total_ += sum_of(sum_), sum_ = Floats{}; }
  double total() const { return total_ + sum_of(sum_); }

 private:
  Floats t_max_, sum_{};
  double total_ = 0.0;
};
constexpr double kMassError = 1e-3;
constexpr int64_t kSettledTokens = 64 * kStretch;

// The winner among all tokens of an interval; the mass of all from `lowest` up is added to `mass`
// where that is given.
Winner draw_from_all(const Row& row, const Interval& kept, Mass* mass = nullptr,
                     float lowest = kMinusInfinity) {
  constexpr auto pairs = std::make_integer_sequence<int, kLanes / 2>{};
  const KeySchedule<Longs> keys(row.key[0], row.key[1]);
  const Floats temperature = splat(row.temperature);
  Winner winner;
  float hurdle = winner.hurdle(), floor = logit_floor(row, kept.last.t);
  for_each_stretch(row, [&](int64_t first, const float* logits) {
    const bool may_win = any_from(floor, logits);
    if (!may_win && !mass) return;
    Floats t[4];
    for (int v = 0; v < 4; ++v) t[v] = load(logits + v * kLanes) / temperature;
    if (mass) {
      if (first % kSettledTokens == 0) mass->settle();
      for (int v = 0; v < 4; ++v) mass->add(t[v], t[v] >= splat(lowest));
      if (!may_win) return;
    }
    Words words[4];
    words_of(row, keys, first, pairs, words);
    Floats bound[4];
    for (int v = 0; v < 4; ++v) bound[v] = t[v] + noise_bound(words[v]);
    const Floats most = maximum(maximum(bound[0], bound[1]), maximum(bound[2], bound[3]));
    if (!any(most >= splat(hurdle))) return;
    for (int v = 0; v < 4; ++v)
      for (uint32_t close = bits_of(bound[v] >= splat(hurdle)); close; close &= close - 1) {
        const int lane = __builtin_ctz(close);
        const Candidate candidate{t[v][lane], (int32_t)(first + v * kLanes + lane)};
        // One before it may have raised the hurdle.
        if (!(bound[v][lane] >= hurdle) || !kept.holds(candidate)) continue;
        winner.offer(candidate.t, words[v][lane], candidate.id);
        hurdle = winner.hurdle();
      }
    floor = logit_floor(row, std::max(kept.last.t, hurdle - kNoiseMost));
  });
  return winner;
}

// The word of a counter that starts with `first`, of those that differ in their place.
uint32_t word_of(const Row& row, uint32_t first, uint32_t stream, int place) {
  uint32_t word[1][4] = {{first, row.place[0], row.place[1], stream}};
  philox(word, KeySchedule<uint32_t>(row.key[0], row.key[1]));
  return word[0][place];
}

Winner draw_from_list(const Row& row, float t_top, const std::vector<Candidate>& list) {
  Winner winner;
  for (const auto& [t, id] : list)
    if (t >= t_top - kNoiseSpan)
      winner.offer(t, word_of(row, (uint32_t)id / 4, kNoiseStream, id % 4), id);
  return winner;
}

// The mass of all tokens down to `last`.
double mass_down_to(const Row& row, float t_max, const Candidate& last) {
  const Floats temperature = splat(row.temperature), own = splat(last.t);
  const float floor = logit_floor(row, last.t);
  Mass mass(t_max);
  for_each_stretch(row, [&](int64_t first, const float* logits) {
    if (first % kSettledTokens == 0) mass.settle();
    if (!any_from(floor, logits)) return;
    for (int v = 0; v < 4; ++v) {
      const int64_t left = last.id + 1 - first - v * kLanes;
      const Floats t = load(logits + v * kLanes) / temperature;
      mass.add(t, (t > own) | ((t == own) & first_lanes(std::min<int64_t>(left, kLanes))));
    }
  });
  return mass.total();
}

// What is drawn from a nucleus among the tokens of `kept`, where that is soon beyond doubt. Whoever
// wins among more tokens than a nucleus holds wins there as well if it is one of them; and if it is
// not, neither is any token behind it.
bool draw_from_nucleus(const Row& row, float t_max, Interval kept, float top_p, Winner* winner) {
  constexpr int tries = 4;
  Mass all(t_max);
  *winner = draw_from_all(row, kept, &all, std::max(kept.last.t, t_max - kMassSpan));
  const double doubt = kMassError * all.total();
  for (int i = 0; i < tries; ++i) {
    kept.last = {row.logits[winner->id] / row.temperature, (int32_t)winner->id - 1};
    const double over = mass_down_to(row, t_max, kept.last) - (double)top_p * all.total();
    if (over < -doubt) return true;
    if (over < doubt) return false;
    *winner = draw_from_all(row, kept);
  }
  return false;
}

// Keeps the first `most` candidates in the order of `before`.
void keep_first(size_t most, std::vector<Candidate>* list) {
  if (list->size() <= most) return;
  std::nth_element(list->begin(), list->begin() + most - 1, list->end(), before);
  list->resize(most);
}

// Tokens with t >= lowest, at most the first `most` of them in the order of `before`.
void gather(const Row& row, float lowest, size_t most, std::vector<Candidate>* list) {
  const size_t room = most > SIZE_MAX / 8 ? SIZE_MAX : 4 * most + kShortList;
  const Floats temperature = splat(row.temperature);
  size_t count = 0;
  for_each_stretch(row, [&](int64_t first, const float* logits) {
    for (int v = 0; v < 4; ++v) {
      const int64_t i = first + v * kLanes;
      const Floats t = load(logits + v * kLanes) / temperature;
      if (!any(t >= splat(lowest))) continue;
      if (list->size() < count + kLanes) list->resize(2 * count + kShortList);
      Candidate* next = list->data();
      // Every lane is written, but only a wanted one moves on.
      for (int lane = 0; lane < kLanes; ++lane) {
        next[count] = {t[lane], (int32_t)(i + lane)};
        count += t[lane] >= lowest && i + lane < row.vocabulary;
      }
      if (count < room) continue;
      list->resize(count);
      keep_first(most, list);
      count = most, lowest = (*list)[most - 1].t;
    }
  });
  list->resize(count);
  keep_first(most, list);
}

// Whether the row's coin, which no token's noise depends on, falls below `probability`.
bool coin_falls(const Row& row, float probability) {
  const uint32_t word = word_of(row, 0, kCoinStream, 0);
  return ((double)(word >> 8) + 0.5) * 0x1p-24 < (double)probability;
}

struct Filters {
  int64_t top_k;
  float top_p, min_p, typical_p;
  // Where XTC leaves nothing out, nothing has this share.
  float excluded_share;
};

Winner draw(const Row& row, float peak, const Filters& filters, std::vector<Candidate>* list) {
  const float t_max = peak / row.temperature;
  if (!std::isfinite(t_max) || filters.min_p > 1.0f) return {t_max, first_of(row, t_max)};
  Interval kept;
  if (filters.min_p > 0.0f) kept.last.t = min_p_floor(t_max, filters.min_p);
  const bool top_k = filters.top_k > 0 && filters.top_k < row.vocabulary;
  const bool top_p = filters.top_p < 1.0f;
  const bool late = filters.typical_p < 1.0f || filters.excluded_share <= 1.0f;
  if (!top_k && !top_p && !late) return draw_from_all(row, kept);
  if (!top_k && !late) {
    Winner winner;
    if (draw_from_nucleus(row, t_max, kept, filters.top_p, &winner)) return winner;
  }
  const float lowest = std::max(kept.last.t, t_max - kMassSpan);
  gather(row, lowest, top_k ? (size_t)filters.top_k : SIZE_MAX, list);
  if (top_p) {
    kept.last = nucleus_end(*list, t_max, filters.top_p);
    const auto outside = [&](const Candidate& candidate) { return !kept.holds(candidate); };
    list->erase(std::remove_if(list->begin(), list->end(), outside), list->end());
  }
  if (filters.typical_p < 1.0f) keep_typical(t_max, filters.typical_p, list);
  if (filters.excluded_share <= 1.0f) exclude_top_choices(t_max, filters.excluded_share, list);
  kept.last = *std::max_element(list->begin(), list->end(), before);
  if (late) kept.first = *std::min_element(list->begin(), list->end(), before);
  const float t_top = late ? kept.first.t : t_max;
  return list->size() <= kShortList ? draw_from_list(row, t_top, *list)
                                    : draw_from_all(row, kept);
}

double exp_sum(const Row& row, float peak) {
  double total = 0.0;
  Floats sum{};
  for_each_stretch(row, [&](int64_t first, const float* logits) {
    if (first % 4096 == 0) total += sum_of(sum), sum = Floats{};
    for (int v = 0; v < 4; ++v) sum += exp_of(load(logits + v * kLanes) - splat(peak));
  });
  return total + sum_of(sum);
}

int64_t rank_of(const Row& row, int64_t token) {
  const float own = row.logits[token];
  int64_t ahead = 1;
  for (int64_t i = 0; i < row.vocabulary; ++i) ahead += row.logits[i] > own;
  for (int64_t i = 0; i < token; ++i) ahead += row.logits[i] == own;
  return ahead;
}

// Parallel arrays of the rows' parameters; the last three of filters may be missing, all together.
struct RowParameters {
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p, *typical_p, *xtc_threshold, *xtc_probability;
  const int64_t *seed, *position;
};

// What row r draws; kNoToken where that is nothing.
Winner draw_row(const float* logits, int64_t vocabulary, const RowParameters& all, int64_t r,
                std::vector<Candidate>* list) {
  Row row{logits, vocabulary, all.temperature[r], {}, {}};
  for (int part = 0; part < 2; ++part) {
    row.key[part] = (uint32_t)((uint64_t)all.seed[r] >> (32 * part));
    row.place[part] = (uint32_t)((uint64_t)all.position[r] >> (32 * part));
  }
  const float peak = largest(row);
  if (!std::isfinite(peak)) return {kMinusInfinity, kNoToken};
  if (row.temperature <= 0.0f) return {peak, first_with(row, peak)};
  Filters filters{all.top_k[r], all.top_p[r], all.min_p[r], 1.0f, 2.0f};
  if (all.typical_p) filters.typical_p = all.typical_p[r];
  if (all.xtc_threshold && coin_falls(row, all.xtc_probability[r]))
    filters.excluded_share = all.xtc_threshold[r];
  return draw(row, peak, filters, list);
}

}  // namespace

extern "C" void tandem_sample(const float* logits, int64_t stride, int64_t rows, int64_t vocabulary,
                              const float* temperature, const int32_t* top_k, const float* top_p,
                              const float* min_p, const float* typical_p,
                              const float* xtc_threshold, const float* xtc_probability,
                              const int64_t* seed, const int64_t* position, int64_t* tokens,
                              int64_t threads) {
  const RowParameters all{temperature,     top_k, top_p,   min_p, typical_p, xtc_threshold,
                          xtc_probability, seed,  position};
#pragma omp parallel for schedule(dynamic) num_threads((int)threads) if (rows > 1)
  for (int64_t r = 0; r < rows; ++r) {
    static thread_local std::vector<Candidate> list;
    tokens[r] = draw_row(logits + r * stride, vocabulary, all, r, &list).id;
  }
}

// What each row draws, then what it would draw without that, and so on; the logits of all that are
// drawn become minus infinity.
extern "C" void tandem_sample_candidates(float* logits, int64_t stride, int64_t rows,
                                         int64_t vocabulary, const float* temperature,
                                         const int32_t* top_k, const float* top_p,
                                         const float* min_p, const float* typical_p,
                                         const float* xtc_threshold, const float* xtc_probability,
                                         const int64_t* seed, const int64_t* position,
                                         int64_t candidates, int64_t* tokens, double* scores,
                                         int64_t threads) {
  const RowParameters all{temperature,     top_k, top_p,   min_p, typical_p, xtc_threshold,
                          xtc_probability, seed,  position};
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
  for (int64_t r = 0; r < rows; ++r) {
    static thread_local std::vector<Candidate> list;
    float* row = logits + r * stride;
    for (int64_t k = 0; k < candidates; ++k) {
      const Winner winner = draw_row(row, vocabulary, all, r, &list);
      tokens[r * candidates + k] = winner.id, scores[r * candidates + k] = winner.score;
      if (winner.id != kNoToken) row[winner.id] = kMinusInfinity;
    }
  }
}

extern "C" void tandem_token_logprobs(const float* logits, int64_t stride, int64_t rows,
                                      int64_t vocabulary, const int64_t* tokens, int64_t top_n,
                                      float* logprob, int64_t* rank, int64_t* top_ids,
                                      float* top_logprobs, int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
  for (int64_t r = 0; r < rows; ++r) {
    static thread_local std::vector<Candidate> list;
    const Row row{logits + r * stride, vocabulary, 1.0f, {}, {}};
    const float peak = largest(row);
    if (tokens[r] == kNoToken || !std::isfinite(peak)) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      logprob[r] = nan, rank[r] = 0;
      std::fill_n(top_ids + r * top_n, top_n, 0);
      std::fill_n(top_logprobs + r * top_n, top_n, nan);
      continue;
    }
    const double shift = (double)peak + std::log(exp_sum(row, peak));
    logprob[r] = (float)((double)row.logits[tokens[r]] - shift);
    rank[r] = rank_of(row, tokens[r]);
    if (top_n == 0) continue;
    gather(row, kMinusInfinity, (size_t)top_n, &list);
    std::sort(list.begin(), list.end(), before);
    for (int64_t n = 0; n < top_n; ++n) {
      top_ids[r * top_n + n] = list[n].id;
      top_logprobs[r * top_n + n] = (float)((double)list[n].t - shift);
    }
  }
}
