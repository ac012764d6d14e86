// Where the blocks of a token find one another's parts: in the cluster's shared memory, in their own where a token has
// one block, or in global memory where the architecture has no clusters.
#pragma once

#include <cstddef>

#include "merge.h"
#include "sync.h"

namespace nvfp4 {

template <int kKeys>
struct ClusterParts {
  const Shared<kKeys>& shared;

  NVFP4_FN Weight weight(int rank, int head) const {
    float both[2];
    load_from_block(&shared, rank, distance(&shared.weights[head]), both);
    return {both[0], both[1]};
  }
  NVFP4_FN void values(int rank, int head, int column, float (&to)[kUnitColumns]) const {
    load_from_block(&shared, rank, distance(&shared.part.values[head][column]), to);
  }
  NVFP4_FN uint32_t distance(const void* inside) const {
    return static_cast<uint32_t>(static_cast<const char*>(inside) - reinterpret_cast<const char*>(&shared));
  }
};

template <int kKeys>
struct OwnPart {
  const Shared<kKeys>& shared;

  NVFP4_FN Weight weight(int, int head) const { return shared.weights[head]; }
  NVFP4_FN void values(int, int head, int column, float (&to)[kUnitColumns]) const {
    NVFP4_UNROLL
    for (int i = 0; i < kUnitColumns; ++i) to[i] = shared.part.values[head][column + i];
  }
};

struct alignas(16) StoredPart {
  float values[kHeads][kLatent];
  Weight weights[kHeads];
};

struct StoredParts {
  const StoredPart* first;

  NVFP4_FN Weight weight(int rank, int head) const { return first[rank].weights[head]; }
  NVFP4_FN void values(int rank, int head, int column, float (&to)[kUnitColumns]) const {
    NVFP4_UNROLL
    for (int i = 0; i < kUnitColumns; ++i) to[i] = first[rank].values[head][column + i];
  }
};

// The parts of a token and 16 heads lie one behind the other.
NVFP4_FN StoredPart* stored_parts(const Arguments& a, int token, int group, int groups, int ctas) {
  return static_cast<StoredPart*>(a.workspace) + (static_cast<int64_t>(token) * groups + group) * ctas;
}

// What `thread` of `threads` stores of the block's part.
template <int kKeys>
NVFP4_FN void store_part(const Shared<kKeys>& shared, int thread, int threads, StoredPart& to) {
  for (int i = thread; i < kHeads * kLatent / 4; i += threads) {
    const int head = i / (kLatent / 4), column = i % (kLatent / 4) * 4;
    store_as(&to.values[head][column], load_as<Words<4>>(&shared.part.values[head][column]));
  }
  if (thread < kHeads) to.weights[thread] = shared.weights[thread];
}

}  // namespace nvfp4
