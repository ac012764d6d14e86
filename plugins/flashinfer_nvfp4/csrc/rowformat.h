// The 352-byte row; flashinfer_nvfp4/rowformat.py says what its bytes mean.
#pragma once

#include "platform.h"

namespace nvfp4 {

constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kWidth = kLatent + kRope;
constexpr int kBlock = 16;
constexpr int kBlocks = kLatent / kBlock;
constexpr int kRopeOffset = kLatent / 2;
constexpr int kScaleOffset = kRopeOffset + kRope;
constexpr int kRowBytes = kScaleOffset + kBlocks;
constexpr int kCopyBytes = 16;
constexpr int kCopies = kRowBytes / kCopyBytes;

static_assert(kRowBytes == 352 && kCopies * kCopyBytes == kRowBytes);

NVFP4_FN int scale_offset(int block) { return kScaleOffset + 8 * (block % 4) + block / 4; }

// Bytes from the start of the cache to row `id`, for blocks of `block_size` rows that lie `block_stride` bytes apart.
NVFP4_FN int64_t row_offset(int32_t id, int32_t block_size, int64_t block_stride) {
  return static_cast<int64_t>(id / block_size) * block_stride + static_cast<int64_t>(id % block_size) * kRowBytes;
}

}  // namespace nvfp4
