// Which instruction set serves: the best the processor has, or a lesser one that was asked for.
#pragma once

#include "kernel_table.h"

namespace lullm {

struct Isa {
  const char* name;
  bool (*is_available)();
  void (*fill)(Kernels&);
};

// Those this library was compiled for, best last; `isa_x86.cpp` or `isa_arm.cpp` has them.
extern const Isa kIsas[];
extern const int kNumIsas;

// The instruction sets this machine and this build offer, best last, separated by commas; empty if there is none.
const char* available_isas();
// Chooses one by name (null: the best). False if it is not available.
bool select_isa(const char* name);
const char* selected_isa();
const Kernels& kernels();

}  // namespace lullm
