// A launch for a race detector: two tokens, enough stages for every slot to go round, in both forms of the pipeline. Ends
// with 1 if a second run gives other bytes.

#include <cstdio>
#include <random>

#include "host_run.h"

int main() {
  constexpr int kRows = 64, kTopk = 512, kTokens = 2;
  std::mt19937 random(1);
  std::vector<uint8_t> query(kTokens * nvfp4::kHeads * nvfp4::kWidth), rows(kRows * nvfp4::kRowBytes);
  for (uint8_t& code : query) code = static_cast<uint8_t>(random() % 0x38 | (random() % 2) << 7);  // below 1
  for (uint8_t& code : rows) code = static_cast<uint8_t>(random() % 0x38);
  std::vector<int32_t> indices(kTokens * kTopk);
  for (int32_t& index : indices) index = static_cast<int32_t>(random() % (kRows + 8)) - 4;
  std::vector<nvfp4::StoredPart> workspace(kTokens * 2);
  for (const int keys : {32, 16}) {
    std::vector<uint16_t> outputs[2];
    for (auto& out : outputs) {
      out.resize(kTokens * nvfp4::kHeads * nvfp4::kLatent);
      nvfp4::Arguments a{};
      a.query = query.data();
      a.query_token_stride = nvfp4::kHeads * nvfp4::kWidth;
      a.query_head_stride = nvfp4::kWidth;
      a.cache = rows.data();
      a.block_stride = nvfp4::kRowBytes;
      a.block_size = 1;
      a.rows = kRows;
      a.indices = indices.data();
      a.index_stride = a.topk = kTopk;
      a.tokens = kTokens;
      a.heads = nvfp4::kHeads;
      a.scale_log2 = 0.1f;
      a.out_scale = 1.0f;
      a.out = out.data();
      a.workspace = workspace.data();
      for (int token = 0; token < kTokens; ++token) {
        keys == 32 ? nvfp4::run_blocks<32, nvfp4::E4m3Query, true>(a, token, 0, 1, 2)
                   : nvfp4::run_blocks<16, nvfp4::E4m3Query, false>(a, token, 0, 1, 2);
      }
    }
    if (outputs[0] != outputs[1]) {
      std::printf("%d keys a stage: two runs differ\n", keys);
      return 1;
    }
  }
  return 0;
}
