// What a processor does for a program beside arithmetic, by its own instructions: waiting, counting time, fetching ahead.
#pragma once

#include <cstdint>

namespace lullm {
namespace {

// Into the first-level cache, and into the second-level one. Any address will do: what is not mapped is not fetched.
inline void fetch_near(const void* line) { __builtin_prefetch(line, 0, 3); }
inline void fetch_far(const void* line) { __builtin_prefetch(line, 0, 2); }

#if defined(__x86_64__)

// Behind stores past the caches, so that other threads see them before what this one stores next.
inline void finish_streams() { __builtin_ia32_sfence(); }

// A moment in a loop that waits for another thread: tens of cycles, in which a core's second thread has it.
inline void wait_briefly() { __builtin_ia32_pause(); }
// Counts up at a rate of its own, and what 0.1 to 0.2 ms are of it.
inline uint64_t ticks() { return __builtin_ia32_rdtsc(); }
inline uint64_t short_ticks() { return 400000; }

// Are lines fetched faster side by side than far apart, whatever is read meanwhile?
inline bool fetches_in_order() {
  static const bool is_amd = __builtin_cpu_is("amd");
  return is_amd;
}

#elif defined(__aarch64__)

inline void finish_streams() {}  // there are none

// `yield` does nothing on most of these processors; a barrier of instructions takes about as long as x86's pause.
inline void wait_briefly() { asm volatile("isb" ::: "memory"); }
inline uint64_t ticks() {
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
}
inline uint64_t short_ticks() {
  uint64_t per_second;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(per_second));
  return per_second / 6000;
}

inline bool fetches_in_order() { return false; }  // not measured

#endif

}  // namespace
}  // namespace lullm
