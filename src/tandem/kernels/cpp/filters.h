// Which tokens of a row filters keep: intervals of the order (t descending, id ascending).
// Masses are integers, so their sums do not depend on the order in which they are added.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace tandem {

constexpr float kMassSpan = 27.8f;  // exp(-27.8) < 2^-40: no mass left.
constexpr double kMassUnit = 0x1p40;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kBuckets = 2048;
constexpr double kBucketsANat = 64.0;

struct Candidate {
  float t;
  int32_t id;
};

inline bool before(const Candidate& a, const Candidate& b) {
  return a.t > b.t || (a.t == b.t && a.id < b.id);
}

// From `first` to `last`, both included; at first everything.
struct Interval {
  Candidate first{-kMinusInfinity, -1};
  Candidate last{kMinusInfinity, std::numeric_limits<int32_t>::max()};

  bool holds(const Candidate& each) const { return !before(each, first) && !before(last, each); }
};

// exp(x) * 2^40 rounded down, for -28 < x <= 0, in double; plain arithmetic so that it vectorises.
inline int64_t mass_of(double x) {
  const double shifter = 0x1.8p52;
  const double shifted = x * 1.4426950408889634 + shifter, whole = shifted - shifter;
  const double r = (x - whole * 0x1.62e42fefa3800p-1) - whole * 0x1.ef35793c76730p-45;
  double e = 1.0 / 479001600;
  e = e * r + 1.0 / 39916800;
  e = e * r + 1.0 / 3628800;
  e = e * r + 1.0 / 362880;
  e = e * r + 1.0 / 40320;
  e = e * r + 1.0 / 5040;
  e = e * r + 1.0 / 720;
  e = e * r + 1.0 / 120;
  e = e * r + 1.0 / 24;
  e = e * r + 1.0 / 6;
  e = e * r + 0.5;
  e = e * r + 1.0;
  e = e * r + 1.0;
  int64_t bits, exponent;
  std::memcpy(&bits, &e, sizeof bits);
  std::memcpy(&exponent, &shifted, sizeof exponent);
  bits += (int64_t)((uint64_t)exponent << 52);
  std::memcpy(&e, &bits, sizeof e);
  return (int64_t)(e * kMassUnit);
}

inline double below(float t_max, const Candidate& candidate) {
  return (double)t_max - (double)candidate.t;
}

inline int64_t mass_below(float t_max, const Candidate& candidate) {
  return mass_of(-below(t_max, candidate));
}

// Calls take(candidate, its distance below the maximum, its mass) for each of the list. The masses
// are computed a stretch at a time, which vectorises.
template <class Take>
void for_each_mass(const std::vector<Candidate>& list, float t_max, Take take) {
  constexpr int64_t stretch = 64;
  const int64_t count = (int64_t)list.size();
  double distance[stretch];
  int64_t mass[stretch];
  for (int64_t i = 0; i < count; i += stretch) {
    const int64_t some = std::min(stretch, count - i);
    for (int64_t j = 0; j < stretch; ++j) distance[j] = j < some ? below(t_max, list[i + j]) : 0.0;
    for (int64_t j = 0; j < stretch; ++j) mass[j] = mass_of(-distance[j]);
    for (int64_t j = 0; j < some; ++j) take(list[i + j], distance[j], mass[j]);
  }
}

inline int64_t bucket_of(double measure) {
  return (int64_t)std::min(measure * kBucketsANat, (double)(kBuckets - 1));
}

// The last candidate that is needed for `share` of all mass, of those in order of a measure from 0
// up, and of equal ones in the order of `before`. Buckets of the measure narrow it down, and only
// the bucket that holds it is sorted. `measure` takes the distance below the maximum.
template <class Measure>
Candidate last_needed(const std::vector<Candidate>& list, float t_max, double share,
                      Measure measure) {
  std::vector<int64_t> bucket_mass(kBuckets, 0);
  for_each_mass(list, t_max, [&](const Candidate&, double distance, int64_t mass) {
    bucket_mass[bucket_of(measure(distance))] += mass;
  });
  int64_t total = 0, ahead = 0, bucket = 0, reached = 0;
  for (int64_t mass : bucket_mass) total += mass;
  const double wanted = share * (double)total;
  for (int64_t b = 0; b < kBuckets; ++b) {
    if (!bucket_mass[b]) continue;
    if (reached && (double)reached >= wanted) break;
    bucket = b, ahead = reached, reached += bucket_mass[b];
  }
  std::vector<std::pair<double, Candidate>> members;
  for (const Candidate& candidate : list) {
    const double measured = measure(below(t_max, candidate));
    if (bucket_of(measured) == bucket && mass_below(t_max, candidate))
      members.push_back({measured, candidate});
  }
  std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
    return a.first < b.first || (a.first == b.first && before(a.second, b.second));
  });
  Candidate last = members.front().second;
  for (const auto& [_, candidate] : members) {
    if ((double)ahead >= wanted) break;
    last = candidate;
    ahead += mass_below(t_max, candidate);
  }
  return last;
}

// The last token of the nucleus.
inline Candidate nucleus_end(const std::vector<Candidate>& list, float t_max, double top_p) {
  return last_needed(list, t_max, top_p, [](double distance) { return distance; });
}

// Locally typical sampling (Meister et al., TACL 2023) of a list that holds all with some mass.
inline void keep_typical(float t_max, double typical_p, std::vector<Candidate>* list) {
  int64_t total = 0, weighted = 0;
  for_each_mass(*list, t_max, [&](const Candidate&, double distance, int64_t mass) {
    total += mass;
    weighted += (int64_t)((double)mass * distance);
  });
  const double mean = (double)weighted / (double)total;
  const auto surprise = [mean](double distance) { return std::fabs(distance - mean); };
  const double farthest =
      surprise(below(t_max, last_needed(*list, t_max, typical_p, surprise)));
  const auto outside = [&](const Candidate& candidate) {
    return surprise(below(t_max, candidate)) > farthest || !mass_below(t_max, candidate);
  };
  list->erase(std::remove_if(list->begin(), list->end(), outside), list->end());
}

// XTC: of the tokens with at least this share of the mass only the least likely stays, if there are
// two or more.
inline void exclude_top_choices(float t_max, double share, std::vector<Candidate>* list) {
  int64_t total = 0, likely = 0;
  for_each_mass(*list, t_max, [&](const Candidate&, double, int64_t mass) { total += mass; });
  const double least = share * (double)total;
  Interval kept;
  for_each_mass(*list, t_max, [&](const Candidate& candidate, double, int64_t mass) {
    if (!mass || (double)mass < least) return;
    if (!likely++ || before(kept.first, candidate)) kept.first = candidate;
  });
  if (likely < 2) return;
  const auto outside = [&](const Candidate& candidate) {
    return !kept.holds(candidate) || !mass_below(t_max, candidate);
  };
  list->erase(std::remove_if(list->begin(), list->end(), outside), list->end());
}

// The smallest float whose distance to the maximum is within log(min_p).
inline float min_p_floor(float t_max, float min_p) {
  const double span = std::log((double)min_p);
  const auto kept = [&](float t) { return (double)t - (double)t_max >= span; };
  float t = (float)((double)t_max + span);
  while (kept(t)) t = std::nextafter(t, kMinusInfinity);
  while (!kept(t)) t = std::nextafter(t, -kMinusInfinity);
  return t;
}

}  // namespace tandem
