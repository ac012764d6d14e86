// The tile program as kernels.
#pragma once

#include "pipeline.h"

namespace nvfp4 {

// Grid: blocks of a token side by side in x, groups of 16 heads in y.
template <int kKeys, typename Query, bool kClusters>
__global__ void __launch_bounds__(32 * Shared<kKeys>::kWarps, 1) decode_kernel(const __grid_constant__ Arguments a,
                                                                              int ctas) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Place place{static_cast<int>(blockIdx.x) / ctas, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y),
                    static_cast<int>(blockIdx.x) % ctas, ctas};
  run_warp<kKeys, Query, kClusters>(a, place, static_cast<int>(threadIdx.x) / 32,
                                    *reinterpret_cast<Shared<kKeys>*>(memory));
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
