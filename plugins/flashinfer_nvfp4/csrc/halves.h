// float16 in pairs, as the tensor cores take it: one 32-bit word, the element of lower index in the low half.
#pragma once

#include "elements.h"

namespace nvfp4 {

NVFP4_FN uint32_t pack_halves(float low, float high) {
#if NVFP4_DEVICE
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return half_code(low) | half_code(high) << 16;
#endif
}

NVFP4_FN uint16_t pack_half(float value) { return static_cast<uint16_t>(pack_halves(value, 0.0f)); }

NVFP4_FN uint32_t multiply_halves(uint32_t a, uint32_t b) {
#if NVFP4_DEVICE
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#else
  return pack_halves(half_value(a & 0xFFFFu) * half_value(b & 0xFFFFu), half_value(a >> 16) * half_value(b >> 16));
#endif
}

// Two e4m3 codes, exactly.
NVFP4_FN uint32_t e4m3_halves(uint32_t codes) {
#if NVFP4_DEVICE
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
  return pair;
#else
  return pack_halves(e4m3_value(codes & 0xFFu), e4m3_value(codes >> 8 & 0xFFu));
#endif
}

// Eight e2m1 codes times 2^-14 without a conversion instruction. Sign, exponent and mantissa go where float16 has
// them, and its subnormals stand in for those of e2m1. Even and odd codes of a byte belong side by side.
NVFP4_FN void e2m1_halves_small(uint32_t word, uint32_t (&pairs)[4]) {
  NVFP4_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = word >> 8 * i, spread = (byte & 0x0Fu) | (byte & 0xF0u) << 12;
    pairs[i] = (spread & 0x00080008u) << 12 | (spread & 0x00070007u) << 9;
  }
}

// Eight e2m1 codes times the scale that both halves of `scales` hold. The products have six bits, and are exact.
NVFP4_FN void scaled_e2m1_halves(uint32_t word, uint32_t scales, uint32_t (&pairs)[4]) {
#if NVFP4_HARDWARE_E2M1
  asm("{\n"
      ".reg .b8 c0, c1, c2, c3;\n"
      "mov.b32 {c0, c1, c2, c3}, %4;\n"
      "cvt.rn.f16x2.e2m1x2 %0, c0;\n"
      "cvt.rn.f16x2.e2m1x2 %1, c1;\n"
      "cvt.rn.f16x2.e2m1x2 %2, c2;\n"
      "cvt.rn.f16x2.e2m1x2 %3, c3;\n"
      "}"
      : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
      : "r"(word));
#else
  e2m1_halves_small(word, pairs);
  NVFP4_UNROLL
  for (int i = 0; i < 4; ++i) pairs[i] = multiply_halves(pairs[i], 0x74007400u);  // 2^14
#endif
  NVFP4_UNROLL
  for (int i = 0; i < 4; ++i) pairs[i] = multiply_halves(pairs[i], scales);
}

}  // namespace nvfp4
