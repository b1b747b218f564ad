// The instruction sets of x86-64.

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "isa.h"

namespace lullm {

namespace avx2 { void fill(Kernels&); }
namespace avx512 { void fill(Kernels&); }
namespace avx512_bf16 { void fill(Kernels&); }
namespace amx { void fill(Kernels&); }  // only what it does better than avx512_bf16

namespace {

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"); }

// The tiles are 8 KiB of state per thread, so the kernel wants to be asked (Documentation/arch/x86/xstate.rst).
bool has_amx() {
  unsigned eax, ebx, ecx, edx;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kVbmi = 1u << 1, kFp16 = 1u << 23, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kAll = kFp16 | kAmxBf16 | kAmxTile | kAmxInt8;
  if ((ecx & kVbmi) == 0 || (edx & kAll) != kAll) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void fill_amx(Kernels& kernels) {
  avx512_bf16::fill(kernels);
  amx::fill(kernels);
}

}  // namespace

const Isa kIsas[] = {{"avx2", has_avx2, avx2::fill},
                     {"avx512", has_avx512, avx512::fill},
                     {"avx512_bf16", has_avx512_bf16, avx512_bf16::fill},
                     {"amx", has_amx, fill_amx}};
const int kNumIsas = 4;

}  // namespace lullm
