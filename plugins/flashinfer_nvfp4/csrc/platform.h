// One source for the GPU and for a plain C++ compiler, so that a machine without a GPU can run the tile program.
//
// Code is written for a warp. `Lanes<T>` is a variable of which every lane has its own: a register on the GPU, 32
// values on the host. `NVFP4_EACH_LANE(lane) { ... }` is what every lane does by itself: once on the GPU, a loop on the
// host. What lanes do together (warp_ops.h) stands between such bodies, never inside.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define NVFP4_FN __host__ __device__ __forceinline__
#define NVFP4_UNROLL _Pragma("unroll")
#else
#define NVFP4_FN inline
#define NVFP4_UNROLL
#endif

#if defined(__CUDA_ARCH__)
#define NVFP4_DEVICE 1
#define NVFP4_EACH_LANE(lane) if (const int lane = static_cast<int>(threadIdx.x) & 31; true)
#else
#define NVFP4_DEVICE 0
#define NVFP4_EACH_LANE(lane) for (int lane = 0; lane < 32; ++lane)
#endif

// e2m1 conversion instructions exist from sm_100 on, in targets with an `a` or `f` suffix only.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && \
    (defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))
#define NVFP4_HARDWARE_E2M1 1
#else
#define NVFP4_HARDWARE_E2M1 0
#endif

namespace nvfp4 {

template <typename T>
struct Lanes {
#if NVFP4_DEVICE
  T own;
  NVFP4_FN T& operator[](int) { return own; }
  NVFP4_FN const T& operator[](int) const { return own; }
#else
  T all[32];
  NVFP4_FN T& operator[](int lane) { return all[lane]; }
  NVFP4_FN const T& operator[](int lane) const { return all[lane]; }
#endif
};

}  // namespace nvfp4
