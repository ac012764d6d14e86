// The kernel that writes rows, as it is launched.
#include "encode.cuh"

namespace nvfp4 {
namespace {

using EncodeKernel = void (*)(EncodeArguments);

template <Policy policy>
EncodeKernel encode_for(bool bfloat16) {
  return bfloat16 ? encode_kernel<policy, Bfloat16Elements> : encode_kernel<policy, FloatElements>;
}

}  // namespace

cudaError_t launch_encode(const EncodeArguments& a, int policy, bool bfloat16, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  EncodeKernel kernel = nullptr;
  switch (static_cast<Policy>(policy)) {
    case Policy::kRtn: kernel = encode_for<Policy::kRtn>(bfloat16); break;
    case Policy::kFourOverSix: kernel = encode_for<Policy::kFourOverSix>(bfloat16); break;
    case Policy::kSearch: kernel = encode_for<Policy::kSearch>(bfloat16); break;
  }
  if (kernel == nullptr) return cudaErrorInvalidValue;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>((a.tokens + kEncodeWarps - 1) / kEncodeWarps));
  launch.blockDim = dim3(32 * kEncodeWarps);
  launch.stream = stream;
  return cudaLaunchKernelEx(&launch, kernel, a);
}

}  // namespace nvfp4
