// Where the end of a sequence stood before: the Z function of its tokens, read backwards.
#include <algorithm>
#include <cstdint>

extern "C" void tandem_repeated_suffixes(const int32_t* tokens, int64_t count, int32_t* lengths) {
  if (!count) return;
  // Place p backwards is the token before place count - p, whose length it is.
  const auto token = [&](int64_t place) { return tokens[count - 1 - place]; };
  const auto length = [&](int64_t place) -> int32_t& { return lengths[count - place]; };
  lengths[0] = 0;
  // What is known to equal the beginning lies in [left, right).
  int64_t left = 0, right = 0;
  for (int64_t place = 1; place < count; ++place) {
    int64_t matched =
        place < right ? std::min<int64_t>(length(place - left), right - place) : 0;
    if (place + matched >= right) {
      while (place + matched < count && token(matched) == token(place + matched)) ++matched;
      left = place, right = place + matched;
    }
    length(place) = (int32_t)matched;
  }
}
