// Where the blocks of a token find one another's parts: in the cluster's shared memory, in their own where a token has
// one block, or in global memory where the architecture has no clusters.
#pragma once

#include "merge.h"
#include "sync.cuh"

namespace nvfp4 {

template <int kKeys>
struct ClusterParts {
  const Shared<kKeys>& shared;

  __device__ Weight weight(int rank, int head) const {
    const float2 both = cluster_load2(cluster_address(&shared.weights[head], rank));
    return {both.x, both.y};
  }
  __device__ void values(int rank, int head, int column, float (&to)[kUnitColumns]) const {
    const uint32_t address = cluster_address(&shared.part.values[head][column], rank);
    const float4 low = cluster_load4(address), high = cluster_load4(address + sizeof low);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
};

template <int kKeys>
struct OwnPart {
  const Shared<kKeys>& shared;

  __device__ Weight weight(int, int head) const { return shared.weights[head]; }
  __device__ void values(int, int head, int column, float (&to)[kUnitColumns]) const {
    for (int i = 0; i < kUnitColumns; ++i) to[i] = shared.part.values[head][column + i];
  }
};

struct alignas(16) StoredPart {
  float values[kHeads][kLatent];
  Weight weights[kHeads];
};

struct StoredParts {
  const StoredPart* first;

  __device__ Weight weight(int rank, int head) const { return first[rank].weights[head]; }
  __device__ void values(int rank, int head, int column, float (&to)[kUnitColumns]) const {
    const auto found = load_as<Words<4>>(&first[rank].values[head][column]);
    const auto next = load_as<Words<4>>(&first[rank].values[head][column + 4]);
    NVFP4_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = float_of(found.word[i]), to[4 + i] = float_of(next.word[i]);
  }
};

// The parts of a token and 16 heads lie one behind the other.
__device__ __forceinline__ StoredPart* stored_parts(const Arguments& a, int token, int group, int groups, int ctas) {
  return static_cast<StoredPart*>(a.workspace) + (static_cast<int64_t>(token) * groups + group) * ctas;
}

template <int kKeys>
__device__ __forceinline__ void store_part(const Shared<kKeys>& shared, StoredPart& to) {
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kLatent / 4; i += static_cast<int>(blockDim.x)) {
    const int head = i / (kLatent / 4), column = i % (kLatent / 4) * 4;
    store_as(&to.values[head][column], load_as<Words<4>>(&shared.part.values[head][column]));
  }
  if (threadIdx.x < kHeads) to.weights[threadIdx.x] = shared.weights[threadIdx.x];
}

}  // namespace nvfp4
