// Shared memory of one thread block, and how its warps are dealt out.
//
// A stage is kKeys keys. Its rows come as bytes into one of four raw slots, and become a float16 tile in one of three
// slots, where scores, probabilities and values are taken from. Rows of tiles are padded by 16 bytes, so that the
// eight rows that ldmatrix reads at once lie in different banks.
#pragma once

#include "rowformat.h"

namespace nvfp4 {

constexpr int kHeads = 16;
constexpr int kSlots = 3;
constexpr int kRawSlots = 4;
constexpr int kRowsPerWarp = 4;
constexpr int kScoreWarps = 4;
constexpr int kValueWarps = 4;
constexpr int kTileStride = kWidth + 8;
constexpr int kPartStride = kLatent + 8;

template <int kKeys>
struct alignas(16) Slot {
  uint16_t tile[kKeys][kTileStride];
  uint16_t probability[kHeads][kKeys + 8];
  float decay[kHeads];
};

// What a block leaves for the merge: sums of values here, in `Weight` the largest logarithm (base 2) of a weight and the
// sum of weights.
struct alignas(16) Part {
  float values[kHeads][kPartStride];
};

struct Weight {
  float best, total;
};

template <int kKeys>
struct alignas(16) Shared {
  static constexpr int kUnpackWarps = kKeys / kRowsPerWarp;
  static constexpr int kWarps = kUnpackWarps + kScoreWarps + kValueWarps;

  union {
    Slot<kKeys> slots[kSlots];
    Part part;  // after the last stage
  };
  uint8_t raw[kRawSlots][kKeys][kRowBytes];
  float partial[2][kScoreWarps][kHeads][kKeys + 8];
  Weight weights[kHeads];
  float factor[kHeads];
  uint64_t filled[kSlots], scored[kSlots], drained[kSlots];

  // The query waits in the last slot until the scoring warps have it in registers; the slot's first tile comes later.
  NVFP4_FN uint16_t (&query())[kKeys][kTileStride] { return slots[kSlots - 1].tile; }

  static_assert(kKeys >= kHeads && sizeof(Part) <= sizeof(Slot<kKeys>) * kSlots);
};

}  // namespace nvfp4
