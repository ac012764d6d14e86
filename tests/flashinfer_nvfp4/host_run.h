// The tile program on the host, with a thread for each warp. All arithmetic and all waiting is in the headers that the
// GPU runs; here are only the blocks of a launch, which the GPU would deal out.

#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "pipeline.h"

namespace nvfp4 {

// The blocks of one token and 16 heads, all at a time. Shared memory begins as NaN, whatever it is read as.
template <int kKeys, typename Query, bool kClusters>
void run_blocks(const Arguments& a, int token, int group, int groups, int ctas) {
  constexpr int kWarps = Shared<kKeys>::kWarps;
  std::vector<std::unique_ptr<Shared<kKeys>>> blocks;
  std::vector<const void*> peers;
  std::vector<std::vector<HostBarrier>> named(ctas, std::vector<HostBarrier>(kBarriers));
  HostBarrier cluster;
  std::vector<std::thread> warps;
  for (int rank = 0; rank < ctas; ++rank) {
    blocks.push_back(std::make_unique<Shared<kKeys>>());
    std::memset(static_cast<void*>(blocks.back().get()), 0xFF, sizeof(Shared<kKeys>));
    peers.push_back(blocks.back().get());
  }
  for (int rank = 0; rank < ctas; ++rank) {
    for (int warp = 0; warp < kWarps; ++warp) {
      warps.emplace_back([&, rank, warp] {
        HostWarp own{named[rank].data(), &cluster, static_cast<uint32_t>(ctas * kWarps), peers.data()};
        host_warp = &own;
        run_warp<kKeys, Query, kClusters>(a, Place{token, group, groups, rank, ctas}, warp, *blocks[rank]);
      });
    }
  }
  for (std::thread& warp : warps) warp.join();
  if (!kClusters && ctas > 1) {
    const StoredParts parts{stored_parts(a, token, group, groups, ctas)};
    for (int unit = 0; unit < kUnits; ++unit) merge_unit(a, token, group * kHeads, ctas, unit, parts);
  }
}

}  // namespace nvfp4
