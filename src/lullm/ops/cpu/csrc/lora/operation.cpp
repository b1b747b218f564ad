// Adapters of a linear layer in one call: rows with the same adapter are a group, and each of the two products of all groups
// is cut into items for the thread pool. Rows without an adapter are not touched.

#include <algorithm>
#include <vector>

#include "../isa.h"
#include "../kernel_table.h"
#include "arguments.h"
#include "../operation.h"
#include "../thread_pool.h"

using namespace lullm;

namespace {

// Rows and outputs of an item of either product, at most. The first one's are dot products as long as a row.
constexpr int64_t kInnerRows = 16, kInnerOuts = 8;
constexpr int64_t kOuterRows = 64, kOuterOuts = 512;

struct Item {
  int64_t place, part, first_row, last_row, first_out, last_out;  // rows in the order of the groups
};

// Cuts rows and outputs of a part of a group into items.
void cut(std::vector<Item>& items, Item whole, int64_t num_rows, int64_t num_outs) {
  for (int64_t row = whole.first_row; row < whole.last_row; row += num_rows)
    for (int64_t out = whole.first_out; out < whole.last_out; out += num_outs)
      items.push_back({whole.place, whole.part, row, std::min(whole.last_row, row + num_rows), out,
                       std::min(whole.last_out, out + num_outs)});
}

}  // namespace

LULLM_EXPORT void lullm_add_lora(const void* x, void* y, const int64_t* places, const void* a, const void* b,
                                 const int64_t* ranks, const int64_t* part_sizes, int64_t x_stride, int64_t y_stride,
                                 int64_t num_rows, int64_t in, int64_t out, int64_t num_places, int64_t num_parts,
                                 int64_t max_rank, int dtype) {
  static thread_local std::vector<int64_t> rows;
  static thread_local std::vector<Item> inner_items, outer_items;
  rows.clear(), inner_items.clear(), outer_items.clear();
  for (int64_t place = 0; place < num_places; place++) {
    const int64_t first = static_cast<int64_t>(rows.size());
    for (int64_t row = 0; row < num_rows; row++)
      if (places[row] == place) rows.push_back(row);
    const int64_t last = static_cast<int64_t>(rows.size());
    int64_t first_out = 0;
    for (int64_t part = 0; first < last && part < num_parts; first_out += part_sizes[part++]) {
      const int64_t rank = ranks[place * num_parts + part];
      if (rank == 0) continue;
      cut(inner_items, {place, part, first, last, 0, rank}, kInnerRows, kInnerOuts);
      cut(outer_items, {place, part, first, last, first_out, first_out + part_sizes[part]}, kOuterRows, kOuterOuts);
    }
  }
  if (inner_items.empty()) return;
  const Kernels& k = kernels();
  const LoraArgs args = {x, y, a, b, ranks, x_stride, y_stride, in, out, num_parts, max_rank};
  const int64_t width = num_parts * max_rank;
  float* inner = static_cast<float*>(scratch(kSharedScratch, static_cast<int64_t>(rows.size()) * width * 4));
  // Threads see these by reference: thread-local names would mean their own.
  const std::vector<int64_t>& sorted = rows;
  const std::vector<Item>&firsts = inner_items, &seconds = outer_items;
  parallel_for(static_cast<int64_t>(firsts.size()), [&](int64_t number) {
    const Item& item = firsts[number];
    const LoraGroup group = {sorted.data(), inner, item.place};
    k.lora_inner[dtype](args, group, item.part, item.first_row, item.last_row, item.first_out, item.last_out);
  });
  parallel_for(static_cast<int64_t>(seconds.size()), [&](int64_t number) {
    const Item& item = seconds[number];
    const LoraGroup group = {sorted.data(), inner, item.place};
    k.lora_outer[dtype](args, group, item.part, item.first_row, item.last_row, item.first_out, item.last_out);
  });
}
