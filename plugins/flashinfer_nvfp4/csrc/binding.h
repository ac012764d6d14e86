// What the bindings for Python share. Tensors come through tvm-ffi, which FlashInfer's modules use, too, with the stream
// that is current where they come from.
#pragma once

#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

namespace nvfp4 {

using Tensor = tvm::ffi::TensorView;
using MaybeTensor = tvm::ffi::Optional<tvm::ffi::TensorView>;

inline bool is_bfloat16(const Tensor& tensor) { return tensor.dtype().code == kDLBfloat; }

template <typename T>
T* data(const MaybeTensor& tensor) {
  return tensor.has_value() ? static_cast<T*>(tensor.value().data_ptr()) : nullptr;
}

inline cudaStream_t stream_of(const Tensor& tensor) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(tensor.device().device_type, tensor.device().device_id));
}

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(error);
}

}  // namespace nvfp4
