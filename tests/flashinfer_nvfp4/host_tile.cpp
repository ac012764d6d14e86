// The rows and the tile program on the host, as functions that tests call.

#include "host_run.h"

#include "encode.h"

namespace nvfp4 {
namespace {

template <int kKeys, bool kClusters>
void run(const Arguments& a, bool bfloat16, int ctas) {
  const int groups = (a.heads + kHeads - 1) / kHeads;
  for (int token = 0; token < a.tokens; ++token) {
    for (int group = 0; group < groups; ++group) {
      bfloat16 ? run_blocks<kKeys, Bfloat16Query, kClusters>(a, token, group, groups, ctas)
               : run_blocks<kKeys, E4m3Query, kClusters>(a, token, group, groups, ctas);
    }
  }
}

}  // namespace
}  // namespace nvfp4

extern "C" {

// As the architectures have it: clusters with 32 keys a stage, none with 16.
int nvfp4_host_decode(const nvfp4::Arguments* a, int keys, int bfloat16, int ctas) {
  if (keys != 32 && keys != 16) return 1;
  keys == 32 ? nvfp4::run<32, true>(*a, bfloat16, ctas) : nvfp4::run<16, false>(*a, bfloat16, ctas);
  return 0;
}

uint64_t nvfp4_host_part_bytes() { return sizeof(nvfp4::StoredPart); }

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
