// A whole step in one call, from the slots' state to drawn tokens, or to logits where more than
// temperature, top_k, top_p and min_p says what is drawn: what engine/engine.py does for any plan,
// operation by operation. Nothing is computed here but where each operation reads and writes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "layers.h"
#include "slots.h"

namespace {

// What is before the layers and behind them. `table` is null where the head's rows embed, too.
struct Ends {
  const void* table;
  int64_t table_dtype;
  double embedding_scale;
  const float* final_norm;
  Weight head;
};

// Row i computes tokens starts[i] .. starts[i] + counts[i] of the sequence in slots[i], and draws
// behind each of the last draws[i] of them.
struct Rows {
  int64_t count;
  const int32_t *slots, *starts, *counts, *draws;
};

// The tokens of all rows as layers take them.
struct Batch {
  std::vector<int64_t> ids, positions, places, wanted;
  std::vector<int32_t> query_start, context, table;
  int64_t blocks = 0;
  SlotDraws draws;

  void lay_out(const Slots& slots, const Rows& rows) {
    ids.clear(), positions.clear(), places.clear(), wanted.clear(), draws.clear();
    query_start.assign(1, 0), context.clear();
    int64_t longest = 0;
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t slot = rows.slots[i], end = rows.starts[i] + rows.counts[i];
      const int32_t* table_row = slots.table + slot * slots.table_stride;
      for (int64_t at = rows.starts[i]; at < end; ++at) {
        if (at >= end - rows.draws[i]) {
          wanted.push_back((int64_t)ids.size());
          draws.add(slots, slot, at + 1);
        }
        ids.push_back(slots.tokens_of(slot)[at]);
        positions.push_back(at);
        places.push_back(table_row[at / slots.block_size] * slots.block_size +
                         at % slots.block_size);
      }
      query_start.push_back((int32_t)ids.size());
      context.push_back((int32_t)end);
      longest = std::max(longest, end);
    }
    blocks = (longest + slots.block_size - 1) / slots.block_size;
    table.resize(rows.count * blocks);
    for (int64_t i = 0; i < rows.count; ++i)
      std::memcpy(table.data() + i * blocks, slots.table + rows.slots[i] * slots.table_stride,
                  blocks * sizeof(int32_t));
  }

  Step step(const Pool& pool, int64_t tile_tokens, int64_t threads) const {
    return {(int64_t)ids.size(), positions.data(),       places.data(),
            query_start.data(),  context.data(),         table.data(),
            blocks,              (int64_t)context.size(), nullptr,
            wanted.data(),       (int64_t)wanted.size(),  pool,
            tile_tokens,         threads};
  }
};

void embed(const Model& model, const Ends& ends, const std::vector<int64_t>& ids, float* residual) {
  const int64_t count = (int64_t)ids.size();
  if (ends.table)
    tandem_look_up(ids.data(), count, ends.table, ends.table_dtype, model.hidden, residual);
  else
    tandem_embed(ids.data(), count, &ends.head, residual);
  if (ends.embedding_scale != 1.0)
    for (int64_t i = 0; i < count * model.hidden; ++i) residual[i] *= (float)ends.embedding_scale;
}

}  // namespace

extern "C" int64_t tandem_ends_bytes() { return sizeof(Ends); }
extern "C" int64_t tandem_slots_bytes() { return sizeof(Slots); }

// `residual`, `update`, `x` and `wide` are what tandem_layers takes, for as many rows as there are
// tokens, and `logits` has room for those of all draws. Gives the hidden states that these were from,
// and their tokens, which now follow what is known of their sequences; without `tokens` nothing is
// drawn.
extern "C" void tandem_step(const void* of_model, const void* of_layers, int64_t layers,
                            const void* of_ends, const void* of_slots, const void* of_pool,
                            int64_t tile_tokens, const int32_t* row_slots, const int32_t* starts,
                            const int32_t* counts, const int32_t* row_draws, int64_t rows,
                            float* residual, float* update, float* x, float* wide, float* hidden,
                            float* logits, int64_t* tokens, int64_t threads) {
  static thread_local Batch batch;
  const Model& model = *(const Model*)of_model;
  const Ends& ends = *(const Ends*)of_ends;
  const Slots& slots = *(const Slots*)of_slots;
  batch.lay_out(slots, Rows{rows, row_slots, starts, counts, row_draws});
  const Step step = batch.step(*(const Pool*)of_pool, tile_tokens, threads);
  embed(model, ends, batch.ids, residual);
  tandem_layers(of_model, of_layers, layers, &step, residual, update, x, wide, hidden);
  const int64_t drawn = batch.draws.count(), vocabulary = ends.head.out_features;
  tandem_rms_norm(hidden, model.hidden, 0, drawn, 1, model.hidden, nullptr, ends.final_norm,
                  (float)model.norm_eps, (float)model.norm_offset, x, threads);
  multiply(ends.head, x, drawn, logits, threads);
  if (!tokens) return;
  batch.draws.sample(logits, vocabulary, tokens, threads);
  for (int64_t r = 0; r < drawn; ++r)
    // Where the numbers gave out, any token will do: nobody is told of it.
    slots.tokens_of(batch.draws.slots[r])[batch.draws.positions[r]] =
        (int32_t)std::max<int64_t>(tokens[r], 0);
}
