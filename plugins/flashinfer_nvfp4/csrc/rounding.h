// Codes of e2m1 and e4m3 from floats, by integer arithmetic: rows must not depend on where they are encoded.
// Rounding is to nearest, ties to even. Source: OCP MX 1.0 (e2m1), OCP OFP8 1.0 (e4m3).
#pragma once

#include "elements.h"

namespace nvfp4 {

NVFP4_FN float multiply(float a, float b) {
#if NVFP4_DEVICE
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// Code of a value, saturated at 448; a zero keeps its sign, NaN is 0x7F or 0xFF.
NVFP4_FN uint32_t e4m3_code(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7Fu;
  if (magnitude >= bits_of(448.0f)) return sign | 0x7Eu;
  if (magnitude < bits_of(0x1p-6f)) {
    // Adding 2^14 rounds to multiples of 2^-9, the step of the subnormals, and leaves their count in the low bits.
    return sign | (bits_of(add(float_of(magnitude), 0x1p14f)) & 0x7Fu);
  }
  magnitude += 0x7FFFFu + ((magnitude >> 20) & 1u);
  return sign | ((magnitude >> 20) - (120u << 3));
}

// Nearest e2m1 value of a magnitude, saturated at 6; codec.py tells why this rounds.
NVFP4_FN float round_to_e2m1(float magnitude) {
  const float inside = fminf(magnitude, 6.0f);
  const float power = fmaxf(float_of(bits_of(inside) & 0x7F800000u), 1.0f);
  const float shift = multiply(power, 0x1p22f);
  return add(add(inside, shift), -shift);
}

// Code of an e2m1 value >= 0. From 1 on it is the exponent and first mantissa bit, counted from those of 1.
NVFP4_FN uint32_t e2m1_code(float value) {
  if (value < 1.0f) return value == 0.5f ? 1u : 0u;
  return (bits_of(value) >> 22) - (127u << 1) + 2u;
}

}  // namespace nvfp4
