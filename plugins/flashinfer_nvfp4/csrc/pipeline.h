// A thread block has a part of one token's keys and 16 of its heads. Three groups of warps work at the same time on
// three stages: some unpack rows of one, four score the one before, four add up the values of the one before that.
// A slot goes round: unpacking fills it, scoring adds the weights, adding up drains it.
#pragma once

#include "parts.h"
#include "query.h"
#include "rows.h"
#include "unpack.h"
#include "values.h"

namespace nvfp4 {

constexpr int kBlockBarrier = 0, kScoreBarrier = 1, kValueBarrier = 2, kBarriers = 3;

// Which part of the launch a block has.
struct Place {
  int token, group, groups, rank, ctas;
};

template <int kKeys>
NVFP4_FN void init_barriers(Shared<kKeys>& shared) {
  NVFP4_UNROLL
  for (int slot = 0; slot < kSlots; ++slot) {
    barrier_init(&shared.filled[slot], Shared<kKeys>::kUnpackWarps);
    barrier_init(&shared.scored[slot], kScoreWarps);
    barrier_init(&shared.drained[slot], kValueWarps);
  }
}

template <int kKeys>
NVFP4_FN void unpack_stages(RowCopies<kKeys>& rows, int warp, int stages, Shared<kKeys>& shared) {
  for (int stage = 0; stage < stages; ++stage) {
    const int slot = stage % kSlots;
    rows.start(stage + RowCopies<kKeys>::kAhead);
    rows.wait();
    barrier_wait(&shared.drained[slot], stage / kSlots % 2 ^ 1);
    unpack_rows(warp, shared.raw[stage % kRawSlots], shared.slots[slot]);
    barrier_arrive(&shared.filled[slot]);
  }
}

template <int kKeys>
NVFP4_FN void score_stages(Scores<kKeys>& scores, const Arguments& a, const int32_t* indices, int warp, int stages,
                           Shared<kKeys>& shared) {
  for (int stage = 0; stage < stages; ++stage) {
    const int slot = stage % kSlots;
    // Two sets of partial scores: who writes one has passed the barrier of the other, so it is no longer read.
    auto& partial = shared.partial[stage % 2];
    Lanes<bool> valid;
    NVFP4_EACH_LANE(lane) { valid[lane] = is_row(a, load_index(indices + stage * kKeys + lane % kKeys)); }
    barrier_wait(&shared.filled[slot], stage / kSlots % 2);
    scores.multiply_quarter(warp, shared.slots[slot], partial[warp]);
    group_sync(kScoreBarrier, 32 * kScoreWarps);
    scores.weigh(warp, partial, valid, shared.slots[slot]);
    barrier_arrive(&shared.scored[slot]);
  }
  scores.finish(warp, shared.weights);
}

template <int kKeys>
NVFP4_FN void add_values(int warp, int stages, Shared<kKeys>& shared) {
  Values<kKeys> values;
  values.begin();
  for (int stage = 0; stage < stages; ++stage) {
    const int slot = stage % kSlots;
    barrier_wait(&shared.scored[slot], stage / kSlots % 2);
    values.accumulate(warp, shared.slots[slot]);
    barrier_arrive(&shared.drained[slot]);
  }
  group_sync(kValueBarrier, 32 * kValueWarps);  // the part takes the place of slots that the others may still read
  values.finish(warp, shared.part);
}

template <int kKeys, typename Parts>
NVFP4_FN void merge_units(const Arguments& a, const Place& place, int warp, const Parts& parts) {
  constexpr int kThreads = 32 * Shared<kKeys>::kWarps;
  NVFP4_EACH_LANE(lane) {
    for (int unit = place.rank * kThreads + 32 * warp + lane; unit < kUnits; unit += place.ctas * kThreads) {
      merge_unit(a, place.token, place.group * kHeads, place.ctas, unit, parts);
    }
  }
}

// Everything that warp `warp` of a block does. Without clusters, several blocks of a token leave their parts in memory.
template <int kKeys, typename Query, bool kClusters>
NVFP4_FN void run_warp(const Arguments& a, const Place& place, int warp, Shared<kKeys>& shared) {
  constexpr int kUnpackWarps = Shared<kKeys>::kUnpackWarps, kThreads = 32 * Shared<kKeys>::kWarps;
  const int all = a.topk / kKeys, first = place.rank * all / place.ctas;
  const int stages = (place.rank + 1) * all / place.ctas - first;
  const int32_t* indices = a.indices + place.token * a.index_stride + first * kKeys;
  if (warp == 0) {
    NVFP4_EACH_LANE(lane) {
      if (lane == 0) init_barriers(shared);
    }
  }
  if (warp < kUnpackWarps) {
    RowCopies<kKeys> rows(a, indices, warp, stages, shared);  // on their way while the others load the query
    group_sync(kBlockBarrier, kThreads);
    group_sync(kBlockBarrier, kThreads);
    unpack_stages(rows, warp, stages, shared);
  } else {
    for (int head = warp - kUnpackWarps; head < kHeads; head += kScoreWarps + kValueWarps) {
      load_query_head<Query>(a, place.token, place.group * kHeads, head, shared.query(), shared.factor);
    }
    group_sync(kBlockBarrier, kThreads);
    if (warp < kUnpackWarps + kScoreWarps) {
      Scores<kKeys> scores;
      scores.begin(warp - kUnpackWarps, shared);
      group_sync(kBlockBarrier, kThreads);
      score_stages(scores, a, indices, warp - kUnpackWarps, stages, shared);
    } else {
      group_sync(kBlockBarrier, kThreads);
      add_values(warp - kUnpackWarps - kScoreWarps, stages, shared);
    }
  }
  if constexpr (kClusters) {
    cluster_sync();
    merge_units<kKeys>(a, place, warp, ClusterParts<kKeys>{shared});
    cluster_sync();  // a block's memory must outlive the reads of the others
  } else {
    group_sync(kBlockBarrier, kThreads);
    if (place.ctas == 1) {
      merge_units<kKeys>(a, place, warp, OwnPart<kKeys>{shared});
    } else {
      StoredPart& part = stored_parts(a, place.token, place.group, place.groups, place.ctas)[place.rank];
      NVFP4_EACH_LANE(lane) { store_part(shared, 32 * warp + lane, kThreads, part); }
    }
  }
}

}  // namespace nvfp4
