// The decode kernel as it is launched on one architecture. cuda_build.py tells the compiler what that has:
// NVFP4_KEYS a stage, NVFP4_CLUSTERS or none, and the NVFP4_SHARED_BYTES and NVFP4_PART_BYTES that it counts with.
#include "launch.h"

#include "decode.cuh"

namespace nvfp4 {
namespace {

using Memory = Shared<NVFP4_KEYS>;
constexpr bool kClusters = NVFP4_CLUSTERS;
constexpr int kMergeThreads = 256;
static_assert(sizeof(Memory) == NVFP4_SHARED_BYTES && sizeof(StoredPart) == NVFP4_PART_BYTES);

using DecodeKernel = void (*)(Arguments, int);

DecodeKernel decode_for(bool bfloat16) {
  return bfloat16 ? decode_kernel<NVFP4_KEYS, Bfloat16Query, kClusters>
                  : decode_kernel<NVFP4_KEYS, E4m3Query, kClusters>;
}

struct Configuration {
  cudaLaunchConfig_t launch{};
  cudaLaunchAttribute cluster{};

  Configuration(dim3 grid, int ctas, cudaStream_t stream) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(ctas);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    launch.gridDim = grid;
    launch.blockDim = dim3(32 * Memory::kWarps);
    launch.dynamicSmemBytes = sizeof(Memory);
    launch.stream = stream;
    launch.attrs = &cluster;
    launch.numAttrs = kClusters ? 1 : 0;
  }
};

cudaError_t allow_memory(DecodeKernel kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Memory));
}

// Clusters have merged already. A template, so that only architectures without them have the kernel.
template <bool kMerged>
cudaError_t launch_merge(const Arguments& a, int groups, int ctas, cudaStream_t stream) {
  if constexpr (kMerged) {
    return cudaSuccess;
  } else {
    if (ctas == 1) return cudaSuccess;
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>(a.tokens), static_cast<unsigned>(groups));
    launch.blockDim = dim3(kMergeThreads);
    launch.stream = stream;
    return cudaLaunchKernelEx(&launch, merge_kernel<kMergeThreads>, a, ctas);
  }
}

}  // namespace

cudaError_t launch_decode(const Arguments& a, bool bfloat16, int ctas, cudaStream_t stream) {
  if (a.tokens == 0 || a.heads == 0) return cudaSuccess;
  if (ctas < 1 || (!kClusters && ctas > 1 && a.workspace == nullptr)) return cudaErrorInvalidValue;
  const DecodeKernel kernel = decode_for(bfloat16);
  if (const cudaError_t error = allow_memory(kernel)) return error;
  const int groups = (a.heads + kHeads - 1) / kHeads;
  Configuration configuration(dim3(static_cast<unsigned>(a.tokens * ctas), static_cast<unsigned>(groups)), ctas, stream);
  if (const cudaError_t error = cudaLaunchKernelEx(&configuration.launch, kernel, a, ctas)) return error;
  return launch_merge<kClusters>(a, groups, ctas, stream);
}

cudaError_t decode_capacity(int ctas, int* clusters) {
  const DecodeKernel kernel = decode_for(false);
  if (const cudaError_t error = allow_memory(kernel)) return error;
  if constexpr (kClusters) {
    const Configuration configuration(dim3(static_cast<unsigned>(ctas)), ctas, nullptr);
    return cudaOccupancyMaxActiveClusters(clusters, kernel, &configuration.launch);
  }
  int device = 0, blocks = 0, processors = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return error;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32 * Memory::kWarps, sizeof(Memory));
  *clusters = ctas == 1 ? blocks * processors : 0;
  return error;
}

}  // namespace nvfp4
