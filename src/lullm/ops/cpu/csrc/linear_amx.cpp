// Linear layers with AMX: the packed weights are second operands as they lie; the activations are packed into first ones.
//
// Two by two tiles of results at a time, so that every tile that is loaded is used twice; the rows of an item and a panel
// stay in the second-level cache.

#include "kernel_table.h"
#include "simd.h"
#include "tile.h"

namespace lullm {
namespace amx {

void fill_attention(Kernels&);


namespace {

// That of the set below: a single row is a matter of reading, where vectors are as good.
void (*linear_panels_of_one_row)(const LinearArgs&, int64_t, int64_t, int64_t, int64_t, void*) = nullptr;

constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kLinesPerStep = 32;  // cache lines of a panel that one step of the depth reads

// x as [ceil(num_rows / 16)][in / 32][16][32].
int64_t prepared_bytes(const LinearArgs& a) { return a.num_rows < 2 ? 0 : (a.num_rows + 15) / 16 * 16 * a.in * 2; }

void prepare_rows(const LinearArgs& a, int64_t first, int64_t last) {  // `first` is a multiple of 16
  char* to = static_cast<char*>(a.x_prepared) + first * a.in * 2;
  for (int64_t row = first; row < first + 16; row++, to += 64) {
    if (row < last) {
      const char* x = reinterpret_cast<const char*>(static_cast<const Bf16*>(a.x) + row * a.x_stride);
      for (int64_t tile = 0; tile < a.in / kTileDepth; tile++)
        _mm512_store_si512(to + tile * kTileBytes, _mm512_loadu_si512(x + tile * 64));
    } else {
      for (int64_t tile = 0; tile < a.in / kTileDepth; tile++) _mm512_store_si512(to + tile * kTileBytes, _mm512_setzero_si512());
    }
  }
}

// Results on their way from a register's image [32][32] float to y. They are stored a row at a time between the next
// products, because a burst of stores to so many pages would stall.
class Results {
 public:
  explicit Results(const LinearArgs& a, float* memory) : a_(a), memory_(memory) {
    const int64_t y_alignment = reinterpret_cast<int64_t>(a.y) | a.y_stride * 2;
    may_stream_ = a.num_rows > kStreamedRows && y_alignment % 64 == 0;
  }

  float* next_sums() { return memory_ + (turn_ ? kPanelRows * kPanelRows : 0); }

  void take(int64_t first_row, int64_t last_row, int64_t panel) {
    while (row_ < last_row_) store_row();
    sums_ = next_sums(), row_ = first_row, last_row_ = last_row, panel_ = panel, turn_ = !turn_;
    bias_[0] = bias_[1] = _mm512_setzero_ps();
    if (a_.bias == nullptr) return;
    const Bf16* bias = static_cast<const Bf16*>(a_.bias) + panel * kPanelRows;
    bias_[0] = avx512_bf16::load(bias);
    bias_[1] = avx512_bf16::load(bias + 16);
  }

  void store_rows(int64_t count) {
    for (; count > 0 && row_ < last_row_; count--) store_row();
  }

 private:
  static constexpr int64_t kStreamedRows = 64;  // results of more rows do not stay in the cache anyway

  void store_row() {
    Bf16* y = static_cast<Bf16*>(a_.y) + row_ * a_.y_stride + panel_ * kPanelRows;
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(_mm512_add_ps(_mm512_loadu_ps(sums_ + 16), bias_[1]),
                                                      _mm512_add_ps(_mm512_loadu_ps(sums_), bias_[0]));
    if (may_stream_) _mm512_stream_si512(reinterpret_cast<__m512i*>(y), both);
    else _mm512_storeu_si512(y, both);
    sums_ += kPanelRows;
    row_++;
  }

  const LinearArgs& a_;
  float* memory_;
  const float* sums_ = nullptr;
  int64_t row_ = 0, last_row_ = 0, panel_ = 0;
  bool turn_ = false, may_stream_;
  __m512 bias_[2];
};

// Registers 0 to 3 become the rows (two tiles of 16, or one) times a panel. Fetches `lines` cache lines from `ahead`
// per step.
template <bool kTwo>
inline void multiply(const char* x0, const char* x1, const char* w, int64_t depth, const char* ahead, int64_t lines,
                     Results& results) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  const int64_t rows_per_step = (32 + depth - 1) / depth;
  for (int64_t i = 0; i < depth; i++, x0 += kTileBytes, x1 += kTileBytes, w += 2 * kTileBytes) {
    for (int64_t line = 0; line < lines; line++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T0);
    TILE_LOAD(6, w, 64);
    TILE_LOAD(4, x0, 64);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(7, w + kTileBytes, 64);
    TILE_MULTIPLY(1, 4, 7);
    if (kTwo) {
      TILE_LOAD(5, x1, 64);
      TILE_MULTIPLY(2, 5, 6);
      TILE_MULTIPLY(3, 5, 7);
    }
    results.store_rows(rows_per_step);
  }
  float* sums = results.next_sums();
  TILE_STORE(sums, kPanelRows * 4, 0);
  TILE_STORE(sums + 16, kPanelRows * 4, 1);
  if (kTwo) {
    TILE_STORE(sums + 16 * kPanelRows, kPanelRows * 4, 2);
    TILE_STORE(sums + 16 * kPanelRows + 16, kPanelRows * 4, 3);
  }
}

// The first rows to pass over the first panel read it from memory, and so do all where there are no others: then the
// fetching runs a little ahead of the reading. Otherwise each pair of tiles of rows fetches its share of the next panel.
void linear_panels(const LinearArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   void* scratch) {
  if (a.num_rows == 1) return linear_panels_of_one_row(a, first_row, last_row, first_panel, last_panel, scratch);
  TileSession session;
  Results results(a, static_cast<float*>(scratch));
  const int64_t depth = a.in / kTileDepth, row_tile_bytes = 16 * a.in * 2, panel_bytes = kPanelRows * a.in * 2;
  const int64_t num_pairs = (last_row - first_row + 31) / 32, share = kLinesPerStep / num_pairs;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    const char* w = static_cast<const char*>(a.weight) + panel * panel_bytes;
    for (int64_t pair = 0; pair < num_pairs; pair++) {
      const int64_t row = first_row + pair * 32, end = row + 32 < last_row ? row + 32 : last_row;
      const char* x0 = static_cast<const char*>(a.x_prepared) + row / 16 * row_tile_bytes;
      const bool is_reading = num_pairs == 1 || (panel == first_panel && pair == 0);
      const char* ahead = is_reading ? w + kPrefetchBytes : w + panel_bytes + pair * share * depth * 64;
      const int64_t lines = is_reading ? kLinesPerStep : panel + 1 < last_panel ? share : 0;
      if (end - row > 16) multiply<true>(x0, x0 + row_tile_bytes, w, depth, ahead, lines, results);
      else multiply<false>(x0, x0, w, depth, ahead, lines, results);
      results.take(row, end, panel);
    }
  }
  results.store_rows(32);
  _mm_sfence();  // streamed stores are seen by whoever is told that this item is done
}

}  // namespace

void fill(Kernels& kernels) {
  linear_panels_of_one_row = kernels.linear_panels[kBFloat16];
  kernels.prepared_bytes[kBFloat16] = prepared_bytes;
  kernels.prepare_rows[kBFloat16] = prepare_rows;
  kernels.linear_panels[kBFloat16] = linear_panels;
  kernels.linear_scratch_bytes[kBFloat16] = 2 * kPanelRows * kPanelRows * 4;
  fill_attention(kernels);
}

}  // namespace amx
}  // namespace lullm
