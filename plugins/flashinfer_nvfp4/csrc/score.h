// Scores and online softmax of a stage, by four warps.
//
// Each warp multiplies a quarter of the 576 columns for all keys, so that its part of the query stays in registers;
// the four partial scores meet in shared memory. Then each warp has four heads, one lane a key.
// Everything is in base 2: a weight is 2^(score - best).
#pragma once

#include "memory.h"
#include "shared.h"
#include "warp_ops.h"

namespace nvfp4 {

NVFP4_FN float power_of_two(float exponent) {
#if NVFP4_DEVICE
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
#else
  return std::exp2(exponent);
#endif
}

// -inf stands for "no key yet". As a base it would give inf - inf.
NVFP4_FN float as_base(float best) { return best == -INFINITY ? 0.0f : best; }

template <int kKeys>
struct Scores {
  static constexpr int kSteps = kWidth / 16 / kScoreWarps;
  static constexpr int kHeadsAtOnce = 32 / kKeys;
  static constexpr int kPasses = kHeads / kScoreWarps / kHeadsAtOnce;

  Fragment query[kSteps][4];
  Lanes<float> factor[kPasses], best[kPasses], total[kPasses];

  NVFP4_FN static int head(int warp, int pass, int lane) {
    return (warp * kPasses + pass) * kHeadsAtOnce + lane / kKeys;
  }

  NVFP4_FN void begin(int warp, Shared<kKeys>& shared) {
    NVFP4_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      Lanes<const uint16_t*> rows;
      NVFP4_EACH_LANE(lane) {
        rows[lane] = &shared.query()[lane % 16][16 * (kSteps * warp + step) + lane / 16 * 8];
      }
      load_matrices<false>(query[step], rows);
    }
    NVFP4_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      NVFP4_EACH_LANE(lane) {
        factor[pass][lane] = shared.factor[head(warp, pass, lane)];
        best[pass][lane] = -INFINITY;
        total[pass][lane] = 0.0f;
      }
    }
  }

  NVFP4_FN void multiply_quarter(int warp, const Slot<kKeys>& slot, float (&partial)[kHeads][kKeys + 8]) const {
    Lanes<float> sums[kKeys / 8][4];
    NVFP4_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      NVFP4_UNROLL
      for (int i = 0; i < 4; ++i) {
        NVFP4_EACH_LANE(lane) { sums[n][i][lane] = 0.0f; }
      }
    }
    NVFP4_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      NVFP4_UNROLL
      for (int n = 0; n < kKeys / 8; n += 2) {
        Lanes<const uint16_t*> rows;
        NVFP4_EACH_LANE(lane) {
          rows[lane] = &slot.tile[8 * n + lane % 8 + lane / 16 * 8][16 * (kSteps * warp + step) + lane / 8 % 2 * 8];
        }
        Fragment keys[4];
        load_matrices<false>(keys, rows);
        multiply_add(sums[n], query[step], keys[0], keys[1]);
        multiply_add(sums[n + 1], query[step], keys[2], keys[3]);
      }
    }
    NVFP4_EACH_LANE(lane) {
      NVFP4_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        NVFP4_UNROLL
        for (int i = 0; i < 4; i += 2) {
          store_as(&partial[lane / 4 + 4 * i][8 * n + 2 * (lane % 4)], Pair{sums[n][i][lane], sums[n][i + 1][lane]});
        }
      }
    }
  }

  // `valid` tells each lane whether its key, lane % kKeys, exists.
  NVFP4_FN void weigh(int warp, const float (&partial)[kScoreWarps][kHeads][kKeys + 8], const Lanes<bool>& valid,
                      Slot<kKeys>& slot) {
    NVFP4_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      Lanes<float> score, largest;
      NVFP4_EACH_LANE(lane) {
        const int row = head(warp, pass, lane), key = lane % kKeys;
        const float sum = (partial[0][row][key] + partial[1][row][key]) + (partial[2][row][key] + partial[3][row][key]);
        score[lane] = largest[lane] = valid[lane] ? sum * factor[pass][lane] : -INFINITY;
      }
      reduce_lanes<kKeys>(largest, Larger());
      NVFP4_EACH_LANE(lane) {
        const int row = head(warp, pass, lane), key = lane % kKeys;
        const float higher = fmaxf(best[pass][lane], largest[lane]), base = as_base(higher);
        const float weight = power_of_two(score[lane] - base), decay = power_of_two(best[pass][lane] - base);
        total[pass][lane] = total[pass][lane] * decay + weight;
        best[pass][lane] = higher;
        slot.probability[row][key] = pack_half(weight);
        if (key == 0) slot.decay[row] = decay;
      }
    }
  }

  NVFP4_FN void finish(int warp, Weight (&weights)[kHeads]) {
    NVFP4_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      reduce_lanes<kKeys>(total[pass], Sum());
      NVFP4_EACH_LANE(lane) {
        if (lane % kKeys == 0) weights[head(warp, pass, lane)] = {best[pass][lane], total[pass][lane]};
      }
    }
  }
};

}  // namespace nvfp4
