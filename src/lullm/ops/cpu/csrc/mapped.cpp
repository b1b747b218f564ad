// Rows of weights in mapped files: who reads them, and how they come to their places.

#include "mapped.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "isa.h"
#include "linear_item.h"
#include "operation.h"
#include "thread_pool.h"

using namespace lullm;

namespace {

constexpr int64_t kRunBytes = 2 * 1024 * 1024;  // that one thread settles at a time: of a huge page, which one should touch

struct Mapped {
  char* place;
  const char* source;
  int64_t panel_bytes, num_panels, num_units;
  std::unique_ptr<std::atomic<bool>[]> is_packed;  // by panel
  std::atomic<int64_t> next{0};                    // panel to settle
};

struct Registry {
  std::shared_mutex mutex;
  std::map<const char*, Mapped> by_place;
  std::atomic<bool> is_empty{true};
};

Registry& registry() {
  static Registry& kept = *new Registry;  // never destroyed: a thread may settle until the process ends
  return kept;
}

Mapped* find(const void* address) {
  Registry& all = registry();
  if (all.is_empty.load(std::memory_order_relaxed)) return nullptr;
  const char* at = static_cast<const char*>(address);
  const std::shared_lock lock(all.mutex);
  auto after = all.by_place.upper_bound(at);
  if (after == all.by_place.begin()) return nullptr;
  Mapped& found = std::prev(after)->second;
  return at < found.place + found.num_panels * found.panel_bytes ? &found : nullptr;
}

void settle(Mapped& mapped, int64_t panel) {
  char* place = mapped.place + panel * mapped.panel_bytes;
  kernels().pack_panel(mapped.source + panel * mapped.panel_bytes, mapped.num_units, place);
  mapped.is_packed[panel].store(true, std::memory_order_release);
}

}  // namespace

const char* lullm::mapped_rows(const void* place) {
  const Mapped* mapped = find(place);
  if (mapped == nullptr) return nullptr;
  const int64_t offset = static_cast<const char*>(place) - mapped->place;
  return mapped->is_packed[offset / mapped->panel_bytes].load(std::memory_order_acquire) ? nullptr : mapped->source + offset;
}

bool lullm::multiply_mapped(const LinearArgs& a, int dtype, int64_t first_row, int64_t last_row, int64_t first_panel,
                            int64_t last_panel) {
  const int64_t size = size_of(dtype), panel_bytes = kPanelRows * a.in * size, sides = a.num_sides();
  const char* weight = static_cast<const char*>(a.weight);
  const auto place_of = [&](int64_t panel, int64_t side) {
    return weight + (panel + side * (a.out_of_side() / kPanelRows)) * panel_bytes;
  };
  const auto is_mapped = [&](int64_t panel) {
    return mapped_rows(place_of(panel, 0)) != nullptr || mapped_rows(place_of(panel, sides - 1)) != nullptr;
  };
  if (is_narrow(a.format) || find(a.weight) == nullptr) return false;
  int64_t first_mapped = first_panel;
  while (first_mapped < last_panel && !is_mapped(first_mapped)) first_mapped++;
  if (first_mapped == last_panel) return false;
  const int64_t bias_bytes = kPanelRows * size;
  char* packed = static_cast<char*>(scratch(kPartialScratch, sides * (panel_bytes + bias_bytes)));
  LinearArgs one = a;
  one.weight = packed, one.out = sides * kPanelRows;
  if (a.bias != nullptr) one.bias = packed + sides * panel_bytes;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    for (int64_t side = 0; side < sides; side++) {
      const char *place = place_of(panel, side), *rows = mapped_rows(place);
      char* to = packed + side * panel_bytes;
      if (rows == nullptr) std::memcpy(to, place, panel_bytes);
      else kernels().pack_panel(rows, units_of(a.in, dtype), to);
      const int64_t first_out = side * a.out_of_side() + panel * kPanelRows;
      if (a.bias != nullptr)
        std::memcpy(packed + sides * panel_bytes + side * bias_bytes, static_cast<const char*>(a.bias) + first_out * size, bias_bytes);
    }
    one.y = static_cast<char*>(a.y) + panel * kPanelRows * (a.y_is_float ? 4 : size);
    multiply_panels(one, dtype, first_row, last_row, 0, 1);
  }
  return true;
}

// `num_rows` rows, whole panels, whose place is the weight's at `place`, and which lie at `source` until then.
LULLM_EXPORT void lullm_map_rows(char* place, const char* source, int64_t num_rows, int64_t in, int dtype) {
  Registry& all = registry();
  const int64_t panels = num_panels(num_rows, in, dtype);
  const std::unique_lock lock(all.mutex);
  Mapped& mapped = all.by_place[place];
  mapped.place = place, mapped.source = source;
  mapped.panel_bytes = kPanelRows * in * size_of(dtype), mapped.num_panels = panels, mapped.num_units = units_of(in, dtype);
  mapped.is_packed.reset(new std::atomic<bool>[panels]());
  mapped.next = 0;
  all.is_empty = false;
}

// Settles the rows of this place, on all threads or on this one, for as long as `goes_on` is not 0.
LULLM_EXPORT void lullm_settle_rows(const char* place, const std::atomic<int>* goes_on, int on_all_threads) {
  Mapped* mapped = find(place);
  if (mapped == nullptr) return;
  const int64_t run = std::max<int64_t>(1, kRunBytes / mapped->panel_bytes);
  const auto settle_runs = [&](int64_t) {
    while (goes_on->load(std::memory_order_relaxed) != 0) {
      const int64_t first = mapped->next.fetch_add(run), last = std::min(mapped->num_panels, first + run);
      if (first >= last) return;
      for (int64_t panel = first; panel < last; panel++) settle(*mapped, panel);
    }
  };
  if (on_all_threads) parallel_for(get_num_threads(), settle_runs);
  else settle_runs(0);
}

// Forgets the rows of this place: they are settled, or nobody reads them any more. Not while one of them is read.
LULLM_EXPORT void lullm_forget_rows(const char* place) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  all.by_place.erase(place);
  all.is_empty = all.by_place.empty();
}
