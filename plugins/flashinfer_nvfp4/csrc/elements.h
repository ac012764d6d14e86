// Values of e2m1 and e4m3 codes, and float16 and bfloat16 codes of floats and back, by integer arithmetic: the same on
// every machine. Rounding is to nearest, ties to even. Source: OCP MX 1.0 (e2m1), OCP OFP8 1.0 (e4m3), IEEE 754.
#pragma once

#include <cmath>
#include <cstring>

#include "platform.h"

namespace nvfp4 {

NVFP4_FN uint32_t bits_of(float value) {
#if NVFP4_DEVICE
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

NVFP4_FN float float_of(uint32_t bits) {
#if NVFP4_DEVICE
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// Single operations that no compiler may fuse.
NVFP4_FN float add(float a, float b) {
#if NVFP4_DEVICE
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

NVFP4_FN float reciprocal(float a) {
#if NVFP4_DEVICE
  return __frcp_rn(a);
#else
  return 1.0f / a;
#endif
}

NVFP4_FN float e4m3_value(uint32_t code) {
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return float_of(sign | 0x7FC00000u);
  if (magnitude < 8u) return float_of(bits_of(static_cast<float>(magnitude) * 0x1p-9f) | sign);
  return float_of(sign | ((magnitude << 20) + (120u << 23)));
}

NVFP4_FN float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7u;
  const float value = magnitude < 2u ? 0.5f * static_cast<float>(magnitude)
                                     : float_of(((magnitude >> 1) + 126u) << 23 | (magnitude & 1u) << 22);
  return float_of(bits_of(value) | (code & 8u) << 28);
}

NVFP4_FN float half_value(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude < 0x400u) return float_of(bits_of(static_cast<float>(magnitude) * 0x1p-24f) | sign);
  return float_of(sign | ((magnitude << 13) + (112u << 23)));
}

NVFP4_FN uint32_t half_code(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;
  if (magnitude >= bits_of(65520.0f)) return sign | 0x7C00u;
  if (magnitude < bits_of(0x1p-14f)) return sign | (bits_of(add(float_of(magnitude), 0.5f)) & 0x7FFu);
  magnitude += 0xFFFu + ((magnitude >> 13) & 1u);
  return sign | ((magnitude >> 13) - (112u << 10));
}

NVFP4_FN float bfloat16_value(uint32_t code) { return float_of(code << 16); }

NVFP4_FN uint32_t bfloat16_code(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

}  // namespace nvfp4
