// One thread block for a part of one token's keys and 16 of its heads. Three groups of warps work at the same time on
// three stages: some unpack rows of one, four score the one before, four add up the values of the one before that.
// A slot goes round: unpacking fills it, scoring adds the weights, adding up drains it.
#pragma once

#include "parts.cuh"
#include "query.h"
#include "rows.cuh"
#include "unpack.h"
#include "values.h"

namespace nvfp4 {

constexpr int kBlockBarrier = 0, kScoreBarrier = 1, kValueBarrier = 2;

template <int kKeys>
__device__ __forceinline__ void unpack_stages(RowCopies<kKeys>& rows, int warp, int stages, Shared<kKeys>& shared) {
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
__device__ __forceinline__ void score_stages(Scores<kKeys>& scores, const Arguments& a, const int32_t* indices, int warp,
                                             int stages, Shared<kKeys>& shared) {
  for (int stage = 0; stage < stages; ++stage) {
    const int slot = stage % kSlots;
    // Two sets of partial scores: who writes one has passed the barrier of the other, so it is no longer read.
    auto& partial = shared.partial[stage % 2];
    const int32_t id = __ldg(indices + stage * kKeys + threadIdx.x % 32 % kKeys);
    barrier_wait(&shared.filled[slot], stage / kSlots % 2);
    scores.multiply_quarter(warp, shared.slots[slot], partial[warp]);
    group_sync(kScoreBarrier, 32 * kScoreWarps);
    scores.weigh(warp, partial, Lanes<bool>{id >= 0 && id < a.rows}, shared.slots[slot]);
    barrier_arrive(&shared.scored[slot]);
  }
  scores.finish(warp, shared.weights);
}

template <int kKeys>
__device__ __forceinline__ void add_values(int warp, int stages, Shared<kKeys>& shared) {
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

// Grid: blocks of a token side by side in x, groups of 16 heads in y. Without clusters, several blocks of a token leave
// their parts to merge_kernel.
template <int kKeys, typename Query, bool kClusters>
__global__ void __launch_bounds__(32 * Shared<kKeys>::kWarps, 1) decode_kernel(const __grid_constant__ Arguments a,
                                                                              int ctas) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kKeys>*>(memory);
  constexpr int kUnpackWarps = Shared<kKeys>::kUnpackWarps, kThreads = 32 * Shared<kKeys>::kWarps;
  const int token = static_cast<int>(blockIdx.x) / ctas, rank = static_cast<int>(blockIdx.x) % ctas;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int all = a.topk / kKeys, first = rank * all / ctas, stages = (rank + 1) * all / ctas - first;
  const int32_t* indices = a.indices + token * a.index_stride + first * kKeys;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      barrier_init(&shared.filled[slot], kUnpackWarps);
      barrier_init(&shared.scored[slot], kScoreWarps);
      barrier_init(&shared.drained[slot], kValueWarps);
    }
  }
  const auto load_query = [&](int first_warp, int warps) {
    for (int head = warp - first_warp; head < kHeads; head += warps) {
      load_query_head<Query>(a, token, first_head, head, shared.query(), shared.factor);
    }
  };
  if (warp < kUnpackWarps) {
    RowCopies<kKeys> rows(a, indices, warp, stages, shared);  // on their way while the others load the query
    group_sync(kBlockBarrier, kThreads);
    group_sync(kBlockBarrier, kThreads);
    unpack_stages(rows, warp, stages, shared);
  } else if (warp < kUnpackWarps + kScoreWarps) {
    load_query(kUnpackWarps, kScoreWarps + kValueWarps);
    group_sync(kBlockBarrier, kThreads);
    Scores<kKeys> scores;
    scores.begin(warp - kUnpackWarps, shared);
    group_sync(kBlockBarrier, kThreads);
    score_stages(scores, a, indices, warp - kUnpackWarps, stages, shared);
  } else {
    load_query(kUnpackWarps, kScoreWarps + kValueWarps);
    group_sync(kBlockBarrier, kThreads);
    group_sync(kBlockBarrier, kThreads);
    add_values(warp - kUnpackWarps - kScoreWarps, stages, shared);
  }

  if constexpr (kClusters) {
    __syncwarp();
    cluster_sync();
    const ClusterParts<kKeys> parts{shared};
    for (int unit = rank * kThreads + static_cast<int>(threadIdx.x); unit < kUnits; unit += ctas * kThreads) {
      merge_unit(a, token, first_head, ctas, unit, parts);
    }
    __syncwarp();
    cluster_sync();  // a block's memory must outlive the reads of the others
  } else {
    __syncthreads();
    if (ctas > 1) {
      const int groups = static_cast<int>(gridDim.y), group = static_cast<int>(blockIdx.y);
      store_part(shared, stored_parts(a, token, group, groups, ctas)[rank]);
      return;
    }
    const OwnPart<kKeys> parts{shared};
    for (int unit = static_cast<int>(threadIdx.x); unit < kUnits; unit += kThreads) {
      merge_unit(a, token, first_head, 1, unit, parts);
    }
  }
}

// One token and 16 heads by each block; grid as above, but for one block a token.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ Arguments a, int ctas) {
  const int token = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y);
  const StoredParts parts{stored_parts(a, token, group, static_cast<int>(gridDim.y), ctas)};
  for (int unit = static_cast<int>(threadIdx.x); unit < kUnits; unit += kThreads) {
    merge_unit(a, token, group * kHeads, ctas, unit, parts);
  }
}

}  // namespace nvfp4
