// Weighted sums of the latent, by four warps with 128 columns each: 16 heads x 128 columns of float32 in registers.
#pragma once

#include "memory.h"
#include "shared.h"
#include "warp_ops.h"

namespace nvfp4 {

template <int kKeys>
struct Values {
  static constexpr int kColumns = kLatent / kValueWarps;

  Lanes<float> sums[kColumns / 8][4];

  NVFP4_FN void begin() {
    NVFP4_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      NVFP4_UNROLL
      for (int i = 0; i < 4; ++i) {
        NVFP4_EACH_LANE(lane) { sums[n][i][lane] = 0.0f; }
      }
    }
  }

  NVFP4_FN void accumulate(int warp, const Slot<kKeys>& slot) {
    NVFP4_EACH_LANE(lane) {
      const float upper = slot.decay[lane / 4], lower = slot.decay[lane / 4 + 8];
      NVFP4_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        sums[n][0][lane] *= upper;
        sums[n][1][lane] *= upper;
        sums[n][2][lane] *= lower;
        sums[n][3][lane] *= lower;
      }
    }
    NVFP4_UNROLL
    for (int step = 0; step < kKeys / 16; ++step) {
      Lanes<const uint16_t*> rows;
      NVFP4_EACH_LANE(lane) { rows[lane] = &slot.probability[lane % 16][16 * step + lane / 16 * 8]; }
      Fragment weights[4];
      load_matrices<false>(weights, rows);
      NVFP4_UNROLL
      for (int n = 0; n < kColumns / 8; n += 2) {
        NVFP4_EACH_LANE(lane) {
          rows[lane] = &slot.tile[16 * step + lane % 16][kColumns * warp + 8 * n + lane / 16 * 8];
        }
        Fragment values[4];
        load_matrices<true>(values, rows);
        multiply_add(sums[n], weights, values[0], values[1]);
        multiply_add(sums[n + 1], weights, values[2], values[3]);
      }
    }
  }

  NVFP4_FN void finish(int warp, Part& part) const {
    NVFP4_EACH_LANE(lane) {
      NVFP4_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        NVFP4_UNROLL
        for (int i = 0; i < 4; i += 2) {
          store_as(&part.values[lane / 4 + 4 * i][kColumns * warp + 8 * n + 2 * (lane % 4)],
                   Pair{sums[n][i][lane], sums[n][i + 1][lane]});
        }
      }
    }
  }
};

}  // namespace nvfp4
