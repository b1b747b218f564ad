#include "isa.h"

#include <cstring>

namespace lullm {
namespace {

Kernels table;
const char* selected = "";

}  // namespace

const char* available_isas() {
  static char names[64];
  names[0] = 0;
  for (int i = 0; i < kNumIsas; i++) {
    if (!kIsas[i].is_available()) continue;
    if (names[0] != 0) std::strcat(names, ",");
    std::strcat(names, kIsas[i].name);
  }
  return names;
}

bool select_isa(const char* name) {
  for (int i = kNumIsas - 1; i >= 0; i--) {
    if ((name != nullptr && std::strcmp(name, kIsas[i].name) != 0) || !kIsas[i].is_available()) continue;
    table = Kernels{};
    kIsas[i].fill(table);
    selected = kIsas[i].name;
    return true;
  }
  return false;
}

const char* selected_isa() { return selected; }
const Kernels& kernels() { return table; }

}  // namespace lullm
