// The parts of a token's blocks become its output. Eight columns of a head are a unit; blocks share the units.
#pragma once

#include "arguments.h"
#include "memory.h"
#include "score.h"
#include "shared.h"

namespace nvfp4 {

constexpr int kUnitColumns = 8;
constexpr int kUnits = kHeads * kLatent / kUnitColumns;

// `parts.weight(rank, head)` and `parts.values(rank, head, column, to)` read what block `rank` has left.
template <typename Parts>
NVFP4_FN void merge_unit(const Arguments& a, int token, int first_head, int ranks, int unit, const Parts& parts) {
  const int head = unit / (kLatent / kUnitColumns), column = unit % (kLatent / kUnitColumns) * kUnitColumns;
  if (first_head + head >= a.heads) return;
  float best = -INFINITY;
  for (int rank = 0; rank < ranks; ++rank) best = fmaxf(best, parts.weight(rank, head).best);
  const float base = as_base(best);
  float total = 0.0f, sums[kUnitColumns] = {};
  for (int rank = 0; rank < ranks; ++rank) {
    const Weight weight = parts.weight(rank, head);
    const float share = power_of_two(weight.best - base);
    float values[kUnitColumns];
    parts.values(rank, head, column, values);
    total += weight.total * share;
    NVFP4_UNROLL
    for (int i = 0; i < kUnitColumns; ++i) sums[i] += values[i] * share;
  }
  const float inverse = total == 0.0f ? 0.0f : a.out_scale / total;
  const int64_t row = static_cast<int64_t>(token) * a.heads + first_head + head;
  Words<kUnitColumns / 2> codes;
  NVFP4_UNROLL
  for (int i = 0; i < kUnitColumns / 2; ++i) {
    codes.word[i] = bfloat16_code(sums[2 * i] * inverse) | bfloat16_code(sums[2 * i + 1] * inverse) << 16;
  }
  store_as(a.out + row * kLatent + column, codes);
  if (a.lse != nullptr && column == 0) {
    a.lse[row] = total == 0.0f ? -INFINITY : (best + log2f(total)) * 0.693147180559945309f;
  }
}

}  // namespace nvfp4
