// FlushDenormals: while it lives, and if it is asked to, denormal operands and results of this thread's vectors are
// zero, as they always are in dot products of bf16 and in AMX's.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lullm {
namespace {

// The register that says how this thread computes.
#if defined(__x86_64__)
constexpr uint64_t kFlushing = 0x8040;  // of results and of operands
inline uint64_t float_control() { return _mm_getcsr(); }
inline void set_float_control(uint64_t state) {
  const uint32_t word = static_cast<uint32_t>(state);
  asm volatile("ldmxcsr %0" ::"m"(word) : "memory");
}
#elif defined(__aarch64__)
constexpr uint64_t kFlushing = 1 << 24;  // FZ: both
inline uint64_t float_control() {
  uint64_t state;
  asm volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
inline void set_float_control(uint64_t state) { asm volatile("msr fpcr, %0" ::"r"(state) : "memory"); }
#endif

class FlushDenormals {
 public:
  explicit FlushDenormals(bool is_wanted = true) : before_(float_control()) {
    set_float_control(is_wanted ? before_ | kFlushing : before_);
  }
  ~FlushDenormals() { set_float_control(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t before_;
};

}  // namespace
}  // namespace lullm
