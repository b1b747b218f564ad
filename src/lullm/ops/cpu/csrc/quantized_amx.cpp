// Linear layers over quantized weights with AMX: the panels are second operands as they lie, or once expanded to 8 bits.
//
// A 16-bit activation is 256 times its high byte, signed, plus its low byte, unsigned: two tiles of first operands,
// which share each tile of the weight. The sums are exact, so a row has the same result in any company.

#include "fetch.h"
#include "kernel_table.h"
#include "quantized_panel.h"
#include "tile.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

namespace {

// Those of the set below: a single row is a matter of reading, where vectors are as good.
QuantizedKernels vectors;

constexpr int64_t kPrefetchBytes = 10240;
constexpr int64_t kLinesPerStep = 32;  // cache lines of a panel of 8 bits that one step of the depth reads

// 16 rows: for each block of 64 inputs the high bytes [16][64], then the low bytes; at the end the scales of the rows.
int64_t row_tile_bytes(int64_t blocks) { return blocks * 2 * kTileBytes + 64; }

bool has_tiles(const QuantizedArgs& a) { return a.num_rows > 1; }

int64_t prepared_bytes(const QuantizedArgs& a) {
  if (!has_tiles(a)) return vectors.prepared_bytes[kBFloat16](a);
  return (a.num_rows + 15) / 16 * row_tile_bytes(num_blocks(a.in));
}

// The bytes 0 to 63 of four vectors of sixteen integers, in their order: two rounds of packing leave them in fours.
inline __m512i pack_bytes(__m512i low_half, __m512i high_half, bool is_signed) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i packed = is_signed ? _mm512_packs_epi16(low_half, high_half) : _mm512_packus_epi16(low_half, high_half);
  return _mm512_permutexvar_epi32(order, packed);
}

void prepare_rows(const QuantizedArgs& a, int64_t first, int64_t last) {
  if (!has_tiles(a)) return vectors.prepare_rows[kBFloat16](a, first, last);
  const int64_t blocks = num_blocks(a.in);
  char* tile = a.x_prepared + first / 16 * row_tile_bytes(blocks);
  float* scales = reinterpret_cast<float*>(tile + blocks * 2 * kTileBytes);
  for (int64_t r = 0; r < 16; r++) {
    const Bf16* x = static_cast<const Bf16*>(a.x) + (first + r) * a.x_stride;
    const bool is_there = first + r < last;
    const RowScale scale = is_there ? scale_row(x, a.in) : RowScale{zero(), 0.0f};
    for (int64_t block = 0; block < blocks; block++) {
      __m512i integers[4];
      LULLM_UNROLL for (int i = 0; i < 4; i++) {
        const int64_t at = block * kBlockInputs + i * kLanes;
        integers[i] = is_there && at < a.in ? to_integers(mul(load_up_to(x + at, a.in - at), scale.inverse)) : zero_integers();
      }
      const __m512i low_half = _mm512_packs_epi32(integers[0], integers[1]);
      const __m512i high_half = _mm512_packs_epi32(integers[2], integers[3]);
      const __m512i byte = _mm512_set1_epi16(0xff);
      char* to = tile + block * 2 * kTileBytes + r * 64;
      store_integers(to, pack_bytes(_mm512_srai_epi16(low_half, 8), _mm512_srai_epi16(high_half, 8), true));
      store_integers(to + kTileBytes, pack_bytes(both(low_half, byte), both(high_half, byte), false));
    }
    scales[r] = scale.value;
  }
}

// 256 times the high sum plus the low one, rounded once: as 65536 times an integer of 23 bits plus one of 16.
inline V total_of(I high, I low) {
  const I carried = add(high, shift_signed_32<8>(low));
  const I rest = either(shift_left_32<8>(both(carried, set_integers(0xff))), both(low, set_integers(0xff)));
  return fma(to_floats(shift_signed_32<8>(carried)), set1(65536.0f), to_floats(rest));
}

// Sums on their way from the registers' images to y: of each side [2: high, low][16][32]. They are finished a row at a
// time between the next products, because a burst of stores to so many pages would stall.
template <int kSides>
class Results {
 public:
  explicit Results(const QuantizedArgs& a) : a_(a), may_stream_(may_stream(a.y, a.y_stride * (a.y_is_float ? 4 : 2), a.num_rows)) {}

  void take(const int32_t* sums, int64_t first_row, int64_t last_row, int64_t panel, const float* row_scales, const uint8_t* const* scales) {
    finish_rows(16);
    sums_ = sums, row_scales_ = row_scales, num_rows_ = last_row - first_row;
    y_at_ = first_row * a_.y_stride + panel * kPanelRows;
    if (panel == panel_) return;
    panel_ = panel;
    left_ = a_.out_of_side() - panel * kPanelRows;
    for (int i = 0; i < 2 * kSides; i++) {
      const int64_t at = i % 2 * kTileRows, side = i / 2, bias_left = left_ - at;
      scales_[i] = load(reinterpret_cast<const float*>(scales[side]) + at);
      const Bf16* bias = static_cast<const Bf16*>(a_.bias) + side * a_.out_of_side() + panel * kPanelRows + at;
      bias_[i] = a_.bias == nullptr || bias_left <= 0 ? zero() : load_up_to(bias, bias_left);
    }
  }

  void finish_rows(int64_t count) {
    for (; count > 0 && num_rows_ > 0; count--) finish_row();
  }

  static constexpr int64_t kSums = 2 * kTileRows * kPanelRows;

 private:
  void finish_row() {
    V results[2 * kSides];
    const V row_scale = set1(*row_scales_++);
    LULLM_UNROLL for (int i = 0; i < 2 * kSides; i++) {
      const int32_t* high = sums_ + i / 2 * kSums + i % 2 * kTileRows;
      results[i] = add(mul(total_of(load_integers(high), load_integers(high + kTileRows * kPanelRows)),
                           mul(scales_[i], row_scale)),
                       bias_[i]);
    }
    if constexpr (kSides == 2) {
      results[0] = gate(a_, results[0], results[2]);
      results[1] = gate(a_, results[1], results[3]);
    }
    if (a_.y_is_float) {
      float* y = static_cast<float*>(a_.y) + y_at_;
      if (left_ < kPanelRows) store_last(y, results);
      else store_line(y, (__m512i)results[0]), store_line(y + kTileRows, (__m512i)results[1]);
    } else {
      Bf16* y = static_cast<Bf16*>(a_.y) + y_at_;
      if (left_ < kPanelRows) store_last(y, results);
      else store_line(y, (__m512i)_mm512_cvtne2ps_pbh(results[1], results[0]));
    }
    sums_ += kPanelRows, y_at_ += a_.y_stride, num_rows_--;
  }

  void store_line(void* to, __m512i line) {
    if (may_stream_) _mm512_stream_si512(static_cast<__m512i*>(to), line);
    else _mm512_storeu_si512(to, line);
  }

  template <class T>
  void store_last(T* y, const V* results) {
    store_up_to(y, results[0], left_);
    if (left_ > kTileRows) store_up_to(y + kTileRows, results[1], left_ - kTileRows);
  }

  const QuantizedArgs& a_;
  const int32_t* sums_ = nullptr;
  const float* row_scales_ = nullptr;
  int64_t y_at_ = 0, num_rows_ = 0, panel_ = -1, left_ = 0;
  const bool may_stream_;
  V scales_[2 * kSides], bias_[2 * kSides];
};

// Adds the high bytes of 16 rows times some blocks of a panel, and the low bytes, to their sums, or starts them. With kExpands the panel is of
// 4 bits, and each block is expanded to `expanded` while the one before it is multiplied; `keeps` them for other rows, or
// uses the room of two in turn.
template <bool kExpands, int kSides>
inline void multiply(const char* x, const uint8_t* w, uint8_t* expanded, bool keeps, int64_t blocks, const char* ahead,
                     int64_t lines, int32_t* sums, bool is_first, Results<kSides>& results) {
  constexpr int64_t kStride = kPanelRows * 4;
  int32_t* low_sums = sums + kTileRows * kPanelRows;
  if (is_first) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, sums, kStride);
    TILE_LOAD(1, sums + 16, kStride);
    TILE_LOAD(2, low_sums, kStride);
    TILE_LOAD(3, low_sums + 16, kStride);
  }
  const int64_t rows_per_step = (16 + blocks - 1) / blocks;
  const auto place = [&](int64_t block) { return expanded + (keeps ? block : block % 2) * kByteBlockBytes; };
  if (kExpands) expand_block(w, place(0));
  for (int64_t i = 0; i < blocks; i++, x += 2 * kTileBytes) {
    const auto fetch = [&](int64_t quarter) {
      ahead = fetch_paced(ahead, lines * (quarter + 1) / 4 - lines * quarter / 4);
    };
    const uint8_t* block = kExpands ? place(i) : w + i * kByteBlockBytes;
    if (kExpands && i + 1 < blocks) expand_block(w + (i + 1) * kDigitBlockBytes, place(i + 1));
    fetch(0);
    TILE_LOAD(6, block, 64);
    TILE_LOAD_ONCE(4, x, 64);
    TILE_MULTIPLY_SIGNED(0, 4, 6);
    fetch(1);
    TILE_LOAD(7, block + kTileBytes, 64);
    TILE_MULTIPLY_SIGNED(1, 4, 7);
    fetch(2);
    TILE_LOAD_ONCE(5, x + kTileBytes, 64);
    TILE_MULTIPLY_UNSIGNED(2, 5, 6);
    TILE_MULTIPLY_UNSIGNED(3, 5, 7);
    fetch(3);
    results.finish_rows(rows_per_step);
  }
  TILE_STORE(sums, kStride, 0);
  TILE_STORE(sums + 16, kStride, 1);
  TILE_STORE(low_sums, kStride, 2);
  TILE_STORE(low_sums + 16, kStride, 3);
}

// Of the depth, in blocks: so much of a panel, 32 KiB as 8 bits, stays in the first-level cache while all rows pass over
// it. Then come the other panels, and then the next chunk of the depth: so do the rows stay in the second level.
constexpr int64_t kChunkBlocks = 16;
constexpr int64_t kImage = Results<1>::kSums;

bool is_chunked(const QuantizedArgs& a) { return a.num_rows > kFewRows && num_blocks(a.in) > kChunkBlocks; }

int64_t cached_row_bytes(const QuantizedArgs& a) {
  return (is_chunked(a) ? kChunkBlocks * kBlockInputs : num_blocks(a.in) * kBlockInputs) * 2;
}

// Sums of all panels and tiles of rows wait from chunk to chunk; otherwise two take turns, being made and being finished.
int64_t num_images(const QuantizedArgs& a) {
  return is_chunked(a) ? kQuantizedPanels * kQuantizedRows / kTileRows : 2 * a.num_sides();
}
int64_t expanded_bytes(const QuantizedArgs& a) {  // of a side
  return ((is_chunked(a) ? kChunkBlocks : num_blocks(a.in)) + 1) * kByteBlockBytes;
}

int64_t scratch_bytes(const QuantizedArgs& a) {
  if (!has_tiles(a)) return vectors.scratch_bytes[kBFloat16](a);
  return num_images(a) * kImage * 4 + (a.bits == 4 ? a.num_sides() * expanded_bytes(a) : 0);
}

// The first rows to pass over the first panel read it from memory, and so do all where there are no others: then the
// fetching runs a little ahead of the reading. Otherwise each tile of rows fetches its share of the same chunk of the next
// panel, which is mostly this thread's even if it is the next item's.
template <int kSides>
void multiply_tiles(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                    int64_t last_panel, void* scratch) {
  TileSession session;
  Results<kSides> results(a);
  const int64_t depth = num_blocks(a.in), num_tiles = (last_row - first_row + 15) / 16;
  const int64_t chunk = is_chunked(a) ? kChunkBlocks : depth, panel_bytes = quantized_panel_bytes(a.bits, a.in);
  const int64_t block_bytes = a.bits == 8 ? kByteBlockBytes : kDigitBlockBytes;
  const int64_t share = (block_bytes + num_tiles * 64 - 1) / (num_tiles * 64);
  int32_t* images = static_cast<int32_t*>(scratch);
  uint8_t* expanded = static_cast<uint8_t*>(scratch) + num_images(a) * kImage * 4;
  for (int64_t begin = 0; begin < depth; begin += chunk) {
    const int64_t blocks = begin + chunk < depth ? chunk : depth - begin;
    int64_t image = 0;
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
      const uint8_t* scales[2] = {};
      for (int64_t side = 0; side < kSides; side++)
        scales[side] = panel_of_side(a, side, panel) + panel_bytes - kPanelScaleBytes;
      for (int64_t tile = 0; tile < num_tiles; tile++, image++) {
        const int64_t row = first_row + tile * 16, end = row + 16 < last_row ? row + 16 : last_row;
        const char* rows = a.x_prepared + row / 16 * row_tile_bytes(depth);
        const char* x = rows + begin * 2 * kTileBytes;
        int32_t* sums = images + (is_chunked(a) ? image : image % 2) * kSides * kImage;
        for (int64_t side = 0; side < kSides; side++) {
          const bool is_reading = a.bits == 8 && (num_tiles == 1 || (panel == first_panel && tile == 0));
          const uint8_t* w = panel_of_side(a, side, panel) + begin * block_bytes;
          const char* ahead = reinterpret_cast<const char*>(w) +
                              (is_reading ? kPrefetchBytes : panel_bytes + tile * share * blocks * 64);
          const int64_t lines = is_reading ? kLinesPerStep : share;
          uint8_t* bytes = expanded + side * expanded_bytes(a);
          int32_t* of_side = sums + side * kImage;
          const bool is_first = begin == 0;
          if (a.bits == 8) multiply<false>(x, w, nullptr, false, blocks, ahead, lines, of_side, is_first, results);
          else if (tile == 0) multiply<true>(x, w, bytes, num_tiles > 1, blocks, ahead, lines, of_side, is_first, results);
          else multiply<false>(x, bytes, nullptr, false, blocks, ahead, lines, of_side, is_first, results);
        }
        if (begin + blocks == depth)
          results.take(sums, row, end, panel, reinterpret_cast<const float*>(rows + depth * 2 * kTileBytes), scales);
      }
    }
  }
  results.finish_rows(16);
}

void multiply_panels(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel, void* scratch) {
  const auto with_tiles = a.num_sides() == 2 ? multiply_tiles<2> : multiply_tiles<1>;
  (has_tiles(a) ? with_tiles : vectors.multiply_panels[kBFloat16])(a, first_row, last_row, first_panel, last_panel,
                                                                   scratch);
}

}  // namespace

void fill_quantized(Kernels& kernels) {
  vectors = kernels.quantized;
  QuantizedKernels& k = kernels.quantized;
  k.prepared_bytes[kBFloat16] = prepared_bytes;
  k.prepare_rows[kBFloat16] = prepare_rows;
  k.cached_row_bytes[kBFloat16] = cached_row_bytes;
  k.scratch_bytes[kBFloat16] = scratch_bytes;
  k.multiply_panels[kBFloat16] = multiply_panels;
}

}  // namespace amx
}  // namespace lullm
