// Linear layers over packed weights with vectors, one panel of 32 outputs at a time; and packing itself.
//
// Every output is one chain of fused products, from the first input to the last, whatever the number of rows: so a row
// has the same bits in any batch. Of a pair of bf16 the second comes first and denormals are zero, as VDPBF16PS has it:
// so products of floats give the same bits as dot products, and whichever is quicker serves. (NEON's round otherwise; there
// dot products always serve.)
//
// A few rows are one group, and the weights are read once, in order: what counts is the prefetch. More rows are several
// groups, which pass one after the other over a part of a panel that stays in the first-level cache.

#include <type_traits>
#include <utility>

#include "activation.h"
#include "flush_denormals.h"
#include "kernel_table.h"
#include "narrow/expand.h"
#include "narrow/narrow.h"
#include "processor.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// How far ahead of the reading a panel is fetched from memory into the second-level cache, and from there into the first.
constexpr int64_t kFarBytes = 8192;
constexpr int64_t kNearBytes = 2048;
constexpr int64_t kBlockBytes = 2 * kTileBytes;  // of a panel: 16 units of its 32 rows
constexpr int64_t kPartBytes = 16 * 1024;        // of a panel, as it is multiplied, that several groups pass over
constexpr int64_t kExpandedGroups = 3;           // from so many groups on, the first leaves bf16 as floats for the others

// Rows of a group, at most, and the tiles of a panel that it passes over at once: as accumulators fill the registers. With
// AVX2 up to three rows need two tiles for that. But one or two wait for memory, and where lines come faster side by side they
// pass over a part of a panel twice: 20.9 to 22.0 GB/s became 22.3 to 23.1 (Zen 3).
constexpr int64_t kMostRows = kRegisters >= 32 ? 12 : 6;
constexpr int tiles_at_once(int64_t rows, bool reads_in_order) {
  return kRegisters >= 32 || rows == 3 || (rows < 3 && !reads_in_order) ? 2 : 1;
}

// What a cache line of a panel holds of 16 outputs, and how it is multiplied: in kSteps parts, each of which takes four
// bytes of each row.
struct FloatLine {
  using Element = float;
  using Part = V;
  static constexpr int kSteps = 1;
  static Part part(const char* line, int) { return load(reinterpret_cast<const float*>(line)); }
  static void multiply(V& sum, Part part, const char* x) { add_product(sum, part, set1(*reinterpret_cast<const float*>(x))); }
};
struct PairLine {
  using Element = Bf16;
  using Part = V;
  static constexpr int kSteps = 2;
  static Part part(const char* line, int step) {
    const Bf16* pairs = reinterpret_cast<const Bf16*>(line);
    return step == 0 ? odd(pairs) : even(pairs);
  }
  static void multiply(V& sum, Part part, const char* x) { FloatLine::multiply(sum, part, x); }
};
#if defined(LULLM_HAS_DOTS)
struct DotLine {
  using Element = Bf16;
  using Part = V;
  static constexpr int kSteps = 1;
  static Part part(const char* line, int) { return load(reinterpret_cast<const float*>(line)); }
  static void multiply(V& sum, Part part, const char* x) { sum = dot(sum, part, set_pair(x)); }
};
#endif

// Rows of every group but the last, which has what is left.
int64_t rows_at_once(const LinearArgs& a) {
  const int64_t groups = (a.num_rows + kMostRows - 1) / kMostRows;
  const int64_t rows = (a.num_rows + groups - 1) / groups;
  // Four rows of AVX2's are eight sums, just too few to hide how long a product takes: five and three are quicker.
  return rows == 4 && groups == 2 && kMostRows == 6 ? 5 : rows;
}

template <class Line>
int64_t row_bytes(const LinearArgs& a) {
  return a.in * static_cast<int64_t>(sizeof(typename Line::Element)) * Line::kSteps;
}

// One row is read as it is, unless it becomes floats.
template <class Line>
int64_t prepared_bytes(const LinearArgs& a) {
  return Line::kSteps == 1 && a.num_rows == 1 ? 0 : a.num_rows * row_bytes<Line>(a);
}

// A group of rows [first, last), unit after unit: for each of its steps the four bytes of every row.
template <class Line>
void prepare_rows(const LinearArgs& a, int64_t first, int64_t last) {
  using T = typename Line::Element;
  constexpr int64_t kUnit = 4 / sizeof(T);
  const int64_t rows = last - first, units = a.in / kUnit;
  char* to = static_cast<char*>(a.x_prepared) + first * row_bytes<Line>(a);
  alignas(64) char lines[16 * 64] = {}, columns[16 * 64];
  for (int64_t unit = 0; unit < units; unit += kTileUnits) {
    const T* x = static_cast<const T*>(a.x) + unit * kUnit;
    for (int64_t row = first; row < last; row++) std::memcpy(lines + (row - first) * 64, x + a.offset_of(row), 64);
    transpose(lines, 64, columns, 64);
    for (int i = 0; i < kTileUnits; i++) {
      for (int step = 0; step < Line::kSteps; step++, to += rows * 4) {
        const typename Line::Part part = Line::part(columns + i * 64, step);
        // What is stored beyond the group's rows is overwritten by the next ones, but at the end.
        std::memcpy(to, &part, unit + kTileUnits < units ? 64 : rows * 4);
      }
    }
  }
}

constexpr int64_t kQuarter = kTileUnits / 4;
constexpr int64_t kQuarterLines = 2 * kQuarter;  // of a panel

// Lines to fetch into the second-level cache while others are multiplied: where they begin, and how many per quarter of
// a block.
struct Fetch {
  const char* at;
  int64_t lines;
};

// Adds a group's products with `blocks` blocks of a panel to its sums [kRows][32], or starts them. kKeeps: what it has
// multiplied by becomes `floats`, twice as many blocks, for other groups; such stores cost nothing beside products.
template <class Line, int kRows, int kTiles, bool kKeeps>
void multiply(const char* w, const char* x, int64_t blocks, Fetch fetch, float* sums, bool is_first, char* floats) {
  constexpr int kHeld = kRegisters >= 32 ? kTiles : 1;
  for (int tile = 0; tile < 2; tile += kTiles) {
    V totals[kRows][kTiles];
    LULLM_UNROLL for (int r = 0; r < kRows; r++)
      LULLM_UNROLL for (int t = 0; t < kTiles; t++)
        totals[r][t] = is_first ? zero() : load(sums + r * kPanelRows + (tile + t) * kTileRows);
    const char *line = w + tile * kTileBytes, *rows = x;
    char* kept = floats + tile * kTileBytes;
    for (int64_t block = 0; block < blocks; block++, line += kBlockBytes - kTileBytes) {
      for (int quarter = 0; quarter < 4; quarter++) {
        // Unrolled: the loop's own additions would take places of products, a tenth of them.
        LULLM_UNROLL for (int unit = 0; unit < kQuarter; unit++, line += 64) {
          if (unit < fetch.lines) fetch_far(fetch.at + unit * 64);
          if (unit + kQuarter < fetch.lines) fetch_far(fetch.at + (unit + kQuarter) * 64);
          LULLM_UNROLL for (int t = 0; t < kTiles; t++) fetch_near(line + t * kTileBytes + kNearBytes);
          LULLM_UNROLL for (int step = 0; step < Line::kSteps; step++, rows += kRows * 4) {
            LULLM_UNROLL for (int t = 0; t < kTiles; t += kHeld) {
              typename Line::Part parts[kHeld];
              LULLM_UNROLL for (int i = 0; i < kHeld; i++) {
                parts[i] = Line::part(line + (t + i) * kTileBytes, step);
                if (kKeeps) store(reinterpret_cast<float*>(kept + (t + i) * kTileBytes + (unit * Line::kSteps + step) * 64), parts[i]);
              }
              LULLM_UNROLL for (int r = 0; r < kRows; r++)
                LULLM_UNROLL for (int i = 0; i < kHeld; i++) Line::multiply(totals[r][t + i], parts[i], rows + r * 4);
              if (kHeld < kTiles) asm("" : "+r"(rows));  // numbers of the rows are loaded again, rather than kept
            }
          }
        }
        fetch.at += fetch.lines * 64;
        kept += kQuarter * Line::kSteps * 64;
        if (kKeeps && quarter % 2 == 1) kept += kBlockBytes - kTileBytes;
      }
    }
    LULLM_UNROLL for (int r = 0; r < kRows; r++)
      LULLM_UNROLL for (int t = 0; t < kTiles; t++) store(sums + r * kPanelRows + (tile + t) * kTileRows, totals[r][t]);
  }
}

using Multiply = void (*)(const char*, const char*, int64_t, Fetch, float*, bool, char*);

template <class Line, bool kKeeps, bool kInOrder, int... kIndex>
Multiply multiply_of(int64_t rows, std::integer_sequence<int, kIndex...>) {
  static constexpr Multiply kMultiply[] = {multiply<Line, kIndex + 1, tiles_at_once(kIndex + 1, kInOrder), kKeeps>...};
  return kMultiply[rows - 1];
}
template <class Line, bool kKeeps = false>
Multiply multiply_of(int64_t rows, bool in_order) {
  const auto all = std::make_integer_sequence<int, kMostRows>();
  return in_order ? multiply_of<Line, kKeeps, true>(rows, all) : multiply_of<Line, kKeeps, false>(rows, all);
}

// Adds the bias, applies the gate, rounds: 32 results of each row, from its sums and those of the panel's partner.
template <class T>
void finish_rows(const LinearArgs& a, const float* sums, int64_t side_floats, int64_t first_row, int64_t last_row,
                 int64_t panel) {
  V bias[2][2] = {{zero(), zero()}, {zero(), zero()}};
  for (int64_t i = 0; a.bias != nullptr && i < 2 * a.num_sides(); i++)
    bias[i / 2][i % 2] = load(static_cast<const T*>(a.bias) + i / 2 * a.out_of_side() + panel * kPanelRows + i % 2 * kTileRows);
  const bool streams = may_stream(a.y, a.y_stride * (a.y_is_float ? 4 : static_cast<int64_t>(sizeof(T))), a.num_rows);
  for (int64_t row = first_row; row < last_row; row++, sums += kPanelRows) {
    for (int tile = 0; tile < 2; tile++) {
      V result = add(load(sums + tile * kTileRows), bias[0][tile]);
      if (a.num_sides() == 2) result = gate(a, result, add(load(sums + side_floats + tile * kTileRows), bias[1][tile]));
      const int64_t at = row * a.y_stride + panel * kPanelRows + tile * kTileRows;
      if (a.y_is_float) put(static_cast<float*>(a.y) + at, result, streams);
      else put(static_cast<T*>(a.y) + at, result, streams);
    }
  }
}

constexpr int64_t kScratchRows = kLinearRows + 2 * kMostRows;
constexpr int64_t kSumsBytes = 2 * kScratchRows * kPanelRows * 4;

template <class Line>
void linear_panels(const LinearArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   void* scratch) {
  using T = typename Line::Element;
  const FlushDenormals flush(sizeof(T) == 2);
  const int64_t rows = rows_at_once(a), groups = (last_row - first_row + rows - 1) / rows;
  const int64_t rows_of_last = last_row - first_row - (groups - 1) * rows;
  const int64_t depth = units_of(a.in, sizeof(T) == 4 ? kFloat32 : kBFloat16) / kTileUnits;  // blocks of a panel
  constexpr bool kExpands = Line::kSteps == 2;
  const bool expands = kExpands && groups >= kExpandedGroups;
  const int64_t growth = expands ? 2 : 1;
  // Over a part of a panel, as it lies: those over floats take twice as many fetches.
  const bool widens = is_narrow(a.format), in_order = !widens && fetches_in_order();
  const int64_t passes = (1 + (groups - 2) * growth) * (2 / tiles_at_once(rows, in_order)) +
                         growth * (2 / tiles_at_once(rows_of_last, in_order));
  const int64_t part = passes == 1 && !widens ? depth : kPartBytes / kBlockBytes / growth;
  const Multiply multiply_first = expands ? multiply_of<Line, kExpands>(rows, in_order) : multiply_of<Line>(rows, in_order);
  const Multiply multiply_next = expands ? multiply_of<FloatLine>(rows, in_order) : multiply_first;
  const Multiply multiply_last =
      expands ? multiply_of<FloatLine>(rows_of_last, in_order) : multiply_of<Line>(rows_of_last, in_order);
  const int64_t lines = (kQuarterLines + passes - 1) / passes;
  const int64_t side_panels = a.out_of_side() / kPanelRows, side_floats = groups * rows * kPanelRows;
  const char* x = static_cast<const char*>(a.x_prepared == nullptr ? a.x : a.x_prepared) + first_row * row_bytes<Line>(a);
  const char* weight = static_cast<const char*>(a.weight);
  float* sums = static_cast<float*>(scratch);
  char* expanded = static_cast<char*>(scratch) + kSumsBytes;
  char* widened = expanded + kPartBytes;
  const int64_t panel_bytes = widens ? narrow_panel_bytes(a.format, a.in) : depth * kBlockBytes;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    for (int64_t side = 0; side < a.num_sides(); side++) {
      const char* whole = weight + (panel + side * side_panels) * panel_bytes;
      const char* next_panel = weight + (side + 1 < a.num_sides() ? panel + side_panels : panel + 1) * panel_bytes;
      for (int64_t begin = 0; begin < depth; begin += part) {
        const int64_t blocks = begin + part < depth ? part : depth - begin;
        const char* w = whole + begin * kBlockBytes;
        const char* next = begin + blocks < depth ? w + blocks * kBlockBytes : next_panel;
        int64_t fetched = 0;
        if (widens) {
          constexpr int64_t kOfNarrow = kNarrowInputs / (kTileUnits * 4 / static_cast<int64_t>(sizeof(T)));
          w = widened;
          expand_narrow(reinterpret_cast<const uint8_t*>(whole), a.format, a.in, begin / kOfNarrow, blocks / kOfNarrow,
                        reinterpret_cast<T*>(widened));
        }
        for (int64_t group = 0; group < groups; group++) {
          const bool is_last = group + 1 == groups, is_floats = expands && group > 0;
          const int64_t count = is_last ? rows_of_last : rows, own_blocks = blocks * (is_floats ? 2 : 1);
          Fetch fetch = {next + fetched, !widens && fetched < blocks * kBlockBytes ? lines : 0};
          if (passes == 1) fetch.at = w + kFarBytes;
          fetched += 2 / tiles_at_once(count, in_order) * own_blocks * 4 * fetch.lines * 64;
          (is_last ? multiply_last : group == 0 ? multiply_first : multiply_next)(
              is_floats ? expanded : w, x + group * rows * row_bytes<Line>(a) + begin * kTileUnits * Line::kSteps * count * 4,
              own_blocks, fetch, sums + side * side_floats + group * rows * kPanelRows, begin == 0, expanded);
        }
      }
    }
    finish_rows<T>(a, sums, side_floats, first_row, last_row, panel);
  }
}

// Rows of the weight that lie as the checkpoint has them: a dot product each with each row, several of both at once, so that
// what is loaded serves more than one.
constexpr int kTailRows = kRegisters >= 32 ? 2 : 1, kTailOuts = kRegisters >= 32 ? 3 : 1;

template <class T, int kRows, int kOuts>
void multiply_tail(const LinearArgs& a, int64_t row, int64_t out) {
  const T *x[kRows], *w[kOuts];
  for (int r = 0; r < kRows; r++) x[r] = static_cast<const T*>(a.x) + a.offset_of(row + r);
  for (int o = 0; o < kOuts; o++) w[o] = static_cast<const T*>(a.weight) + (out + o) * a.in;
  V sums[kRows][kOuts][4];
  LULLM_UNROLL for (int i = 0; i < kRows * kOuts * 4; i++) sums[i / (4 * kOuts)][i / 4 % kOuts][i % 4] = zero();
  const auto add_products = [&](int chain, auto&& load_lanes) {
    V numbers[kOuts];
    LULLM_UNROLL for (int o = 0; o < kOuts; o++) numbers[o] = load_lanes(w[o]);
    LULLM_UNROLL for (int r = 0; r < kRows; r++) {
      const V number = load_lanes(x[r]);
      LULLM_UNROLL for (int o = 0; o < kOuts; o++) sums[r][o][chain] = fma(numbers[o], number, sums[r][o][chain]);
    }
  };
  int64_t i = 0;
  for (; i + 4 * kLanes <= a.in; i += 4 * kLanes)
    LULLM_UNROLL for (int chain = 0; chain < 4; chain++)
      add_products(chain, [&](const T* from) { return load(from + i + chain * kLanes); });
  for (; i < a.in; i += kLanes) add_products(0, [&](const T* from) { return load_up_to(from + i, a.in - i); });
  for (int r = 0; r < kRows; r++) {
    for (int o = 0; o < kOuts; o++) {
      const V(&four)[4] = sums[r][o];
      const float bias = a.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(a.bias)[out + o]);
      const float total = sum(add(add(four[0], four[1]), add(four[2], four[3]))) + bias;
      const int64_t at = (row + r) * a.y_stride + out + o;
      if (a.y_is_float) static_cast<float*>(a.y)[at] = total;
      else store_first(static_cast<T*>(a.y) + at, set1(total), 1);
    }
  }
}

template <class T, int kRows>
void multiply_tail_rows(const LinearArgs& a, int64_t row, int64_t first_out, int64_t last_out) {
  int64_t out = first_out;
  for (; out + kTailOuts <= last_out; out += kTailOuts) multiply_tail<T, kRows, kTailOuts>(a, row, out);
  for (; out < last_out; out++) multiply_tail<T, kRows, 1>(a, row, out);
}

template <class T>
void linear_tail(const LinearArgs& a, int64_t first_row, int64_t last_row, int64_t first_out, int64_t last_out) {
  int64_t row = first_row;
  for (; row + kTailRows <= last_row; row += kTailRows) multiply_tail_rows<T, kTailRows>(a, row, first_out, last_out);
  for (; row < last_row; row++) multiply_tail_rows<T, 1>(a, row, first_out, last_out);
}

void pack_panel(const void* rows, int64_t num_units, void* panel) {
  char* to = static_cast<char*>(panel);
  for (int64_t unit = 0; unit < num_units; unit += kTileUnits)
    for (int64_t row = 0; row < kPanelRows; row += kTileRows, to += kTileBytes)
      transpose(static_cast<const char*>(rows) + (row * num_units + unit) * 4, num_units * 4, to, kTileUnits * 4);
}

void unpack_panel(const void* panel, int64_t num_units, void* rows) {
  const char* from = static_cast<const char*>(panel);
  for (int64_t unit = 0; unit < num_units; unit += kTileUnits)
    for (int64_t row = 0; row < kPanelRows; row += kTileRows, from += kTileBytes)
      transpose(from, kTileUnits * 4, static_cast<char*>(rows) + (row * num_units + unit) * 4, num_units * 4);
}

// Products in registers only, for as long as `rounds` says: what no kernel can exceed. Gives the number of their additions
// and multiplications.
template <class Line>
int64_t spin_products(int64_t rounds) {
  alignas(64) const char zeros[64] = {};
  const typename Line::Part part = Line::part(zeros, 0);
  V sums[kMostRows];
  for (V& sum : sums) sum = zero();
  for (int64_t i = 0; i < rounds; i++) {
    LULLM_UNROLL for (V& sum : sums) {
      Line::multiply(sum, part, zeros);
      hold(sum);
    }
  }
  return rounds * kMostRows * kLanes * 2 * static_cast<int64_t>(4 / sizeof(typename Line::Element));
}

#if defined(LULLM_HAS_DOTS)
// Are dot products of pairs at least as quick as twice as many products of floats? On Sapphire Rapids they are half as
// quick, two threads 213 against 424 GFLOP/s. Their bits are the same, so measuring may decide.
bool prefers_dot() {
  if (!kDotsAreProducts) return true;
  const auto least_ticks = [](int64_t (*spin)(int64_t)) {
    uint64_t least = ~uint64_t{0};
    for (int tried = 0; tried < 8; tried++) {
      const uint64_t start = ticks();
      spin(64);
      const uint64_t taken = ticks() - start;
      if (taken < least) least = taken;
    }
    return least;
  };
  return 10 * least_ticks(spin_products<DotLine>) < 22 * least_ticks(spin_products<FloatLine>);
}
#endif

template <class Line>
void fill_line(Kernels& kernels) {
  constexpr int dtype = sizeof(typename Line::Element) == 4 ? kFloat32 : kBFloat16;
  kernels.linear_panels[dtype] = linear_panels<Line>;
  kernels.linear_tail[dtype] = linear_tail<typename Line::Element>;
  kernels.prepared_bytes[dtype] = prepared_bytes<Line>;
  kernels.prepare_rows[dtype] = prepare_rows<Line>;
  kernels.row_group[dtype] = rows_at_once;
  kernels.cached_row_bytes[dtype] = row_bytes<Line>;
  kernels.linear_scratch_bytes[dtype] = kSumsBytes + 2 * kPartBytes;
  kernels.spin_products[dtype] = spin_products<std::conditional_t<Line::kSteps == 2, FloatLine, Line>>;
}

}  // namespace

void fill_linear(Kernels& kernels) {
  fill_line<FloatLine>(kernels);
  fill_line<PairLine>(kernels);
#if defined(LULLM_HAS_DOTS)
  kernels.prefers_dots = prefers_dot();
  if (kernels.prefers_dots) fill_line<DotLine>(kernels);
#endif
  kernels.own_rows = kRegisters >= 32 ? 64 : 0;  // with fewer registers, 8 rows lost 5 % by it
  kernels.pack_panel = pack_panel;
  kernels.unpack_panel = unpack_panel;
}

}  // namespace LULLM_ISA
}  // namespace lullm
