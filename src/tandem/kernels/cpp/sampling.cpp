// Draws tokens by Gumbel noise from a counter, and scores given tokens; a row is one thread's work.
// Filters keep an interval of (t descending, id ascending), so they reduce to two tokens.
// Noise is bounded: what lies 20.3 below the maximum cannot win, and of the rest only tokens whose
// cheap upper bound reaches the best score so far get their exact score in double.
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

constexpr float kNoiseSpan = 20.3f;
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

bool any(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  int64_t parts[sizeof(Ints) / 8], all = 0;
  std::memcpy(parts, &mask, sizeof mask);
  for (int64_t part : parts) all |= part;
  return all != 0;
#endif
}

// Lanes past the end of the row are minus infinity.
Floats load_logits(const Row& row, int64_t first) {
  if (first + kLanes <= row.vocabulary) return load(row.logits + first);
  float lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    lanes[lane] = first + lane < row.vocabulary ? row.logits[first + lane] : kMinusInfinity;
  return load(lanes);
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
  const auto take = [&](int v, Floats logits) {
    sums[v] += logits;
    peaks[v] = maximum(logits, peaks[v]);
  };
  int64_t i = 0;
  for (; i + 4 * kLanes <= row.vocabulary; i += 4 * kLanes)
    for (int v = 0; v < 4; ++v) take(v, load(row.logits + i + v * kLanes));
  for (int v = 0; i < row.vocabulary; i += kLanes, ++v) take(v, load_logits(row, i));
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

// -log(-log(u)) <= -log(1 - u); the latter is bounded by a chord of log2 in each octave.
Floats noise_bound(Words word) {
  const Floats rest = __builtin_convertvector((Ints)(~word >> 8), Floats) + 0.5f;
  const Floats log2_low = __builtin_convertvector((Ints)rest - 0x3f800000, Floats) * 0x1p-23f;
  return (24.0f - log2_low) * 0.693148f;
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

template <int... Lane>
Words interleave(Words a, Words b, int half, std::integer_sequence<int, Lane...>) {
  const Words low = __builtin_shufflevector(a, b, (Lane % 2 * kLanes + Lane / 2)...);
  const Words high =
      __builtin_shufflevector(a, b, (Lane % 2 * kLanes + kLanes / 2 + Lane / 2)...);
  return half ? high : low;
}

template <int... Lane>
Words interleave_pairs(Words a, Words b, int half, std::integer_sequence<int, Lane...>) {
  const Words low =
      __builtin_shufflevector(a, b, (Lane / 2 % 2 * kLanes + Lane / 4 * 2 + Lane % 2)...);
  const Words high = __builtin_shufflevector(
      a, b, (Lane / 2 % 2 * kLanes + kLanes / 2 + Lane / 4 * 2 + Lane % 2)...);
  return half ? high : low;
}

// The words of 4 * kLanes tokens from `first` on, in token order.
void words_of(const Row& row, int64_t first, Words (&words)[4]) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>{};
  Words quads{};
  for (int lane = 0; lane < kLanes; ++lane) quads[lane] = (uint32_t)(first / 4) + lane;
  Words counter[4] = {quads, Words{} + row.place[0], Words{} + row.place[1],
                      Words{} + kNoiseStream};
  philox(counter, row.key[0], row.key[1]);
  for (int half = 0; half < 2; ++half) {
    const Words ab = interleave(counter[0], counter[1], half, lanes);
    const Words cd = interleave(counter[2], counter[3], half, lanes);
    words[2 * half] = interleave_pairs(ab, cd, 0, lanes);
    words[2 * half + 1] = interleave_pairs(ab, cd, 1, lanes);
  }
}

// The winner among all tokens of an interval, whose largest is about `t_top`.
Winner draw_from_all(const Row& row, float t_top, const Interval& kept) {
  const Floats lowest = splat(std::max(kept.last.t, t_top - kNoiseSpan));
  const Floats highest = splat(kept.first.t);
  const Floats temperature = splat(row.temperature);
  Winner winner;
  for (int64_t first = 0; first < row.vocabulary; first += 4 * kLanes) {
    Floats t[4];
    Ints wanted{};
    for (int v = 0; v < 4; ++v) {
      t[v] = load_logits(row, first + v * kLanes) / temperature;
      wanted |= (t[v] >= lowest) & (t[v] <= highest);
    }
    if (!any(wanted)) continue;
    Words words[4];
    words_of(row, first, words);
    for (int v = 0; v < 4; ++v) {
      const Ints close =
          (t[v] >= lowest) & (t[v] <= highest) &
          (t[v] + noise_bound(words[v]) >= splat(winner.hurdle()));
      if (!any(close)) continue;
      for (int lane = 0; lane < kLanes; ++lane) {
        const Candidate candidate{t[v][lane], (int32_t)(first + v * kLanes + lane)};
        if (close[lane] && kept.holds(candidate))
          winner.offer(candidate.t, words[v][lane], candidate.id);
      }
    }
  }
  return winner;
}

Winner draw_from_list(const Row& row, float t_top, const std::vector<Candidate>& list) {
  Winner winner;
  for (const Candidate& candidate : list) {
    if (candidate.t < t_top - kNoiseSpan) continue;
    uint32_t word[4] = {(uint32_t)candidate.id / 4, row.place[0], row.place[1], kNoiseStream};
    philox(word, row.key[0], row.key[1]);
    winner.offer(candidate.t, word[candidate.id % 4], candidate.id);
  }
  return winner;
}

// Of all mass from `lowest` up, in units of the largest token's, and of what comes before a token.
// In floats: right to a ten-thousandth.
struct Shares {
  double ahead = 0.0, total = 0.0;
};
constexpr double kShareError = 1e-3;

Shares shares_of(const Row& row, float t_max, float lowest, const Candidate& of) {
  constexpr int64_t stretch = 4096;
  const Floats temperature = splat(row.temperature), own = splat(of.t), most = splat(t_max);
  Shares shares;
  for (int64_t i = 0; i < row.vocabulary; i += stretch) {
    Floats total{}, ahead{};
    for (int64_t j = i; j < std::min(i + stretch, row.vocabulary); j += kLanes) {
      const Floats t = load_logits(row, j) / temperature;
      const Floats mass = select(t >= splat(lowest), exp_of(t - most), Floats{});
      total += mass;
      ahead += select((t > own) | ((t == own) & first_lanes(of.id - j)), mass, Floats{});
    }
    shares.total += sum_of(total), shares.ahead += sum_of(ahead);
  }
  return shares;
}

// What is drawn from a nucleus among the tokens of `kept`, where that is soon beyond doubt. Whoever
// wins among more tokens than a nucleus holds wins there as well if it is one of them; and if it is
// not, neither is any token behind it.
bool draw_from_nucleus(const Row& row, float t_max, Interval kept, float top_p, Winner* winner) {
  constexpr int tries = 4;
  const float lowest = std::max(kept.last.t, t_max - kMassSpan);
  for (int i = 0; i < tries; ++i) {
    *winner = draw_from_all(row, t_max, kept);
    const Candidate found{row.logits[winner->id] / row.temperature, (int32_t)winner->id};
    const Shares shares = shares_of(row, t_max, lowest, found);
    const double over = shares.ahead - (double)top_p * shares.total;
    const double doubt = kShareError * shares.total;
    if (over < -doubt) return true;
    if (over < doubt) return false;
    kept.last = {found.t, found.id - 1};
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
  for (int64_t i = 0; i < row.vocabulary; i += kLanes) {
    const Floats t = load_logits(row, i) / temperature;
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
  list->resize(count);
  keep_first(most, list);
}

// Whether the row's coin, which no token's noise depends on, falls below `probability`.
bool coin_falls(const Row& row, float probability) {
  uint32_t word[4] = {0, row.place[0], row.place[1], kCoinStream};
  philox(word, row.key[0], row.key[1]);
  return ((double)(word[0] >> 8) + 0.5) * 0x1p-24 < (double)probability;
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
  if (!top_k && !top_p && !late) return draw_from_all(row, t_max, kept);
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
                                    : draw_from_all(row, t_top, kept);
}

double exp_sum(const Row& row, float peak) {
  constexpr int64_t stretch = 4096;
  double total = 0.0;
  for (int64_t i = 0; i < row.vocabulary; i += stretch) {
    Floats sums{};
    for (int64_t j = i; j < std::min(i + stretch, row.vocabulary); j += kLanes)
      sums += exp_of(load_logits(row, j) - splat(peak));
    total += sum_of(sums);
  }
  return total;
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
