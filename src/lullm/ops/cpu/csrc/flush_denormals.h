// FlushDenormals: while it lives, and if it is asked to, denormal operands and results of this thread's vectors are
// zero, as they always are in products of bf16 by VDPBF16PS and by AMX.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lullm {
namespace {

class FlushDenormals {
 public:
  explicit FlushDenormals(bool is_wanted = true) : before_(_mm_getcsr()) {
    constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
    set(is_wanted ? before_ | kFlushToZero | kDenormalsAreZero : before_);
  }
  ~FlushDenormals() { set(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static void set(uint32_t state) { asm volatile("ldmxcsr %0" ::"m"(state) : "memory"); }

  uint32_t before_;
};

}  // namespace
}  // namespace lullm
