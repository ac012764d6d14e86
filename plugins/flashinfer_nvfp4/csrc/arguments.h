// A launch: T tokens of H heads against rows that `indices` names. Strides count elements unless they say bytes.
#pragma once

#include <cstdint>

namespace nvfp4 {

struct Arguments {
  const void* query;  // [T, H, 576], e4m3 or bfloat16
  int64_t query_token_stride, query_head_stride;
  const uint8_t* cache;  // blocks of `block_size` rows, `block_stride` bytes apart
  int64_t block_stride;
  int32_t block_size, rows;
  const int32_t* indices;  // [T, topk]; outside 0..rows - 1 is an empty slot
  int64_t index_stride;
  int32_t tokens, heads, topk;
  float scale_log2;  // softmax scale times log2(e)
  float out_scale;   // of the output alone
  uint16_t* out;     // [T, H, 512] bfloat16
  float* lse;        // [T, H] natural logarithm, or null
  void* workspace;   // parts of several blocks of a token, where there are no clusters
};

}  // namespace nvfp4
