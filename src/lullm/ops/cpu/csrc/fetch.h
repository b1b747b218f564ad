// fetch_paced: fetching weights from memory beside other loads, at the pace at which memory gives them.
#pragma once

#include "processor.h"

namespace lullm {
namespace amx {

// Fetches `count` cache lines from `at` into the second-level cache, and with kBehind also those that lie so many bytes
// behind them into the first; returns where the next ones begin.
//
// A core can wait for a few lines at a time only. A burst of fetches takes all places, and loads of tiles then queue
// behind them while memory is idle later: 8 rows read 26 GB/s. So each fetch gets its address from a multiplication
// after the one before, three cycles apart: 30 GB/s, as fast as one row.
template <int64_t kBehind = 0>
inline const char* fetch_paced(const char* at, int64_t count) {
  int64_t one = 1;
  asm volatile("" : "+r"(one));
#pragma GCC unroll 1
  for (; count > 0; count--) {
    fetch_far(at);
    if (kBehind > 0) fetch_near(at - kBehind);
    at += 64;
    asm volatile("imulq %1, %0" : "+r"(at) : "r"(one) : "cc");
  }
  return at;
}

}  // namespace amx
}  // namespace lullm
