// Linear layers over grids with AMX. Without codes the digits of a group are multiplied at once, and groups are added up by
// vectors; those with codes, where that is done once for a span, are in `grid_codes_amx.h`.
//
// A tile product sums over one group only, 32 bytes deep, since each group has a scale of its own. While vectors add the
// sums of one group, the tiles multiply the next: two sets of sums take turns.

#include "grid_codes_amx.h"
#include "grid_panel.h"
#include "kernel_table.h"
#include "prepared_row.h"
#include "quantized_panel.h"
#include "tile.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

namespace {

QuantizedKernels rows_of_tiles;  // of weights with a scale per row; their prepared rows are these, too
QuantizedKernels vectors;

constexpr int64_t kFewestRows = 5;  // fewer are read by vectors, which get the same bits
constexpr int64_t kChunkBlocks = 8;  // of the depth: 16 rows of it stay in the first-level cache for both tiles

// body(number of the grid in `kGrids`), as a constant.
template <int kGrid = 0, class Body>
void for_grid(int format, Body&& body) {
  if constexpr (kGrid < kNumGrids) {
    if (format == kFirstGrid + kGrid) body(std::integral_constant<int, kGrid>());
    else for_grid<kGrid + 1>(format, body);
  }
}

bool has_tiles(const QuantizedArgs& a) { return is_grid(a.bits) && a.num_rows >= kFewestRows; }

// 16 rows: their tiles of bytes and scales as of other weights, then, [blocks][groups of 16][16] floats, minus the sums;
// or these as `sum_pairs` writes them.
int64_t bytes_of_tiles(int64_t blocks) { return blocks * 2 * kTileBytes + 64; }
int64_t row_tile_bytes(int64_t blocks) {
  return bytes_of_tiles(blocks) + num_spans(blocks) * kSpanBlocks * kBlockGroups * 64;
}

int64_t prepared_bytes(const QuantizedArgs& a) {
  if (!has_tiles(a)) return is_grid(a.bits) ? vectors.prepared_bytes[kBFloat16](a) : rows_of_tiles.prepared_bytes[kBFloat16](a);
  return (a.num_rows + 15) / 16 * row_tile_bytes(num_blocks(a.in));
}

// Of 16 rows, minus the sum of each group of `inputs`, as a float; exact.
void sum_groups(const char* tile, int64_t blocks, int64_t inputs, float* to) {
  const int64_t groups = kBlockInputs / inputs, lanes = inputs / 4;
  for (int64_t block = 0; block < blocks; block++, tile += 2 * kTileBytes, to += groups * 16) {
    for (int64_t r = 0; r < 16; r++) {
      const I high = load_integers(tile + r * 64), low = load_integers(tile + kTileBytes + r * 64);
      const I high_sums = _mm512_dpbusd_epi32(zero_integers(), set_integers(0x01010101), high);
      const I low_sums = _mm512_dpbusd_epi32(zero_integers(), low, set_integers(0x01010101));
      alignas(64) int32_t fours[16];
      store_integers(fours, add(shift_left_32<8>(high_sums), low_sums));
      for (int64_t group = 0; group < groups; group++) {
        int32_t sum = 0;
        for (int64_t i = 0; i < lanes; i++) sum += fours[group * lanes + i];
        to[group * 16 + r] = -static_cast<float>(sum);
      }
    }
  }
}

void prepare_rows(const QuantizedArgs& a, int64_t first, int64_t last) {
  if (!is_grid(a.bits)) return rows_of_tiles.prepare_rows[kBFloat16](a, first, last);
  if (!has_tiles(a)) return vectors.prepare_rows[kBFloat16](a, first, last);
  const int64_t blocks = num_blocks(a.in), tile = first / 16;
  QuantizedArgs shifted = a;
  shifted.x_prepared = a.x_prepared + tile * (row_tile_bytes(blocks) - bytes_of_tiles(blocks));
  rows_of_tiles.prepare_rows[kBFloat16](shifted, first, last);
  char* at = a.x_prepared + tile * row_tile_bytes(blocks);
  char* sums = at + bytes_of_tiles(blocks);
  for_grid(a.bits, [&](auto kGrid) {
    constexpr Grid grid = kGrids[kGrid];
    if constexpr (grid.has_mins() && grid.has_codes) sum_pairs<kGrid>(at, blocks, sums);
    else if constexpr (grid.has_mins()) sum_groups(at, blocks, grid.group_inputs, reinterpret_cast<float*>(sums));
  });
}

// A panel as the tiles want it: digits as signed bytes, scales and minimums as floats.
struct Expanded {
  uint8_t* digits;  // [blocks][2 tiles][16 lines][64]
  float* scales;    // [blocks][groups][32]
  float* mins;

  static int64_t floats(const Grid& grid, int64_t blocks) { return blocks * grid.groups() * kPanelRows; }
  static int64_t bytes(const Grid& grid, int64_t in) {
    const int64_t blocks = num_blocks(in);
    return blocks * kByteBlockBytes + floats(grid, blocks) * 4 * (grid.has_mins() ? 2 : 1);
  }
  Expanded(const Grid& grid, int64_t blocks, uint8_t* scratch)
      : digits(scratch), scales(reinterpret_cast<float*>(scratch + blocks * kByteBlockBytes)), mins(scales + floats(grid, blocks)) {}
};

template <int kGrid>
void expand(const uint8_t* panel, int64_t blocks, const Expanded& to) {
  constexpr Grid grid = kGrids[kGrid];
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t* from = panel + block * grid.block_bytes();
    uint8_t* digits = to.digits + block * kByteBlockBytes;
    for (int line = 0; line < 16; line++) {
      _mm_prefetch(reinterpret_cast<const char*>(from) + 4096 + line * 128, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(from) + 4096 + line * 128 + 64, _MM_HINT_T0);
      if constexpr (grid.digit_bits == 8) {
        store_integers(digits + line * 64, load_integers(from + line * 64));
        store_integers(digits + kTileBytes + line * 64, load_integers(from + kTileBytes + line * 64));
      } else {
        const I eight = load_integers(from + line * 64), mask = set_integers(0x0f0f0f0f);
        I halves[2] = {both(eight, mask), both(shift_right_16<4>(eight), mask)};
        LULLM_UNROLL for (int i = 0; i < 2; i++) {
          if (grid.is_biased) halves[i] = subtract_8(halves[i], set_integers(0x08080808));
          store_integers(digits + (2 * line + i) * 64, halves[i]);
        }
      }
    }
    const GroupScales<kGrid> scales(panel, block);
    for (int64_t group = 0; group < grid.groups(); group++) {
      const int64_t at = (block * grid.groups() + group) * kPanelRows;
      for (int tile = 0; tile < 2; tile++) {
        store(to.scales + at + tile * kTileRows, scales.scale(group, tile));
        if constexpr (grid.has_mins()) store(to.mins + at + tile * kTileRows, scales.minimum(group, tile));
      }
    }
  }
}

#define LULLM_GROUP_PRODUCTS(high_sum, low_sum, sums)   \
  TILE_ZERO(high_sum);                                  \
  TILE_ZERO(low_sum);                                   \
  TILE_LOAD(4, x, 64);                                  \
  TILE_LOAD(5, x + kTileBytes, 64);                     \
  TILE_LOAD(6, w, 64);                                  \
  TILE_MULTIPLY_SIGNED(high_sum, 4, 6);                 \
  TILE_MULTIPLY_UNSIGNED(low_sum, 5, 6);                \
  TILE_STORE(sums, 64, high_sum);                       \
  TILE_STORE((sums) + 256, 64, low_sum)

// The totals of 16 rows and 16 outputs, with `blocks` more of the depth. `x`: those blocks of the rows; `w`, `scales` and
// `mins`: of the outputs' tile.
template <int kGrid>
void add_blocks(const char* x_blocks, const uint8_t* w_blocks, const float* scales, const float* mins, const float* minus_sums,
                int64_t blocks, float* totals) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr int64_t kGroups = grid.groups();
  alignas(64) int32_t sums[2][2 * 256];
  V rows[16];
  LULLM_UNROLL for (int r = 0; r < 16; r++) rows[r] = load(totals + r * 16);
  const int64_t groups = blocks * kGroups;
  const auto multiply = [&](int64_t group) {
    const char* x = x_blocks + group / kGroups * 2 * kTileBytes + group % kGroups * grid.group_inputs;
    const uint8_t* w = w_blocks + group / kGroups * kByteBlockBytes + group % kGroups * grid.group_inputs / 4 * 64;
    if (group % 2 == 0) {
      LULLM_GROUP_PRODUCTS(0, 1, sums[0]);
    } else {
      LULLM_GROUP_PRODUCTS(2, 3, sums[1]);
    }
  };
  multiply(0);
  for (int64_t group = 0; group < groups; group++) {
    if (group + 1 < groups) multiply(group + 1);
    const int32_t* high = sums[group % 2];
    const V scale = load(scales + group * kPanelRows);
    V minimum = zero();
    if constexpr (grid.has_mins()) minimum = load(mins + group * kPanelRows);
    LULLM_UNROLL for (int r = 0; r < 16; r++) {
      const I sum = add(shift_left_32<8>(load_integers(high + r * 16)), load_integers(high + 256 + r * 16));
      rows[r] = fma(scale, to_floats(sum), rows[r]);
      if constexpr (grid.has_mins()) rows[r] = fma(minimum, set1(minus_sums[group * 16 + r]), rows[r]);
    }
  }
  LULLM_UNROLL for (int r = 0; r < 16; r++) store(totals + r * 16, rows[r]);
}

constexpr int64_t kTotals = 2 * 2 * 256;  // floats: [2 sides][2 tiles][16][16]

constexpr int64_t kMostTiles = kQuantizedRows / kTileRows;  // of rows
constexpr int64_t kImages = 2 * 4 * kTileSums * 4;          // bytes: of a span being made, and of one being finished

int64_t scratch_bytes(const QuantizedArgs& a) {
  if (!is_grid(a.bits)) return rows_of_tiles.scratch_bytes[kBFloat16](a);
  if (!has_tiles(a)) return vectors.scratch_bytes[kBFloat16](a);
  int64_t bytes = 0;
  for_grid(a.bits, [&](auto kGrid) {
    if constexpr (kGrids[kGrid].has_codes)
      bytes = kMostTiles * kTotals * 4 + kImages + a.num_sides() * Coded<kGrid>::bytes_of(num_blocks(a.in));
    else bytes = kTotals * 4 + a.num_sides() * Expanded::bytes(kGrids[kGrid], a.in);
  });
  return bytes;
}

// 16 rows of results, at most, from their totals.
void finish_tile(const QuantizedArgs& a, int64_t row, int64_t last_row, int64_t panel, const float* row_scales,
                 const float* totals) {
  for (int64_t r = 0; r < 16 && row + r < last_row; r++) {
    V results[2][2];
    for (int64_t i = 0; i < 2 * a.num_sides(); i++)
      results[i / 2][i % 2] = mul(load(totals + i * kTileSums + r * kTileRows), set1(row_scales[r]));
    for (int64_t side = 0; side < a.num_sides(); side++) add_bias<Bf16>(a, side, panel, results[side]);
    store_outputs<Bf16>(a, row + r, panel, results[0], results[1]);
  }
}

template <int kGrid>
void multiply_grid(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   uint8_t* scratch) {
  constexpr Grid grid = kGrids[kGrid];
  const int64_t blocks = num_blocks(a.in);
  float* totals = reinterpret_cast<float*>(scratch);
  uint8_t* expanded = scratch + kTotals * 4;
  TileSession session(grid.group_inputs);
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    for (int64_t side = 0; side < a.num_sides(); side++)
      expand<kGrid>(panel_of_side(a, side, panel), blocks, {grid, blocks, expanded + side * Expanded::bytes(grid, a.in)});
    for (int64_t row = first_row; row < last_row; row += 16) {
      const char* x = a.x_prepared + row / 16 * row_tile_bytes(blocks);
      const float* row_scales = reinterpret_cast<const float*>(x + blocks * 2 * kTileBytes);
      const float* minus_sums = row_scales + 16;
      std::memset(totals, 0, kTotals * 4);
      for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks) {
        const int64_t count = begin + kChunkBlocks < blocks ? kChunkBlocks : blocks - begin, groups = begin * grid.groups();
        for (int64_t i = 0; i < 2 * a.num_sides(); i++) {
          const Expanded w(grid, blocks, expanded + i / 2 * Expanded::bytes(grid, a.in));
          const int64_t at = groups * kPanelRows + i % 2 * kTileRows;
          add_blocks<kGrid>(x + begin * 2 * kTileBytes, w.digits + begin * kByteBlockBytes + i % 2 * kTileBytes, w.scales + at,
                            w.mins + at, minus_sums + groups * 16, count, totals + i * 256);
        }
      }
      finish_tile(a, row, last_row, panel, row_scales, totals);
    }
  }
}

// All rows pass over two spans of a panel, 32 KiB a side, which stay in the first-level cache; then over the next ones.
template <int kGrid>
void multiply_coded_grid(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                         int64_t last_panel, uint8_t* scratch) {
  const int64_t blocks = num_blocks(a.in), tiles = (last_row - first_row + 15) / 16, parts = 2 * a.num_sides();
  float* totals = reinterpret_cast<float*>(scratch);  // [tiles][parts][16][16]
  int32_t* images = reinterpret_cast<int32_t*>(scratch + kMostTiles * kTotals * 4);
  uint8_t* expanded = reinterpret_cast<uint8_t*>(images) + kImages;
  const auto rows = [&](int64_t tile) { return a.x_prepared + (first_row / 16 + tile) * row_tile_bytes(blocks); };
  TileSession session;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    Coded<kGrid> sides[2];
    for (int64_t side = 0; side < a.num_sides(); side++) {
      sides[side] = {blocks, expanded + side * Coded<kGrid>::bytes_of(blocks)};
      sides[side].expand(panel_of_side(a, side, panel));
    }
    std::memset(totals, 0, tiles * parts * kTileSums * 4);
    Spans<kGrid> spans;
    typename Spans<kGrid>::Span span = {images, nullptr, nullptr, nullptr};
    for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks) {
      const int64_t end = begin + kChunkBlocks < blocks ? begin + kChunkBlocks : blocks;
      for (int64_t item = 0; item < tiles * parts; item++) {
        const int64_t side = item / (2 * tiles), tile = item / 2 % tiles, part = item % 2;
        const Coded<kGrid>& w = sides[side];
        for (int64_t block = begin; block < end; block += kSpanBlocks) {
          const int64_t count = block + kSpanBlocks < end ? kSpanBlocks : end - block, number = block / kSpanBlocks;
          multiply_span<kGrid>(rows(tile) + block * 2 * kTileBytes, w.digits(part, block), count, span, spans);
          span = {span.sums == images ? images + 4 * kTileSums : images, totals + (tile * parts + side * 2 + part) * kTileSums,
                  w.span(part, number), rows(tile) + bytes_of_tiles(blocks) + number * 16 * kPairs<kGrid> * 8};
        }
      }
    }
    TILE_STORE(span.sums, 64, 0);
    TILE_STORE(span.sums + kTileSums, 64, 1);
    TILE_STORE(span.sums + 2 * kTileSums, 64, 2);
    TILE_STORE(span.sums + 3 * kTileSums, 64, 3);
    spans.take(span);
    spans.finish_rows(16);
    for (int64_t tile = 0; tile < tiles; tile++) {
      const float* row_scales = reinterpret_cast<const float*>(rows(tile) + blocks * 2 * kTileBytes);
      finish_tile(a, first_row + tile * 16, last_row, panel, row_scales, totals + tile * parts * kTileSums);
    }
  }
}

void multiply_panels(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel, void* scratch) {
  if (has_tiles(a))
    return for_grid(a.bits, [&](auto kGrid) {
      uint8_t* memory = static_cast<uint8_t*>(scratch);
      if constexpr (kGrids[kGrid].has_codes)
        multiply_coded_grid<kGrid>(a, first_row, last_row, first_panel, last_panel, memory);
      else multiply_grid<kGrid>(a, first_row, last_row, first_panel, last_panel, memory);
    });
  const QuantizedKernels& k = is_grid(a.bits) ? vectors : rows_of_tiles;
  k.multiply_panels[kBFloat16](a, first_row, last_row, first_panel, last_panel, scratch);
}

int64_t cached_row_bytes(const QuantizedArgs& a) {
  if (!is_grid(a.bits)) return rows_of_tiles.cached_row_bytes[kBFloat16](a);
  // More rows than fit, so that an expanded panel serves more of them.
  return num_blocks(a.in) * kBlockInputs * (grid_of(a.bits).has_codes && has_tiles(a) ? 1 : 2);
}

}  // namespace

void fill_grid(Kernels& kernels, const QuantizedKernels& of_vectors) {
  vectors = of_vectors;
  rows_of_tiles = kernels.quantized;
  QuantizedKernels& k = kernels.quantized;
  k.prepared_bytes[kBFloat16] = prepared_bytes;
  k.prepare_rows[kBFloat16] = prepare_rows;
  k.cached_row_bytes[kBFloat16] = cached_row_bytes;
  k.scratch_bytes[kBFloat16] = scratch_bytes;
  k.multiply_panels[kBFloat16] = multiply_panels;
}

}  // namespace amx
}  // namespace lullm
