// How warps of a block, and blocks of a cluster, wait for one another, and copies that finish later. Source: PTX ISA.
//
// On the host a warp is a thread, barriers are counters in memory, and a copy happens as late as it may: when it is
// waited for. So a missing wait shows there, as wrong values or to a race detector.
#pragma once

#include <cstdint>

#include "memory.h"

#if !NVFP4_DEVICE
#include <thread>
#include <utility>
#include <vector>
#endif

namespace nvfp4 {

#if !NVFP4_DEVICE
struct HostBarrier {
  uint32_t arrived = 0, phase = 0;

  void sync(uint32_t arrivals) {
    const uint32_t mine = __atomic_load_n(&phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL) == arrivals) {
      __atomic_store_n(&arrived, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&phase, mine + 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&phase, __ATOMIC_ACQUIRE) == mine) std::this_thread::yield();
  }
};

struct HostCopy {
  void* to;
  const void* from;
};

// What the hardware gives a warp of its own: named barriers, its cluster, and copies under way by group.
struct HostWarp {
  HostBarrier* named;
  HostBarrier* cluster;
  uint32_t cluster_warps;
  const void* const* peers;
  std::vector<std::vector<HostCopy>> groups{1};
};

inline thread_local HostWarp* host_warp = nullptr;
#endif

#if NVFP4_DEVICE
NVFP4_FN uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
#endif

// By one lane, before the block's first sync.
NVFP4_FN void barrier_init(uint64_t* barrier, int arrivals) {
#if NVFP4_DEVICE
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#else
  // From the high bits down: number of the phase, arrivals of a phase, arrivals that are still missing.
  *barrier = static_cast<uint64_t>(arrivals) << 16 | static_cast<uint64_t>(arrivals);
#endif
}

// One arrival for the whole warp: what its lanes have read and written comes before it.
NVFP4_FN void barrier_arrive(uint64_t* barrier) {
#if NVFP4_DEVICE
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
#else
  uint64_t before = __atomic_load_n(barrier, __ATOMIC_RELAXED), after;
  do {
    const uint64_t all = before >> 16 & 0xFFFFu;
    after = (before & 0xFFFFu) == 1 ? ((before >> 32) + 1) << 32 | all << 16 | all : before - 1;
  } while (!__atomic_compare_exchange_n(barrier, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
#endif
}

// Waits until the phase of this parity is over; on a new barrier the phase of parity 1 counts as over.
NVFP4_FN void barrier_wait(uint64_t* barrier, int parity) {
#if NVFP4_DEVICE
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@!over bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
  __syncwarp();  // lanes may leave the loop at different times, and what follows needs them together
#else
  while ((__atomic_load_n(barrier, __ATOMIC_ACQUIRE) >> 32 & 1) == static_cast<uint64_t>(parity)) {
    std::this_thread::yield();
  }
#endif
}

// The threads of some warps of the block.
NVFP4_FN void group_sync(int name, int threads) {
#if NVFP4_DEVICE
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
#else
  host_warp->named[name].sync(static_cast<uint32_t>(threads) / 32);
#endif
}

// All threads of the cluster.
NVFP4_FN void cluster_sync() {
#if NVFP4_DEVICE
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  host_warp->cluster->sync(host_warp->cluster_warps);
#endif
}

// Floats that lie in the shared memory of block `rank` of the cluster, `offset` bytes behind where `shared` begins here.
template <int kCount>
NVFP4_FN void load_from_block(const void* shared, int rank, uint32_t offset, float (&to)[kCount]) {
#if NVFP4_DEVICE
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared) + offset), "r"(rank));
  static_assert(kCount == 2 || kCount % 4 == 0);
  if constexpr (kCount == 2) {
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(address) : "memory");
  } else {
    NVFP4_UNROLL
    for (int i = 0; i < kCount; i += 4) {
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3])
                   : "r"(address + 4 * i)
                   : "memory");
    }
  }
#else
  (void)shared;
  std::memcpy(to, static_cast<const char*>(host_warp->peers[rank]) + offset, sizeof to);
#endif
}

// 16 bytes from global memory, or 16 zeros without a read.
NVFP4_FN void copy16(void* to, const void* from, bool real) {
#if NVFP4_DEVICE
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0)
               : "memory");
#else
  host_warp->groups.back().push_back({to, real ? from : nullptr});
#endif
}

NVFP4_FN void copies_commit() {
#if NVFP4_DEVICE
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  host_warp->groups.emplace_back();
#endif
}

// All groups of copies of this warp but the last `pending` have arrived.
template <int pending>
NVFP4_FN void copies_wait() {
#if NVFP4_DEVICE
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  __syncwarp();
#else
  auto& groups = host_warp->groups;
  while (groups.size() > pending + 1) {
    for (const HostCopy& copy : groups.front()) {
      copy.from == nullptr ? std::memset(copy.to, 0, 16) : std::memcpy(copy.to, copy.from, 16);
    }
    groups.erase(groups.begin());
  }
#endif
}

}  // namespace nvfp4
