// Rows on their way from the cache into raw slots. A warp copies the four rows that it will unpack, so the lanes that
// wait for a copy are those that made it.
#pragma once

#include "arguments.h"
#include "shared.h"
#include "sync.cuh"

namespace nvfp4 {

template <int kKeys>
class RowCopies {
 public:
  static constexpr int kAhead = kRawSlots - 1;

  __device__ RowCopies(const Arguments& a, const int32_t* indices, int warp, int stages, Shared<kKeys>& shared)
      : a_(a), key_(kRowsPerWarp * warp + static_cast<int>(threadIdx.x) % 32 / 8), stages_(stages), shared_(shared) {
    indices_ = indices + key_;
    next_ = index(0);
    for (int stage = 0; stage < kAhead; ++stage) start(stage);
  }

  // Starts the copy of a stage, to be called for each in order; beyond the last it starts nothing and counts on.
  __device__ void start(int stage) {
    if (stage < stages_) {
      const int32_t id = next_;
      next_ = index(stage + 1);
      const bool real = id >= 0 && id < a_.rows;
      const uint8_t* from = a_.cache + (real ? row_offset(id, a_.block_size, a_.block_stride) : 0);
      uint8_t* to = shared_.raw[stage % kRawSlots][key_];
      NVFP4_UNROLL
      for (int chunk = static_cast<int>(threadIdx.x) % 8; chunk < kCopies; chunk += 8) {
        copy16(to + chunk * kCopyBytes, from + chunk * kCopyBytes, real);
      }
    }
    copies_commit();
  }

  // The oldest stage that was started and not yet waited for.
  __device__ void wait() {
    copies_wait<kAhead>();
    __syncwarp();
  }

 private:
  __device__ int32_t index(int stage) const { return stage < stages_ ? __ldg(indices_ + stage * kKeys) : -1; }

  const Arguments& a_;
  const int32_t* indices_;
  int key_, stages_;
  int32_t next_;
  Shared<kKeys>& shared_;
};

}  // namespace nvfp4
