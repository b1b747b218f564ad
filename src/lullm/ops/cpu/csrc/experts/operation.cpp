// The operations of a mixture of experts, behind the C interface: rows choose experts, are brought in their order, and
// are multiplied by the matrices of the experts that have rows; others are not read.
//
// One call multiplies by all experts: it cuts (expert, rows, panels) into items, so that threads meet once and not once
// per expert. Each item is the work of a linear layer over a few rows, by the same kernels: a row's bits follow no batch.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "../isa.h"
#include "../kernel_table.h"
#include "../linear_item.h"
#include "../operation.h"
#include "../thread_pool.h"

using namespace lullm;

namespace {

constexpr int64_t kItemBytes = 64 * 1024;
constexpr int64_t kRunBytes = 8 * kItemBytes;   // of a weight, on one thread
constexpr int64_t kCacheBytes = 1280 * 1024;    // of a second-level cache: the rows of a block
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kManyRows = 32;               // from here on panels are multiplied a few at a time

// What a call multiplies: `Args` of one expert, but for its matrix and its rows.
struct Call {
  const void* x;
  const void* const* weights;  // by slot
  const void* const* biases;   // by slot, or null
  char* y;
  const int64_t* starts;       // [num_groups + 1]: the sorted rows of each slot
  const int64_t* rows;         // of x, by sorted row; null: x is sorted itself
  int64_t x_stride, y_stride, num_groups, in;
  int64_t first_out, out;      // of the outputs of each matrix, those that are computed
  int bits;
  Activation activation;
  float alpha, limit;          // of kClampedSilu
  int dtype;

  const void* bias_of(int64_t group) const {
    return biases == nullptr ? nullptr : static_cast<const char*>(biases[group]) + first_out * size_of(dtype);
  }
};

// Some rows of one expert, and the items from `first_item` on that multiply them.
struct Block {
  int64_t group, first_row, num_rows, first_item;
};

const char* row_at(const Call& c, int64_t row) {
  return static_cast<const char*>(c.x) + (c.rows == nullptr ? row : c.rows[row]) * c.x_stride * size_of(c.dtype);
}

// The kernels of weights that are packed, or narrow floats, which find each row where it lies ...
struct PlainKernels {
  using Args = LinearArgs;
  const Kernels& k = kernels();

  static Args args(const Call& c, int64_t group, int64_t num_rows) {
    LinearArgs a = {nullptr, nullptr, c.bias_of(group), nullptr, c.in,  c.y_stride, num_rows,
                    c.in,    c.out,   nullptr, c.activation, false, c.alpha, c.limit, c.bits};
    a.weight = static_cast<const char*>(c.weights[group]) + c.first_out / kPanelRows * panel_bytes_of(a, c.dtype);
    return a;
  }
  static void read_rows(Args& a, const Call& c, const Block& block) {
    a.x_stride = c.x_stride;
    const bool is_one_piece = c.rows == nullptr || block.num_rows == 1;
    a.x = is_one_piece ? row_at(c, block.first_row) : c.x;
    a.rows = is_one_piece ? nullptr : c.rows + block.first_row;
  }
  static int64_t panels(const Args& a, int dtype) { return panels_of(a, dtype); }
  static int64_t tail(const Args& a, int dtype) { return tail_of(a, dtype); }
  static int64_t panel_bytes(const Call& c) { return panel_bytes_of(args(c, 0, 1), c.dtype); }
  static int64_t most_panels(const Args& a) { return kLinearPanels / a.num_sides(); }
  int64_t most_rows(const Args& a, int dtype) const {
    const int64_t step = 2 * k.row_group[dtype](a);
    return std::clamp(kCacheBytes / k.cached_row_bytes[dtype](a) / step * step - 2 * kPanelRows, int64_t{64}, kLinearRows);
  }
  void prepare(Args& a, int dtype) const { prepare_rows_here(a, dtype, 0, a.num_rows); }
  void multiply(const Args& a, int dtype, int64_t first, int64_t last) const {
    multiply_panels(a, dtype, 0, a.num_rows, first, last);
  }
  void multiply_tail(const Args& a, int dtype) const {
    k.linear_tail[dtype](a, 0, a.num_rows, a.out - tail(a, dtype), a.out);
  }
};

// ... and of quantized ones, which want them one after the other.
struct PanelKernels {
  using Args = QuantizedArgs;
  const QuantizedKernels& k = kernels().quantized;

  static Args args(const Call& c, int64_t group, int64_t num_rows) {
    const uint8_t* weight = static_cast<const uint8_t*>(c.weights[group]) + c.first_out / kPanelRows * panel_bytes(c);
    return {nullptr, weight, c.bias_of(group), nullptr, c.in,  c.y_stride, num_rows, c.in,
            c.out,   c.bits, c.activation,     false,   nullptr, c.alpha,    c.limit};
  }
  static void read_rows(Args& a, const Call& c, const Block& block) {
    const int64_t row_bytes = c.in * size_of(c.dtype);
    a.x = row_at(c, block.first_row);
    if (block.num_rows == 1 || (c.rows == nullptr && c.x_stride == c.in)) return;
    char* to = static_cast<char*>(scratch(kGatheredScratch, block.num_rows * row_bytes));
    for (int64_t i = 0; i < block.num_rows; i++) std::memcpy(to + i * row_bytes, row_at(c, block.first_row + i), row_bytes);
    a.x = to;
  }
  static int64_t panels(const Args& a, int) { return a.panels_of_side(); }
  static int64_t tail(const Args&, int) { return 0; }
  static int64_t panel_bytes(const Call& c) { return quantized_panel_bytes(c.bits, c.in); }
  static int64_t most_panels(const Args& a) { return kQuantizedPanels / a.num_sides(); }
  int64_t most_rows(const Args& a, int dtype) const {
    return std::clamp(kCacheBytes / 2 / k.cached_row_bytes[dtype](a) / 32 * 32, int64_t{64}, kQuantizedRows);
  }
  void prepare(Args& a, int dtype) const {
    a.x_prepared = static_cast<char*>(scratch(kSharedScratch, k.prepared_bytes[dtype](a)));
    for (int64_t row = 0; row < a.num_rows; row += kTileRows)
      k.prepare_rows[dtype](a, row, std::min(a.num_rows, row + kTileRows));
  }
  void multiply(const Args& a, int dtype, int64_t first, int64_t last) const {
    const int64_t bytes = k.scratch_bytes[dtype](a);
    void* memory = bytes > 0 ? scratch(kItemScratch, bytes) : nullptr;
    k.multiply_panels[dtype](a, 0, a.num_rows, first, last, memory);
  }
  void multiply_tail(const Args&, int) const {}
};

template <class Product>
void multiply_groups(const Call& c) {
  const Product product;
  std::vector<Block> blocks;
  const auto any = Product::args(c, 0, 1);
  const int64_t panels = Product::panels(any, c.dtype), has_tail = Product::tail(any, c.dtype) > 0;
  for (int64_t group = 0; group < c.num_groups; group++) {
    const int64_t count = c.starts[group + 1] - c.starts[group];
    if (count == 0) continue;
    const int64_t most = product.most_rows(Product::args(c, group, count), c.dtype), parts = (count + most - 1) / most;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t first = c.starts[group] + count * part / parts, last = c.starts[group] + count * (part + 1) / parts;
      blocks.push_back({group, first, last - first, 0});
    }
  }
  if (blocks.empty()) return;
  const int64_t item_bytes = Product::panel_bytes(c) * any.num_sides();
  const int64_t sorted_rows = c.starts[c.num_groups], num_blocks = static_cast<int64_t>(blocks.size());
  const bool are_few = sorted_rows <= kManyRows * num_blocks;
  const int64_t item_panels =
      are_few ? std::max(int64_t{1}, kItemBytes / item_bytes)
              : std::max(int64_t{1}, panels * num_blocks / (kItemsPerThread * get_num_threads()));
  const int64_t columns = (panels + item_panels - 1) / item_panels, block_items = columns + has_tail;
  for (int64_t i = 0; i < num_blocks; i++) blocks[i].first_item = i * block_items;
  // Each thread prepares the rows of a block once, whichever of its items it does.
  static std::atomic<uint64_t> num_calls{0};
  const uint64_t this_call = ++num_calls;
  const int64_t most = are_few ? std::max(int64_t{1}, kRunBytes / (item_panels * item_bytes)) : 1;
  parallel_for_runs(num_blocks * block_items, most, [&](int64_t first, int64_t last) {
    static thread_local struct {
      uint64_t call = 0;
      int64_t block = 0;
      typename Product::Args args;
    } prepared;
    while (first < last) {
      const Block& block = blocks[first / block_items];
      const int64_t begin = first - block.first_item, end = std::min(last - block.first_item, block_items);
      if (prepared.call != this_call || prepared.block != first / block_items) {
        auto a = Product::args(c, block.group, block.num_rows);
        Product::read_rows(a, c, block);
        a.y = c.y + block.first_row * c.y_stride * size_of(c.dtype);
        if (panels > 0) product.prepare(a, c.dtype);
        prepared = {this_call, first / block_items, a};
      }
      const auto& a = prepared.args;
      const int64_t last_panel = std::min(panels, end * item_panels);
      const int64_t step = block.num_rows > kManyRows ? Product::most_panels(a) : panels;
      for (int64_t panel = begin * item_panels; panel < last_panel; panel += step)
        product.multiply(a, c.dtype, panel, std::min(last_panel, panel + step));
      if (end > columns) product.multiply_tail(a, c.dtype);
      first = block.first_item + end;
    }
  });
}

template <class Body>
void for_rows(int64_t count, int64_t bytes, Body&& body) {
  const int64_t size = std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, bytes));
  parallel_for((count + size - 1) / size, [&](int64_t item) { body(item * size, std::min(count, (item + 1) * size)); });
}

}  // namespace

LULLM_EXPORT void lullm_route(const void* products, const float* correction, const float* factors, int64_t* experts,
                              float* shares, int64_t stride, int64_t num_rows, int64_t num_experts, int64_t num_used,
                              int64_t num_groups, int64_t num_used_groups, int64_t num_group_scores, float scale,
                              int is_sigmoid, int normalizes, int dtype) {
  const RouteArgs a = {products,   correction,       factors,          experts, shares,          stride,
                       num_experts, num_used,        num_groups,       num_used_groups, num_group_scores, scale,
                       is_sigmoid != 0, normalizes != 0};
  for_rows(num_rows, 32 * num_experts, [&](int64_t first, int64_t last) {
    kernels().route[dtype](a, first, last, scratch(kItemScratch, a.scratch_bytes()));
  });
}

LULLM_EXPORT int lullm_sort_rows(const int64_t* experts, const int64_t* slots, int64_t* load, int64_t* starts,
                                 int64_t* rows, int64_t* places, int64_t num_rows, int64_t num_used,
                                 int64_t num_experts) {
  const int64_t count = num_rows * num_used;
  std::fill_n(starts, num_experts + 1, 0);
  for (int64_t i = 0; i < count; i++) {
    if (experts[i] < 0 || experts[i] >= num_experts) return 0;
    starts[slots[experts[i]] + 1]++;
  }
  for (int64_t expert = 0; expert < num_experts; expert++) load[expert] += starts[slots[expert] + 1];
  for (int64_t slot = 0; slot < num_experts; slot++) starts[slot + 1] += starts[slot];
  for (int64_t i = 0; i < count; i++) {
    const int64_t place = starts[slots[experts[i]]]++;
    rows[place] = i / num_used;
    places[i] = place;
  }
  for (int64_t slot = num_experts; slot > 0; slot--) starts[slot] = starts[slot - 1];  // they have moved on
  starts[0] = 0;
  return 1;
}

LULLM_EXPORT int lullm_grouped_linear(const void* x, const void* const* weights, const void* const* biases, void* y,
                                      const int64_t* starts, const int64_t* rows, int64_t x_stride, int64_t y_stride,
                                      int64_t num_groups, int64_t in, int64_t first_out, int64_t out, int bits,
                                      int activation, float alpha, float limit, int dtype) {
  if (activation != kNoActivation && (out % (2 * kPanelRows) != 0 || (bits == kPacked && num_panels(out, in, dtype) == 0)))
    return 0;
  const Call c = {x,         weights,  biases,     static_cast<char*>(y), starts,    rows,
                  x_stride,  y_stride, num_groups, in,                    first_out, out,
                  bits,      static_cast<Activation>(activation), alpha, limit, dtype};
  if (bits == kPacked || is_narrow(bits)) multiply_groups<PlainKernels>(c);
  else multiply_groups<PanelKernels>(c);
  return 1;
}

LULLM_EXPORT void lullm_clamped_gate(const void* x, void* y, int64_t num_rows, int64_t size, float alpha, float limit,
                                     int dtype) {
  const ClampedGateArgs a = {x, y, size, alpha, limit};
  for_rows(num_rows, 6 * size * size_of(dtype),
           [&](int64_t first, int64_t last) { kernels().clamped_gate[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_mix(const void* parts, const int64_t* places, const float* shares, const void* shared,
                            const void* shared_gate, void* y, const int64_t* first_place, const int64_t* last_place,
                            int64_t stride, int64_t num_rows, int64_t size, int64_t num_used, int dtype) {
  const MixArgs a = {parts,  places, shares,   shared,       shared_gate, y,
                     stride, size,   num_used, *first_place, *last_place};
  for_rows(num_rows, (num_used + 2) * size * size_of(dtype),
           [&](int64_t first, int64_t last) { kernels().mix[dtype](a, first, last); });
}
