// One warp writes one row.
#pragma once

#include <cuda_runtime.h>

#include "encode.h"

namespace nvfp4 {

// T tokens' latent [T, 512] and RoPE [T, 64] part go to the rows that `slots` names; a slot outside 0..rows - 1 is none.
struct EncodeArguments {
  const void *latent, *rope;
  int64_t latent_stride, rope_stride;  // in elements
  const int64_t* slots;
  uint8_t* cache;
  int64_t block_stride;
  int32_t block_size, rows, tokens;
};

constexpr int kEncodeWarps = 4;

struct FloatElements {
  static __device__ __forceinline__ float load(const void* from, int64_t i) {
    return static_cast<const float*>(from)[i];
  }
};

struct Bfloat16Elements {
  static __device__ __forceinline__ float load(const void* from, int64_t i) {
    return bfloat16_value(static_cast<const uint16_t*>(from)[i]);
  }
};

template <Policy policy, typename Elements>
__global__ void __launch_bounds__(32 * kEncodeWarps) encode_kernel(const __grid_constant__ EncodeArguments a) {
  const int token = static_cast<int>(blockIdx.x) * kEncodeWarps + static_cast<int>(threadIdx.x) / 32;
  if (token >= a.tokens) return;
  const int64_t slot = a.slots[token];
  if (slot < 0 || slot >= a.rows) return;
  const auto load = [&](int i) {
    return i < kLatent ? Elements::load(a.latent, token * a.latent_stride + i)
                       : Elements::load(a.rope, token * a.rope_stride + i - kLatent);
  };
  encode_row<policy>(load, a.cache + row_offset(static_cast<int32_t>(slot), a.block_size, a.block_stride));
}

cudaError_t launch_encode(const EncodeArguments& a, int policy, bool bfloat16, cudaStream_t stream);

}  // namespace nvfp4
