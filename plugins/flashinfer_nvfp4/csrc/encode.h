// A block of 16 latent elements becomes 8 bytes and a scale; arithmetic and order are those of codec.py, bit for bit.
#pragma once

#include "rounding.h"
#include "rowformat.h"

namespace nvfp4 {

enum class Policy : int { kRtn = 0, kFourOverSix = 1, kSearch = 2 };

NVFP4_FN uint32_t scale_code(float amax, float factor) {
  return e4m3_code(fminf(fmaxf(multiply(amax, factor), 0x1p-9f), 448.0f));
}

// Squared error that a scale leaves, summed pairwise: i with i + 8, then 4, 2, 1.
NVFP4_FN float squared_error(const float (&x)[kBlock], uint32_t code) {
  const float scale = e4m3_value(code), inverse = reciprocal(scale);
  float error[kBlock];
  NVFP4_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    const float magnitude = fabsf(x[i]);
    const float left = add(multiply(round_to_e2m1(multiply(magnitude, inverse)), scale), -magnitude);
    error[i] = multiply(left, left);
  }
  NVFP4_UNROLL
  for (int half = kBlock / 2; half; half /= 2) {
    NVFP4_UNROLL
    for (int i = 0; i < half; ++i) error[i] = add(error[i], error[i + half]);
  }
  return error[0];
}

template <Policy policy>
NVFP4_FN uint32_t choose_scale(const float (&x)[kBlock]) {
  float amax = 0.0f;
  NVFP4_UNROLL
  for (int i = 0; i < kBlock; ++i) amax = fmaxf(amax, fabsf(x[i]));
  const uint32_t sixth = scale_code(amax, 0x1.555556p-3f);  // the float nearest to 1/6
  if constexpr (policy == Policy::kRtn) return sixth;
  uint32_t best = sixth;
  float least = squared_error(x, sixth);
  const int first = policy == Policy::kFourOverSix ? 0 : -2, last = policy == Policy::kFourOverSix ? 0 : 5;
  for (int step = first; step <= last; ++step) {
    uint32_t code = scale_code(amax, 0.25f);
    if constexpr (policy == Policy::kSearch) {
      const int near = static_cast<int>(sixth) + step;
      code = static_cast<uint32_t>(near < 1 ? 1 : near > 0x7E ? 0x7E : near);
    }
    const float error = squared_error(x, code);
    if (error < least) best = code, least = error;
  }
  return best;
}

// Scale code of the block; its element codes go to `codes`, the even element of a byte in the low half. A kernel cannot
// refuse a NaN: the block is written as if it were a zero, but with a NaN as its scale, which every reader will see.
template <Policy policy>
NVFP4_FN uint32_t encode_block(float (&x)[kBlock], uint8_t (&codes)[kBlock / 2]) {
  bool broken = false;
  NVFP4_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    if (x[i] != x[i]) broken = true, x[i] = 0.0f;
  }
  const uint32_t scale = choose_scale<policy>(x);
  const float inverse = reciprocal(e4m3_value(scale));
  NVFP4_UNROLL
  for (int i = 0; i < kBlock; i += 2) {
    uint32_t pair[2];
    NVFP4_UNROLL
    for (int j = 0; j < 2; ++j) {
      const float element = multiply(x[i + j], inverse);
      pair[j] = e2m1_code(round_to_e2m1(fabsf(element))) | (element < 0.0f ? 8u : 0u);
    }
    codes[i / 2] = static_cast<uint8_t>(pair[0] | pair[1] << 4);
  }
  return broken ? 0x7Fu : scale;
}

// One row by one warp: lane b encodes block b and two RoPE elements. `load(i)` is element i of the 576, as float.
template <Policy policy, typename Load>
NVFP4_FN void encode_row(const Load& load, uint8_t* row) {
  NVFP4_EACH_LANE(lane) {
    float x[kBlock];
    NVFP4_UNROLL
    for (int i = 0; i < kBlock; ++i) x[i] = load(lane * kBlock + i);
    uint8_t codes[kBlock / 2];
    row[scale_offset(lane)] = static_cast<uint8_t>(encode_block<policy>(x, codes));
    NVFP4_UNROLL
    for (int i = 0; i < kBlock / 2; ++i) row[lane * (kBlock / 2) + i] = codes[i];
    NVFP4_UNROLL
    for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
      row[kRopeOffset + i] = static_cast<uint8_t>(e4m3_code(load(kLatent + i)));
    }
  }
}

}  // namespace nvfp4
