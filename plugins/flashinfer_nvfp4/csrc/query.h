// The query becomes float16: e4m3 exactly, bfloat16 after dividing each head by the power of two of its largest value.
#pragma once

#include "arguments.h"
#include "memory.h"
#include "shared.h"
#include "warp_ops.h"

namespace nvfp4 {

struct E4m3Query {
  static constexpr bool kScaled = false;
  static constexpr int kBytes = 1;
};

struct Bfloat16Query {
  static constexpr bool kScaled = true;
  static constexpr int kBytes = 2;
};

// Head `head` of 16, by one warp; heads beyond `heads` are zero. `factor` gets what scores are multiplied with.
template <typename Query, typename Tile>
NVFP4_FN void load_query_head(const Arguments& a, int token, int first_head, int head, Tile& tile, float* factor) {
  constexpr int kPairs = kWidth / 2 / 32;
  const bool real = first_head + head < a.heads;
  const auto* row = static_cast<const uint8_t*>(a.query) +
                    (token * a.query_token_stride + (first_head + head) * a.query_head_stride) * Query::kBytes;
  Lanes<uint32_t> pairs[kPairs];
  Lanes<float> largest;
  NVFP4_EACH_LANE(lane) {
    float most = 0.0f;
    NVFP4_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const int pair = 32 * i + lane;
      uint32_t codes = 0;
      if constexpr (Query::kScaled) {
        if (real) codes = load_as<uint32_t>(row + 4 * pair);
        most = fmaxf(most, fmaxf(fabsf(float_of(codes << 16)), fabsf(float_of(codes & 0xFFFF0000u))));
      } else {
        if (real) codes = load_as<uint16_t>(row + 2 * pair);
      }
      pairs[i][lane] = codes;
    }
    largest[lane] = most;
  }
  if constexpr (Query::kScaled) reduce_lanes<32>(largest, Larger());
  NVFP4_EACH_LANE(lane) {
    // At least 2^-126 and at most 2^126, so that power and reciprocal are ordinary numbers.
    const uint32_t exponent = bits_of(fminf(fmaxf(largest[lane], 0x1p-126f), 0x1p126f)) & 0x7F800000u;
    const float inverse = float_of((254u << 23) - exponent);
    NVFP4_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t codes = pairs[i][lane];
      uint32_t halves;
      if constexpr (Query::kScaled) {
        halves = pack_halves(float_of(codes << 16) * inverse, float_of(codes & 0xFFFF0000u) * inverse);
      } else {
        halves = e4m3_halves(codes);
      }
      store_as(&tile[head][2 * (32 * i + lane)], halves);
    }
    if (lane == 0) factor[head] = a.scale_log2 * (Query::kScaled ? float_of(exponent) : 1.0f);
  }
}

}  // namespace nvfp4
