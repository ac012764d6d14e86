// Decoding for Python. cuda_decode.py has checked the tensors, and has made their device the current one.
#include "binding.h"
#include "launch.h"

namespace nvfp4 {
namespace {

// query [T, H, 576], cache [blocks, block size, 352] as bytes, indices [T, topk], out [T, H, 512], lse [T, H].
void decode(Tensor query, Tensor cache, Tensor indices, Tensor out, MaybeTensor lse, MaybeTensor workspace,
            double scale_log2, double out_scale, int64_t ctas) {
  Arguments a{};
  a.query = query.data_ptr();
  a.query_token_stride = query.stride(0);
  a.query_head_stride = query.stride(1);
  a.cache = static_cast<const uint8_t*>(cache.data_ptr());
  a.block_stride = cache.stride(0);
  a.block_size = static_cast<int32_t>(cache.size(1));
  a.rows = static_cast<int32_t>(cache.size(0) * cache.size(1));
  a.indices = static_cast<const int32_t*>(indices.data_ptr());
  a.index_stride = indices.stride(0);
  a.tokens = static_cast<int32_t>(query.size(0));
  a.heads = static_cast<int32_t>(query.size(1));
  a.topk = static_cast<int32_t>(indices.size(1));
  a.scale_log2 = static_cast<float>(scale_log2);
  a.out_scale = static_cast<float>(out_scale);
  a.out = static_cast<uint16_t*>(out.data_ptr());
  a.lse = data<float>(lse);
  a.workspace = data<void>(workspace);
  check(launch_decode(a, is_bfloat16(query), static_cast<int>(ctas), stream_of(query)), "decode");
}

int64_t capacity(int64_t ctas) {
  int clusters = 0;
  check(decode_capacity(static_cast<int>(ctas), &clusters), "capacity");
  return clusters;
}

}  // namespace
}  // namespace nvfp4

TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode, nvfp4::decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(capacity, nvfp4::capacity);
