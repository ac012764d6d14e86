// Rows as bytes become rows of a float16 tile. Eight lanes share a row, a warp has four.
//
// Lane s of a row takes every eighth word of four code bytes, from the s-th on. Those words belong to the blocks
// s/2, s/2 + 4, ... s/2 + 28, whose scales are eight bytes in a row of the format: one load.
#pragma once

#include "halves.h"
#include "memory.h"
#include "shared.h"

namespace nvfp4 {

NVFP4_FN void unpack_eighth(const uint8_t* row, int share, uint16_t* tile_row) {
  const auto scales = load_as<Words<2>>(row + kScaleOffset + 8 * (share / 2));
  NVFP4_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t two = e4m3_halves(scales.word[i / 4] >> 16 * (i / 2 % 2));
    const uint32_t scale = i % 2 ? two >> 16 : two & 0xFFFFu;
    Words<4> pairs;
    scaled_e2m1_halves(load_as<uint32_t>(row + 4 * (8 * i + share)), scale | scale << 16, pairs.word);
    store_as(tile_row + 8 * (8 * i + share), pairs);
  }
  const auto rope = load_as<Words<2>>(row + kRopeOffset + 8 * share);
  Words<4> pairs;
  NVFP4_UNROLL
  for (int i = 0; i < 4; ++i) pairs.word[i] = e4m3_halves(rope.word[i / 2] >> 16 * (i % 2));
  store_as(tile_row + kLatent + 8 * share, pairs);
}

template <int kKeys>
NVFP4_FN void unpack_rows(int warp, const uint8_t (&raw)[kKeys][kRowBytes], Slot<kKeys>& slot) {
  NVFP4_EACH_LANE(lane) {
    const int key = kRowsPerWarp * warp + lane / 8;
    unpack_eighth(raw[key], lane % 8, slot.tile[key]);
  }
}

}  // namespace nvfp4
