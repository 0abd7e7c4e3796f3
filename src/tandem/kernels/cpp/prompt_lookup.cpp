// Drafts out of what a sequence said before: what followed the newest earlier place where its
// longest end stands.
#include <algorithm>

#include "operations.h"

namespace {

// A sequence and the guesses behind it, as one row of tokens.
struct Said {
  const int32_t* known;
  int64_t known_tokens;
  const int64_t* guesses;

  int64_t operator[](int64_t place) const {
    return place < known_tokens ? known[place] : guesses[place - known_tokens];
  }
};

// Of the first `count` tokens: the place behind the best earlier one, or 0.
int64_t find_end(const Said& said, int64_t count, int64_t least, int64_t most) {
  int64_t best = 0, longest = least - 1;
  const int64_t last = said[count - 1];
  for (int64_t place = count - 2; place >= longest && longest < most; --place) {
    if (said[place] != last) continue;
    int64_t same = 1;
    while (same < most && same <= place && said[place - same] == said[count - 1 - same]) ++same;
    if (same > longest) longest = same, best = place + 1;
  }
  return best;
}

}  // namespace

extern "C" void tandem_look_up_prompt(const int32_t* tokens, int64_t stride, const int32_t* slots,
                                      const int32_t* ends, int64_t rows, int64_t least,
                                      int64_t most, int64_t* guesses, int64_t places,
                                      const bool* wanted) {
  for (int64_t row = 0; row < rows; ++row) {
    int64_t* of_row = guesses + row * places;
    const Said said{tokens + slots[row] * stride, ends[row], of_row};
    int64_t follows = 0;
    for (int64_t place = 0; place < places; ++place) {
      const int64_t count = ends[row] + place;
      if (!wanted[row * places + place]) {
        follows = 0;
      } else {
        follows = follows ? follows + 1 : find_end(said, count, least, most);
        if (follows) of_row[place] = said[follows];
      }
      if (of_row[place] < 0) {
        std::fill(of_row + place, of_row + places, -1);
        break;
      }
    }
  }
}
