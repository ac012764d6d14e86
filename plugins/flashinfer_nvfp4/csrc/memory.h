// Loads and stores of several bytes at once; addresses are multiples of the size.
#pragma once

#include <cstring>

#include "platform.h"

namespace nvfp4 {

template <int kCount>
struct alignas(4 * kCount) Words {
  uint32_t word[kCount];
};

struct alignas(8) Pair {
  float low, high;
};

template <typename T>
NVFP4_FN T load_as(const void* from) {
#if NVFP4_DEVICE
  return *static_cast<const T*>(from);
#else
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
#endif
}

template <typename T>
NVFP4_FN void store_as(void* to, const T& value) {
#if NVFP4_DEVICE
  *static_cast<T*>(to) = value;
#else
  std::memcpy(to, &value, sizeof value);
#endif
}

}  // namespace nvfp4
