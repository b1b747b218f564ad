// Linear layers with AMX: the packed weights are second operands as they lie; the activations are packed into first ones.
//
// Two by two tiles of results at a time, so that every tile that is loaded is used twice. The rows of an item stay in the
// second-level cache. From there alone two cores reach 2.3 TFLOP/s, the width of its port: so the depth is cut into
// blocks whose part of a panel, 32 KiB, stays in the first level while all rows pass over it, and the rows are loaded as
// what is not needed again. That way they reach 4.5, of the 6.0 that products without loads reach.

#include <algorithm>

#include "activation.h"
#include "fetch.h"
#include "flush_denormals.h"
#include "kernel_table.h"
#include "narrow/expand.h"
#include "narrow/narrow.h"
#include "simd.h"
#include "tile.h"

namespace lullm {
namespace amx {

void fill_attention(Kernels&);
void fill_state(Kernels&);
void fill_quantized(Kernels&);
void fill_grid(Kernels&, const QuantizedKernels& of_vectors);

namespace {

using namespace avx512_bf16;

// How far ahead of the reading a panel is fetched from memory, and from the second-level cache into the first.
constexpr int64_t kFarBytes = 8192;
constexpr int64_t kNearBytes = 4096;
constexpr int64_t kPairsFarBytes = 4096;  // where two pairs of row tiles follow: a page, more and less are slower
constexpr int64_t kRowNearBytes = 2048;  // the same for one row
constexpr int64_t kLinesPerStep = 32;  // cache lines of a panel that one step of the depth reads
constexpr int64_t kMostShare = 10;     // lines a step that pairs of row tiles may have to share: three pairs or more do so
constexpr int64_t kManyPairs = 6;      // and from here on they fetch only so many of what follows
constexpr int64_t kMostLines = 4;      // per step, one in a quarter of it: bursts hold tiles up
constexpr int64_t kBlockSteps = 16;    // of the depth, where several pairs of row tiles share a block,
constexpr int64_t kTwoBlockSteps = 4;  // where they are two: while the second passes nothing is fetched
constexpr int64_t kFewBlockSteps = 8;  // where they are fewer than kManyPairs: memory limits those, more blocks do not
constexpr int64_t kChunkSteps = 16;    // and of a chunk, where
constexpr int64_t kWholeSteps = 32;    // the depth is more than this
constexpr int64_t kWholeBytes = 640 * 1024;  // and the rows are: else their panels are read whole
constexpr int64_t kNarrowSteps = 8;    // of narrow floats that are expanded at a time where one or two row tiles follow

// x as [ceil(num_rows / 16)][in / 32][16][32].
int64_t prepared_bytes(const LinearArgs& a) { return a.num_rows < 2 ? 0 : (a.num_rows + 15) / 16 * 16 * a.in * 2; }

void prepare_rows(const LinearArgs& a, int64_t first, int64_t last) {  // `first` is a multiple of 16
  char* to = static_cast<char*>(a.x_prepared) + first * a.in * 2;
  for (int64_t row = first; row < first + 16; row++, to += 64) {
    if (row < last) {
      const char* x = reinterpret_cast<const char*>(static_cast<const Bf16*>(a.x) + a.offset_of(row));
      for (int64_t tile = 0; tile < a.in / kTileDepth; tile++)
        _mm512_store_si512(to + tile * kTileBytes, _mm512_loadu_si512(x + tile * 64));
    } else {
      for (int64_t tile = 0; tile < a.in / kTileDepth; tile++) _mm512_store_si512(to + tile * kTileBytes, _mm512_setzero_si512());
    }
  }
}

// Sums of two row tiles times a panel as they lie between the blocks of the depth: [32][32] float.
constexpr int64_t kImage = kPanelRows * kPanelRows;

// Results on their way from an image (two with an activation) to y. They are stored a row at a time between the next
// products, because a burst of stores to so many pages would stall.
class Results {
 public:
  explicit Results(const LinearArgs& a) : a_(a), may_stream_(may_stream(a.y, a.y_stride * (a.y_is_float ? 4 : 2), a.num_rows)) {}

  // `sums` is the image of the rows; behind it lies that of the up panel.
  void take(const float* sums, int64_t first_row, int64_t last_row, int64_t panel) {
    while (row_ < last_row_) store_row();
    sums_ = sums, row_ = first_row, last_row_ = last_row, panel_ = panel;
    for (V& bias : bias_) bias = zero();
    if (a_.bias == nullptr) return;
    for (int64_t i = 0; i < 2 * a_.num_sides(); i++)
      bias_[i] = load(static_cast<const Bf16*>(a_.bias) + i / 2 * a_.out_of_side() + panel * kPanelRows + i % 2 * 16);
  }

  void store_rows(int64_t count) {
    for (; count > 0 && row_ < last_row_; count--) store_row();
  }

 private:
  void store_row() {
    const int64_t at = row_ * a_.y_stride + panel_ * kPanelRows;
    V low = add(load(sums_), bias_[0]), high = add(load(sums_ + 16), bias_[1]);
    if (a_.num_sides() == 2) {
      low = gate(a_, low, add(load(sums_ + kImage), bias_[2]));
      high = gate(a_, high, add(load(sums_ + kImage + 16), bias_[3]));
    }
    if (a_.y_is_float) {
      store_line(static_cast<float*>(a_.y) + at, (__m512i)low);
      store_line(static_cast<float*>(a_.y) + at + kTileRows, (__m512i)high);
    } else {
      store_line(static_cast<Bf16*>(a_.y) + at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    sums_ += kPanelRows;
    row_++;
  }

  void store_line(void* to, __m512i line) {
    if (may_stream_) _mm512_stream_si512(static_cast<__m512i*>(to), line);
    else _mm512_storeu_si512(to, line);
  }

  const LinearArgs& a_;
  const float* sums_ = nullptr;
  int64_t row_ = 0, last_row_ = 0, panel_ = 0;
  const bool may_stream_;
  V bias_[4];  // of a panel's two tiles, and of its partner's
};

constexpr int64_t kSumsBytes = kLinearRows / 32 * kLinearPanels * kImage * 4;

// Adds two row tiles (or one) times `steps` steps of a panel to an image, or starts it. From `ahead` it fetches, with
// kReads, what it will read itself, otherwise `lines` cache lines per step.
template <bool kTwo, bool kReads>
inline void multiply(const char* x0, const char* x1, const char* w, int64_t steps, const char* ahead, int64_t lines,
                     float* sums, bool is_first, Results& results) {
  constexpr int64_t kStride = kPanelRows * 4;
  if (is_first) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, sums, kStride);
    TILE_LOAD(1, sums + 16, kStride);
    if (kTwo) {
      TILE_LOAD(2, sums + 16 * kPanelRows, kStride);
      TILE_LOAD(3, sums + 16 * kPanelRows + 16, kStride);
    }
  }
  const int64_t rows_per_step = (32 + steps - 1) / steps;
  for (int64_t i = 0; i < steps; i++, x0 += kTileBytes, x1 += kTileBytes, w += 2 * kTileBytes) {
    const auto fetch = [&](int64_t quarter) {
      if constexpr (kReads) {
        ahead = fetch_paced<kTwo ? 0 : kFarBytes - kNearBytes>(ahead, kLinesPerStep / 4);
      } else if (lines <= 4) {
        if (quarter < lines) {
          _mm_prefetch(ahead, _MM_HINT_T1);
          ahead += 64;
        }
      } else {
        ahead = fetch_paced(ahead, (lines + quarter) / 4);
      }
    };
    fetch(0);
    TILE_LOAD(6, w, 64);
    if (!kTwo) fetch(1);
    TILE_LOAD_ONCE(4, x0, 64);
    TILE_MULTIPLY(0, 4, 6);
    if (!kTwo) fetch(2);
    TILE_LOAD(7, w + kTileBytes, 64);
    TILE_MULTIPLY(1, 4, 7);
    if (kTwo) {
      fetch(1);
      TILE_LOAD_ONCE(5, x1, 64);
      fetch(2);
      TILE_MULTIPLY(2, 5, 6);
      fetch(3);
      TILE_MULTIPLY(3, 5, 7);
    } else {
      fetch(3);
    }
    results.store_rows(rows_per_step);
  }
  TILE_STORE(sums, kStride, 0);
  TILE_STORE(sums + 16, kStride, 1);
  if (kTwo) {
    TILE_STORE(sums + 16 * kPanelRows, kStride, 2);
    TILE_STORE(sums + 16 * kPanelRows + 16, kStride, 3);
  }
}

// One row times 32 rows of a weight, to sums [32]. A single row is a matter of reading, where vectors are as good; they
// follow the order of a tile's product, so that a row has the same bits in any batch. TDPBF16PS (Intel SDM, volume 2) sums
// the first inputs of 16 pairs from zero with fused products, and the second ones, adds the two, and then that to the sum.
void multiply_row(const Bf16* x, const char* w, int64_t depth, float* sums, bool is_first = true) {
  V totals[2] = {is_first ? zero() : load(sums), is_first ? zero() : load(sums + kTileRows)};
  for (int64_t step = 0; step < depth; step++, w += 2 * kTileBytes, x += kTileDepth) {
    V firsts[2] = {zero(), zero()}, seconds[2] = {zero(), zero()};
    for (int unit = 0; unit < kTileUnits; unit++) {
      const V first = set1(to_float(x[2 * unit])), second = set1(to_float(x[2 * unit + 1]));
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        const char* line = w + tile * kTileBytes + unit * 64;
        _mm_prefetch(line + kFarBytes, _MM_HINT_T1);
        _mm_prefetch(line + kRowNearBytes, _MM_HINT_T0);
        firsts[tile] = fma(even(reinterpret_cast<const Bf16*>(line)), first, firsts[tile]);
        seconds[tile] = fma(odd(reinterpret_cast<const Bf16*>(line)), second, seconds[tile]);
      }
    }
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) totals[tile] = add(totals[tile], add(firsts[tile], seconds[tile]));
  }
  store(sums, totals[0]);
  store(sums + kTileRows, totals[1]);
}

void multiply_narrow_row(const LinearArgs& a, const char* panel, float* sums, void* expanded) {
  for (int64_t step = 0; step < a.in / kTileDepth; step += kNarrowSteps) {
    const int64_t steps = std::min(kNarrowSteps, a.in / kTileDepth - step);
    expand_narrow(reinterpret_cast<const uint8_t*>(panel), a.format, a.in, step, steps, static_cast<Bf16*>(expanded));
    multiply_row(static_cast<const Bf16*>(a.x) + step * kTileDepth, static_cast<const char*>(expanded), steps, sums, step == 0);
  }
}

void linear_panels_of_one_row(const LinearArgs& a, int64_t first_panel, int64_t last_panel, Results& results, float* sums) {
  const int64_t panel_bytes = is_narrow(a.format) ? narrow_panel_bytes(a.format, a.in) : kPanelRows * a.in * 2;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    for (int64_t side = 0; side < a.num_sides(); side++) {
      const int64_t of_side = panel + side * (a.out_of_side() / kPanelRows);
      const char* w = static_cast<const char*>(a.weight) + of_side * panel_bytes;
      if (is_narrow(a.format)) multiply_narrow_row(a, w, sums + side * kImage, sums + 2 * kImage);
      else multiply_row(static_cast<const Bf16*>(a.x), w, a.in / kTileDepth, sums + side * kImage);
    }
    results.take(sums, 0, 1, panel);
    results.store_rows(1);
  }
}

// The depth is done in chunks, over all panels of the item, so that what the rows take of the cache does not grow with
// it; the sums of all panels wait there meanwhile. A chunk is done in blocks, over all pairs of row tiles.
//
// Where pairs are many, each fetches its share of what follows; only the first to pass over the first panel reads it from
// memory, and fetches a little ahead of its reading. Where they are few, the first of them always does.
void linear_panels(const LinearArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   void* scratch) {
  const FlushDenormals flush;
  Results results(a);
  if (a.num_rows == 1)
    return linear_panels_of_one_row(a, first_panel, last_panel, results, static_cast<float*>(scratch));
  TileSession session;
  const bool widens = is_narrow(a.format);
  const int64_t depth = a.in / kTileDepth, row_tile_bytes = 16 * a.in * 2;
  const int64_t panel_bytes = widens ? narrow_panel_bytes(a.format, a.in) : kPanelRows * a.in * 2;
  const int64_t num_pairs = (last_row - first_row + 31) / 32, share = kLinesPerStep / num_pairs;
  const int64_t most_lines = num_pairs < kManyPairs ? kMostShare : kMostLines;
  const int64_t lines = share > kMostShare || widens ? 0 : std::min(share, most_lines);
  const int64_t sides = a.num_sides(), side_panels = a.out_of_side() / kPanelRows;  // from a gate panel to its up panel
  char* expanded = static_cast<char*>(scratch) + kSumsBytes;
  const bool is_chunked = num_pairs > 1 && depth > kWholeSteps && (last_row - first_row) * a.in * 2 > kWholeBytes;
  const int64_t block = num_pairs >= kManyPairs           ? kBlockSteps
                        : num_pairs == 2 && !widens       ? kTwoBlockSteps
                        : num_pairs > 1                   ? kFewBlockSteps
                        : widens                          ? kNarrowSteps
                                                          : depth;
  const int64_t chunk = is_chunked ? kChunkSteps : depth, far = num_pairs == 2 ? kPairsFarBytes : kFarBytes;
  for (int64_t begin = 0; begin < depth; begin += chunk) {
    const int64_t end_step = begin + chunk < depth ? begin + chunk : depth;
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
      float* panel_sums = static_cast<float*>(scratch) + (is_chunked ? panel - first_panel : 0) * num_pairs * sides * kImage;
      for (int64_t side = 0; side < sides; side++) {
        const char* weight = static_cast<const char*>(a.weight);
        const char* w = weight + (panel + side * side_panels) * panel_bytes;
        const char* next = weight + begin * 2 * kTileBytes +  // the same chunk of the next, or the next chunk of the first
                           (side + 1 < sides ? panel + side_panels : panel + 1) * panel_bytes;
        if (side + 1 == sides && panel + 1 == last_panel && end_step < depth)
          next = weight + end_step * 2 * kTileBytes + first_panel * panel_bytes;
        for (int64_t step = begin; step < end_step; step += block) {
          const int64_t steps = end_step - step < block ? end_step - step : block;
          if (widens)
            expand_narrow(reinterpret_cast<const uint8_t*>(w), a.format, a.in, step, steps, reinterpret_cast<Bf16*>(expanded));
          const char* from = widens ? expanded : w + step * 2 * kTileBytes;
          const bool has_reader = !widens && (share > kMostShare || (panel == first_panel && side == 0 && step == 0));
          const bool is_first = step == 0, is_last = side + 1 == sides && step + steps == depth;
          const char* x0 = static_cast<const char*>(a.x_prepared) + first_row / 16 * row_tile_bytes + step * kTileBytes;
          const char* ahead = next + (step - begin) * num_pairs * lines * 64;
          float* sums = panel_sums + side * kImage;
          for (int64_t row = first_row; row < last_row; row += 32) {
            const char* x1 = x0 + row_tile_bytes;
            const bool is_two = last_row - row > 16;
            if (has_reader && row == first_row) {
              if (is_two) multiply<true, true>(x0, x1, from, steps, from + far, lines, sums, is_first, results);
              else multiply<false, true>(x0, x0, from, steps, from + far, lines, sums, is_first, results);
            } else {
              if (is_two) multiply<true, false>(x0, x1, from, steps, ahead, lines, sums, is_first, results);
              else multiply<false, false>(x0, x0, from, steps, ahead, lines, sums, is_first, results);
            }
            if (is_last) results.take(sums - side * kImage, row, std::min(row + 32, last_row), panel);
            x0 += 2 * row_tile_bytes, sums += sides * kImage, ahead += steps * lines * 64;
          }
        }
      }
    }
  }
  results.store_rows(32);
}

// Numbers from the first-level cache, each tile used twice as above: registers of zeros reach 1.8 times as much, which
// take less power, and registers of numbers 1.4 times.
int64_t spin_products(int64_t rounds) {
  constexpr int64_t kSets = 4;
  alignas(64) uint16_t numbers[kSets][4][kTileBytes / 2];
  uint32_t state = 1;
  for (auto& set : numbers)
    for (auto& tile : set)
      for (uint16_t& number : tile) {
        state = state * 1664525u + 1013904223u;
        number = static_cast<uint16_t>((state >> 16 & 0x80ff) | 0x3f00);  // either sign, 0.5 to 2, all digits
      }
  TileSession session;
  for (int64_t i = 0; i < rounds; i++) {
    const auto& set = numbers[i % kSets];
    if (i % kBlockSteps == 0) {
      TILE_ZERO(0);
      TILE_ZERO(1);
      TILE_ZERO(2);
      TILE_ZERO(3);
    }
    TILE_LOAD(6, set[0], 64);
    TILE_LOAD(4, set[1], 64);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(7, set[2], 64);
    TILE_MULTIPLY(1, 4, 7);
    TILE_LOAD(5, set[3], 64);
    TILE_MULTIPLY(2, 5, 6);
    TILE_MULTIPLY(3, 5, 7);
  }
  return rounds * 4 * kTileRows * kTileRows * kTileDepth * 2;
}

}  // namespace

void fill(Kernels& kernels) {
  kernels.prepared_bytes[kBFloat16] = prepared_bytes;
  kernels.prepare_rows[kBFloat16] = prepare_rows;
  kernels.linear_panels[kBFloat16] = linear_panels;
  kernels.linear_scratch_bytes[kBFloat16] = kSumsBytes + kBlockSteps * 2 * kTileBytes;
  kernels.row_group[kBFloat16] = [](const LinearArgs&) -> int64_t { return kTileRows; };
  kernels.cached_row_bytes[kBFloat16] = [](const LinearArgs& a) { return (a.in < kWholeSteps * kTileDepth ? a.in : kWholeSteps * kTileDepth) * 2; };
  kernels.spin_products[kBFloat16] = spin_products;
  fill_attention(kernels);
  fill_state(kernels);
  const QuantizedKernels of_vectors = kernels.quantized;
  fill_quantized(kernels);
  fill_grid(kernels, of_vectors);
}

}  // namespace amx
}  // namespace lullm
