// What decoding does for its caller, free of any framework. Functions return what the CUDA runtime said.
#pragma once

#include <cuda_runtime.h>

#include "arguments.h"

namespace nvfp4 {

cudaError_t launch_decode(const Arguments& a, bool bfloat16, int ctas, cudaStream_t stream);

// How many clusters of `ctas` blocks the current device runs at once.
cudaError_t decode_capacity(int ctas, int* clusters);

}  // namespace nvfp4
