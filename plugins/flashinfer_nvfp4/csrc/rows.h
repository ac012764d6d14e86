// Rows on their way from the cache into raw slots. A warp copies the four rows that it will unpack, so the lanes that
// wait for a copy are those that made it.
#pragma once

#include "arguments.h"
#include "shared.h"
#include "sync.h"

namespace nvfp4 {

NVFP4_FN bool is_row(const Arguments& a, int32_t id) { return id >= 0 && id < a.rows; }

NVFP4_FN int32_t load_index(const int32_t* from) {
#if NVFP4_DEVICE
  return __ldg(from);
#else
  return *from;
#endif
}

template <int kKeys>
class RowCopies {
 public:
  static constexpr int kAhead = kRawSlots - 1;

  NVFP4_FN RowCopies(const Arguments& a, const int32_t* indices, int warp, int stages, Shared<kKeys>& shared)
      : a_(a), indices_(indices), first_key_(kRowsPerWarp * warp), stages_(stages), shared_(shared) {
    find(0);
    for (int stage = 0; stage < kAhead; ++stage) start(stage);
  }

  // Starts the copy of a stage, to be called for each in order; beyond the last it starts nothing and counts on.
  NVFP4_FN void start(int stage) {
    if (stage < stages_) {
      const Lanes<int32_t> ids = next_;
      find(stage + 1);
      NVFP4_EACH_LANE(lane) {
        const bool real = is_row(a_, ids[lane]);
        const uint8_t* from = a_.cache + (real ? row_offset(ids[lane], a_.block_size, a_.block_stride) : 0);
        uint8_t* to = shared_.raw[stage % kRawSlots][first_key_ + lane / 8];
        NVFP4_UNROLL
        for (int chunk = lane % 8; chunk < kCopies; chunk += 8) {
          copy16(to + chunk * kCopyBytes, from + chunk * kCopyBytes, real);
        }
      }
    }
    copies_commit();
  }

  // The oldest stage that was started and not yet waited for.
  NVFP4_FN void wait() { copies_wait<kAhead>(); }

 private:
  // The rows of a stage are looked up while the copies of the one before are started.
  NVFP4_FN void find(int stage) {
    NVFP4_EACH_LANE(lane) {
      next_[lane] = stage < stages_ ? load_index(indices_ + stage * kKeys + first_key_ + lane / 8) : -1;
    }
  }

  const Arguments& a_;
  const int32_t* indices_;
  int first_key_, stages_;
  Lanes<int32_t> next_;
  Shared<kKeys>& shared_;
};

}  // namespace nvfp4
