// Writing rows for Python. cuda_encode.py has checked the tensors, and has made their device the current one.
#include "binding.h"
#include "encode.cuh"

namespace nvfp4 {
namespace {

// latent [T, 512], rope [T, 64], slots [T], cache [blocks, block size, 352] as bytes.
void encode(Tensor latent, Tensor rope, Tensor slots, Tensor cache, int64_t policy) {
  EncodeArguments a{};
  a.latent = latent.data_ptr();
  a.rope = rope.data_ptr();
  a.latent_stride = latent.stride(0);
  a.rope_stride = rope.stride(0);
  a.slots = static_cast<const int64_t*>(slots.data_ptr());
  a.cache = static_cast<uint8_t*>(cache.data_ptr());
  a.block_stride = cache.stride(0);
  a.block_size = static_cast<int32_t>(cache.size(1));
  a.rows = static_cast<int32_t>(cache.size(0) * cache.size(1));
  a.tokens = static_cast<int32_t>(latent.size(0));
  check(launch_encode(a, static_cast<int>(policy), is_bfloat16(latent), stream_of(latent)), "encode");
}

}  // namespace
}  // namespace nvfp4

TVM_FFI_DLL_EXPORT_TYPED_FUNC(encode, nvfp4::encode);
