// Linear layers over grids with AMX: what those with codes (`grid_codes_amx.h`) and those without (`grid_scales_amx.h`) share.

#include <algorithm>

#include "grid_codes_amx.h"
#include "grid_scales_amx.h"
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
constexpr int64_t kChunkBlocks = 8;  // of the depth, of grids with codes

// body(number of the grid in `kGrids`), as a constant.
template <int kGrid = 0, class Body>
void for_grid(int format, Body&& body) {
  if constexpr (kGrid < kNumGrids) {
    if (format == kFirstGrid + kGrid) body(std::integral_constant<int, kGrid>());
    else for_grid<kGrid + 1>(format, body);
  }
}

bool has_tiles(const QuantizedArgs& a) { return is_grid(a.bits) && a.num_rows >= kFewestRows; }

bool has_codes(const QuantizedArgs& a) { return grid_of(a.bits).has_codes; }

// 16 rows: their tiles, numbers where digits are of 4 bits and have no codes and bytes otherwise, and scales. Then what
// `prepare_groups` or `sum_pairs` says.
int64_t bytes_of_tiles(const QuantizedArgs& a) {
  const Grid& grid = grid_of(a.bits);
  return num_blocks(a.in) * (!grid.has_codes && grid.digit_bits == 4 ? 4 : 2) * kTileBytes + 64;
}
int64_t row_tile_bytes(const QuantizedArgs& a) {
  return bytes_of_tiles(a) + num_spans(num_blocks(a.in)) * kSpanBlocks * kBlockGroups * 64;
}

int64_t prepared_bytes(const QuantizedArgs& a) {
  if (!has_tiles(a)) return is_grid(a.bits) ? vectors.prepared_bytes[kBFloat16](a) : rows_of_tiles.prepared_bytes[kBFloat16](a);
  return (a.num_rows + 15) / 16 * row_tile_bytes(a);
}

void prepare_rows(const QuantizedArgs& a, int64_t first, int64_t last) {
  if (!is_grid(a.bits)) return rows_of_tiles.prepare_rows[kBFloat16](a, first, last);
  if (!has_tiles(a)) return vectors.prepare_rows[kBFloat16](a, first, last);
  const int64_t tile = first / kTileRows;
  char* at = a.x_prepared + tile * row_tile_bytes(a);
  if (!has_codes(a)) return (grid_of(a.bits).digit_bits == 4 ? prepare_groups<false> : prepare_groups<true>)(a, first, last, at);
  QuantizedArgs shifted = a;
  shifted.x_prepared = a.x_prepared + tile * (row_tile_bytes(a) - bytes_of_tiles(a));
  rows_of_tiles.prepare_rows[kBFloat16](shifted, first, last);
  for_grid(a.bits, [&](auto kGrid) {
    constexpr Grid grid = kGrids[kGrid];
    if constexpr (grid.has_mins() && grid.has_codes) sum_pairs<kGrid>(at, num_blocks(a.in), at + bytes_of_tiles(a));
  });
}

constexpr int64_t kMostParts = 4;                   // tiles of two panels: of both sides, or neighbours
constexpr int64_t kTotals = kMostParts * kTileSums;  // floats, of 16 rows

constexpr int64_t kMostTiles = kQuantizedRows / kTileRows;  // of rows
constexpr int64_t kImages = 2 * 4 * kTileSums * 4;          // bytes: of a span being made, and of one being finished

int64_t scratch_bytes(const QuantizedArgs& a) {
  if (!is_grid(a.bits)) return rows_of_tiles.scratch_bytes[kBFloat16](a);
  if (!has_tiles(a)) return vectors.scratch_bytes[kBFloat16](a);
  int64_t bytes = 0;
  for_grid(a.bits, [&](auto kGrid) {
    const int64_t blocks = num_blocks(a.in);
    bytes = kMostTiles * kTotals * 4;
    if constexpr (kGrids[kGrid].has_codes) bytes += kImages + a.num_sides() * Coded<kGrid>::bytes_of(blocks);
    else bytes += kMostParts * sizeof(Expanded);
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

// All rows pass over a chunk of two panels, then over the next one.
template <int kGrid>
void multiply_grid(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   uint8_t* scratch) {
  const int64_t groups = 2 * num_blocks(a.in), tiles = (last_row - first_row + 15) / 16, sides = a.num_sides();
  float* totals = reinterpret_cast<float*>(scratch);  // [tiles][parts][16][16]
  Expanded* expanded = reinterpret_cast<Expanded*>(scratch + kMostTiles * kTotals * 4);
  const auto rows = [&](int64_t tile) { return a.x_prepared + (first_row / 16 + tile) * row_tile_bytes(a); };
  const __m512i table = digit_table<kGrid>();
  const int64_t group_bytes = kGrids[kGrid].digit_bits == 4 ? 2 * kTileBytes : kTileBytes;  // of 16 rows
  TileSession session(kGrids[kGrid].digit_bits == 4 ? 64 : kTileInputs);
  for (int64_t panel = first_panel; panel < last_panel; panel += kMostParts / 2 / sides) {
    const int64_t panels = std::min(kMostParts / 2 / sides, last_panel - panel), parts = 2 * sides * panels;
    std::memset(totals, 0, tiles * parts * kTileSums * 4);
    for (int64_t begin = 0; begin < groups; begin += kChunkGroups) {
      const int64_t count = std::min(kChunkGroups, groups - begin);
      for (int64_t part = 0; part < parts; part++)
        expand<kGrid>(panel_of_side(a, part / 2 / panels, panel + part / 2 % panels), part % 2, begin / 2, count / 2, table, expanded[part]);
      const GroupRows of_rows = {rows(0) + begin * group_bytes,
                                 reinterpret_cast<const float*>(rows(0) + bytes_of_tiles(a)) + begin * kTileRows, row_tile_bytes(a), tiles};
      add_groups<kGrid>(of_rows, expanded, parts, count, totals);
    }
    for (int64_t tile = 0; tile < tiles; tile++) {
      const float* row_scales = reinterpret_cast<const float*>(rows(tile) + bytes_of_tiles(a)) - kTileRows;
      for (int64_t i = 0; i < panels; i++)
        finish_tile(a, first_row + tile * 16, last_row, panel + i, row_scales, totals + (tile * parts + 2 * i) * kTileSums);
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
  const auto rows = [&](int64_t tile) { return a.x_prepared + (first_row / 16 + tile) * row_tile_bytes(a); };
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
                  w.span(part, number), rows(tile) + bytes_of_tiles(a) + number * 16 * kPairs<kGrid> * 8};
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
  return num_blocks(a.in) * kBlockInputs * (has_codes(a) && has_tiles(a) ? 1 : 4);
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
