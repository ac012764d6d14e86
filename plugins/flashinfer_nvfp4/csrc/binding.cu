// The module's functions for Python, through tvm-ffi, which FlashInfer's modules use too. Tensors come as addresses:
// cuda_decode.py has checked and described them.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "encode.cuh"
#include "launch.h"

namespace {

template <typename T>
T* at(int64_t address) {
  return reinterpret_cast<T*>(address);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(error);
}

void decode(int64_t query, int64_t query_token_stride, int64_t query_head_stride, int64_t cache, int64_t block_stride,
            int64_t block_size, int64_t rows, int64_t indices, int64_t index_stride, int64_t tokens, int64_t heads,
            int64_t topk, double scale_log2, int64_t out, int64_t lse, int64_t workspace, bool bfloat16, int64_t ctas,
            int64_t stream) {
  nvfp4::Arguments a{};
  a.query = at<const void>(query);
  a.query_token_stride = query_token_stride;
  a.query_head_stride = query_head_stride;
  a.cache = at<const uint8_t>(cache);
  a.block_stride = block_stride;
  a.block_size = static_cast<int32_t>(block_size);
  a.rows = static_cast<int32_t>(rows);
  a.indices = at<const int32_t>(indices);
  a.index_stride = index_stride;
  a.tokens = static_cast<int32_t>(tokens);
  a.heads = static_cast<int32_t>(heads);
  a.topk = static_cast<int32_t>(topk);
  a.scale_log2 = static_cast<float>(scale_log2);
  a.out = at<uint16_t>(out);
  a.lse = at<float>(lse);
  a.workspace = at<void>(workspace);
  check(nvfp4::launch_decode(a, bfloat16, static_cast<int>(ctas), at<CUstream_st>(stream)), "decode");
}

void encode(int64_t latent, int64_t latent_stride, int64_t rope, int64_t rope_stride, int64_t slots, int64_t cache,
            int64_t block_stride, int64_t block_size, int64_t rows, int64_t tokens, int64_t policy, bool bfloat16,
            int64_t stream) {
  nvfp4::EncodeArguments a{};
  a.latent = at<const void>(latent);
  a.rope = at<const void>(rope);
  a.latent_stride = latent_stride;
  a.rope_stride = rope_stride;
  a.slots = at<const int64_t>(slots);
  a.cache = at<uint8_t>(cache);
  a.block_stride = block_stride;
  a.block_size = static_cast<int32_t>(block_size);
  a.rows = static_cast<int32_t>(rows);
  a.tokens = static_cast<int32_t>(tokens);
  check(nvfp4::launch_encode(a, static_cast<int>(policy), bfloat16, at<CUstream_st>(stream)), "encode");
}

int64_t capacity(int64_t ctas) {
  int clusters = 0;
  check(nvfp4::decode_capacity(static_cast<int>(ctas), &clusters), "capacity");
  return clusters;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode, decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(encode, encode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(capacity, capacity);
