// What the lanes of a warp do together. On the host the layouts of registers are those that the PTX ISA documents for
// ldmatrix and for mma.m16n8k16. How the hardware orders the 16 products of one mma is not documented; here it is
// one after the other.
#pragma once

#include "halves.h"

namespace nvfp4 {

using Fragment = Lanes<uint32_t>;

// Four 8x8 matrices of float16; lane 8m + r points at row r of matrix m.
template <bool transposed>
NVFP4_FN void load_matrices(Fragment (&out)[4], const Lanes<const uint16_t*>& rows) {
#if NVFP4_DEVICE
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(rows.own));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0].own), "=r"(out[1].own), "=r"(out[2].own), "=r"(out[3].own)
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0].own), "=r"(out[1].own), "=r"(out[2].own), "=r"(out[3].own)
                 : "r"(address)
                 : "memory");
  }
#else
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int lane = 0; lane < 32; ++lane) {
      uint32_t pair = 0;
      for (int i = 0; i < 2; ++i) {
        const int row = transposed ? 2 * (lane % 4) + i : lane / 4;
        const int column = transposed ? lane / 4 : 2 * (lane % 4) + i;
        pair |= static_cast<uint32_t>(rows[8 * matrix + row][column]) << 16 * i;
      }
      out[matrix][lane] = pair;
    }
  }
#endif
}

// d[16][8] += a[16][16] b[16][8], with float32 sums.
NVFP4_FN void multiply_add(Lanes<float> (&d)[4], const Fragment (&a)[4], const Fragment& b0, const Fragment& b1) {
#if NVFP4_DEVICE
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0].own), "+f"(d[1].own), "+f"(d[2].own), "+f"(d[3].own)
      : "r"(a[0].own), "r"(a[1].own), "r"(a[2].own), "r"(a[3].own), "r"(b0.own), "r"(b1.own));
#else
  float left[16][16], right[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4, column = 2 * (lane % 4) + i, shift = 16 * i;
      for (int part = 0; part < 4; ++part) {
        left[row + 8 * (part % 2)][column + 8 * (part / 2)] = half_value(a[part][lane] >> shift & 0xFFFFu);
      }
      right[column][row] = half_value(b0[lane] >> shift & 0xFFFFu);
      right[column + 8][row] = half_value(b1[lane] >> shift & 0xFFFFu);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      float sum = d[i][lane];
      for (int k = 0; k < 16; ++k) sum += left[lane / 4 + 8 * (i / 2)][k] * right[k][2 * (lane % 4) + i % 2];
      d[i][lane] = sum;
    }
  }
#endif
}

// Reduction over aligned groups of `width` lanes; every lane gets the result.
template <int width, typename Combine>
NVFP4_FN void reduce_lanes(Lanes<float>& value, const Combine& combine) {
  NVFP4_UNROLL
  for (int step = width / 2; step; step /= 2) {
#if NVFP4_DEVICE
    value.own = combine(value.own, __shfl_xor_sync(0xFFFFFFFFu, value.own, step));
#else
    const Lanes<float> before = value;
    for (int lane = 0; lane < 32; ++lane) value[lane] = combine(before[lane], before[lane ^ step]);
#endif
  }
}

struct Larger {
  NVFP4_FN float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
  NVFP4_FN float operator()(float a, float b) const { return a + b; }
};

}  // namespace nvfp4
