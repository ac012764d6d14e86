// The rows and the tile program on the host: no barriers, no asynchronous copies, one step after the other, and the
// blocks of a token one by one. All arithmetic is in the headers that the GPU runs.

#include <memory>
#include <vector>

#include "encode.h"
#include "merge.h"
#include "query.h"
#include "unpack.h"
#include "values.h"

namespace nvfp4 {
namespace {

template <int kKeys>
struct HostParts {
  const std::vector<std::unique_ptr<Shared<kKeys>>>& blocks;

  Weight weight(int rank, int head) const { return blocks[rank]->weights[head]; }
  void values(int rank, int head, int column, float (&to)[kUnitColumns]) const {
    std::memcpy(to, &blocks[rank]->part.values[head][column], sizeof to);
  }
};

template <int kKeys, typename Query>
void run_block(const Arguments& a, int token, int first_head, int first_stage, int last_stage, Shared<kKeys>& shared) {
  const int32_t* indices = a.indices + token * a.index_stride;
  for (int head = 0; head < kHeads; ++head) {
    load_query_head<Query>(a, token, first_head, head, shared.query(), shared.factor);
  }
  std::vector<Scores<kKeys>> scores(kScoreWarps);
  std::vector<Values<kKeys>> values(kValueWarps);
  for (int warp = 0; warp < kScoreWarps; ++warp) scores[warp].begin(warp, shared);
  for (int warp = 0; warp < kValueWarps; ++warp) values[warp].begin();
  for (int stage = first_stage; stage < last_stage; ++stage) {
    Slot<kKeys>& slot = shared.slots[(stage - first_stage) % kSlots];
    auto& raw = shared.raw[(stage - first_stage) % kRawSlots];
    auto& partial = shared.partial[(stage - first_stage) % 2];
    Lanes<bool> valid;
    for (int lane = 0; lane < 32; ++lane) {
      const int32_t id = indices[stage * kKeys + lane % kKeys];
      valid[lane] = id >= 0 && id < a.rows;
      uint8_t* to = raw[lane % kKeys];
      if (valid[lane]) {
        std::memcpy(to, a.cache + row_offset(id, a.block_size, a.block_stride), kRowBytes);
      } else {
        std::memset(to, 0, kRowBytes);
      }
    }
    for (int warp = 0; warp < Shared<kKeys>::kUnpackWarps; ++warp) unpack_rows(warp, raw, slot);
    for (int warp = 0; warp < kScoreWarps; ++warp) scores[warp].multiply_quarter(warp, slot, partial[warp]);
    for (int warp = 0; warp < kScoreWarps; ++warp) scores[warp].weigh(warp, partial, valid, slot);
    for (int warp = 0; warp < kValueWarps; ++warp) values[warp].accumulate(warp, slot);
  }
  for (int warp = 0; warp < kScoreWarps; ++warp) scores[warp].finish(warp, shared.weights);
  for (int warp = 0; warp < kValueWarps; ++warp) values[warp].finish(warp, shared.part);
}

template <int kKeys, typename Query>
void run_token(const Arguments& a, int token, int ctas) {
  const int stages = a.topk / kKeys;
  for (int first_head = 0; first_head < a.heads; first_head += kHeads) {
    std::vector<std::unique_ptr<Shared<kKeys>>> blocks;
    for (int rank = 0; rank < ctas; ++rank) {
      blocks.push_back(std::make_unique<Shared<kKeys>>());
      run_block<kKeys, Query>(a, token, first_head, rank * stages / ctas, (rank + 1) * stages / ctas, *blocks[rank]);
    }
    for (int unit = 0; unit < kUnits; ++unit) {
      merge_unit(a, token, first_head, ctas, unit, HostParts<kKeys>{blocks});
    }
  }
}

}  // namespace
}  // namespace nvfp4

extern "C" {

int nvfp4_host_decode(const nvfp4::Arguments* a, int keys, int bfloat16, int ctas) {
  using namespace nvfp4;
  for (int token = 0; token < a->tokens; ++token) {
    if (keys == 32) {
      bfloat16 ? run_token<32, Bfloat16Query>(*a, token, ctas) : run_token<32, E4m3Query>(*a, token, ctas);
    } else if (keys == 16) {
      bfloat16 ? run_token<16, Bfloat16Query>(*a, token, ctas) : run_token<16, E4m3Query>(*a, token, ctas);
    } else {
      return 1;
    }
  }
  return 0;
}

// Rows of `count` tokens of 576 float32 values each.
void nvfp4_host_encode(const float* values, int64_t count, int policy, uint8_t* rows) {
  using namespace nvfp4;
  for (int64_t i = 0; i < count; ++i) {
    const auto load = [&](int element) { return values[i * kWidth + element]; };
    uint8_t* row = rows + i * kRowBytes;
    switch (static_cast<Policy>(policy)) {
      case Policy::kRtn: encode_row<Policy::kRtn>(load, row); break;
      case Policy::kFourOverSix: encode_row<Policy::kFourOverSix>(load, row); break;
      case Policy::kSearch: encode_row<Policy::kSearch>(load, row); break;
    }
  }
}

// The float16 codes, [count, 576], that the tile program makes of rows.
void nvfp4_host_unpack(const uint8_t* rows, int64_t count, uint16_t* tile) {
  for (int64_t i = 0; i < count; ++i) {
    for (int share = 0; share < 8; ++share) {
      nvfp4::unpack_eighth(rows + i * nvfp4::kRowBytes, share, tile + i * nvfp4::kWidth);
    }
  }
}

float nvfp4_host_half_value(uint32_t code) { return nvfp4::half_value(code); }
uint32_t nvfp4_host_half_code(float value) { return nvfp4::half_code(value); }
uint32_t nvfp4_host_bfloat16_code(float value) { return nvfp4::bfloat16_code(value); }
float nvfp4_host_e4m3_value(uint32_t code) { return nvfp4::e4m3_value(code); }
float nvfp4_host_e2m1_value(uint32_t code) { return nvfp4::e2m1_value(code); }
int64_t nvfp4_host_row_offset(int32_t id, int32_t block_size, int64_t block_stride) {
  return nvfp4::row_offset(id, block_size, block_stride);
}

}  // extern "C"
