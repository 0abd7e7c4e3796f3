// What the engine remembers of its sequences, a row or a number for each slot (engine/slots.py), and
// the draws of some of them.
#pragma once

#include <vector>

#include "operations.h"

struct Slots {
  int32_t* tokens;
  int64_t tokens_stride;
  const int32_t* table;
  int64_t table_stride;
  int64_t block_size;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seed;

  int32_t* tokens_of(int64_t slot) const { return tokens + slot * tokens_stride; }
};

// Parameters and places of draws, parallel to rows of logits.
class SlotDraws {
 public:
  void clear() {
    temperature_.clear(), top_k_.clear(), top_p_.clear(), min_p_.clear(), seed_.clear();
    positions.clear(), slots.clear();
  }
  void add(const Slots& of, int64_t slot, int64_t position) {
    temperature_.push_back(of.temperature[slot]);
    top_k_.push_back(of.top_k[slot]);
    top_p_.push_back(of.top_p[slot]);
    min_p_.push_back(of.min_p[slot]);
    seed_.push_back(of.seed[slot]);
    positions.push_back(position), slots.push_back(slot);
  }
  int64_t count() const { return (int64_t)slots.size(); }

  void sample(const float* logits, int64_t vocabulary, int64_t* tokens, int64_t threads) const {
    tandem_sample(logits, vocabulary, count(), vocabulary, temperature_.data(), top_k_.data(),
                  top_p_.data(), min_p_.data(), nullptr, nullptr, nullptr, seed_.data(),
                  positions.data(), tokens, threads);
  }

  std::vector<int64_t> positions, slots;

 private:
  std::vector<float> temperature_, top_p_, min_p_;
  std::vector<int32_t> top_k_;
  std::vector<int64_t> seed_;
};
