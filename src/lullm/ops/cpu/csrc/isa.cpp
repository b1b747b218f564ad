#include "isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace lullm {
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
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0 || (edx & kAmxInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Isa {
  const char* name;
  bool (*is_available)();
};
constexpr Isa kIsas[] = {
    {"avx2", has_avx2}, {"avx512", has_avx512}, {"avx512_bf16", has_avx512_bf16}, {"amx", has_amx}};
constexpr int kNumIsas = 4;

Kernels table;
const char* selected = "";

void fill_table(int isa) {
  table = Kernels{};
  if (isa == 0) avx2::fill(table);
  if (isa == 1) avx512::fill(table);
  if (isa >= 2) avx512_bf16::fill(table);
  if (isa == 3) amx::fill(table);
}

}  // namespace

const char* available_isas() {
  static char names[64];
  names[0] = 0;
  for (const Isa& isa : kIsas) {
    if (!isa.is_available()) continue;
    if (names[0] != 0) std::strcat(names, ",");
    std::strcat(names, isa.name);
  }
  return names;
}

bool select_isa(const char* name) {
  for (int i = kNumIsas - 1; i >= 0; i--) {
    if ((name != nullptr && std::strcmp(name, kIsas[i].name) != 0) || !kIsas[i].is_available()) continue;
    fill_table(i);
    selected = kIsas[i].name;
    return true;
  }
  return false;
}

const char* selected_isa() { return selected; }
const Kernels& kernels() { return table; }

}  // namespace lullm
