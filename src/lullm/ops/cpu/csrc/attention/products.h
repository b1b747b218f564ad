// Products of rows with packed keys and values in vectors: a few rows at a time, every sum in a register of its own.
//
// The sum of a result runs over the units from first to last, whatever the number of rows and columns done at once.
//
// Numbers of rows lie at distances that are constants: an address of two registers costs AVX2 a twelfth of its products.
#pragma once

#include "packed.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// 6 rows of 64 columns: 24 of 32 vectors in registers hold sums; of 16 columns: 6 of 8.
constexpr int kColumnVectors = kRegisters >= 32 ? 4 : 1;
constexpr int kRowsAtOnce = 6;

// What a vector of sums and operands of type E is.
template <class E>
struct Lanes {
  using Vector = V;
  static V none() { return zero(); }
  static V read(const void* p) { return load(static_cast<const float*>(p)); }
  static void write(float* p, V v) { store(p, v); }
};
template <>
struct Lanes<Int16> {
  using Vector = I;
  static I none() { return zero_integers(); }
  static I read(const void* p) { return load_integers(p); }
  static void write(float* p, I v) { store_integers(p, v); }
};

inline I spread(const Int16* p) {
  int32_t unit;
  std::memcpy(&unit, p, 4);
  return set_integers(unit);
}
inline I multiply_add(const Int16*, I row, I columns, I sum) { return add_dot(sum, row, columns); }
inline V spread(const float* p) { return set1(*p); }
inline V multiply_add(const float*, V row, V columns, V sum) { return fma(row, columns, sum); }
inline V spread(const Swapped* p) { return set1(p->value); }
inline V multiply_add(const Swapped*, V row, V columns, V sum) { return fma(row, columns, sum); }
#if defined(LULLM_HAS_DOTS)
inline V spread(const Bf16* p) { return set_pair(p); }
inline V multiply_add(const Bf16*, V row, V columns, V sum) { return dot(sum, row, columns); }
#endif

// Strides are in elements, of which a unit has `unit`. Queries times keys: sums begin at zero. Of each unit the queries' elements lie side by side (`gather_units`).
struct OfKeys {
  static constexpr bool kAdds = false;
  static constexpr int64_t row_stride(int64_t unit) { return unit; }
  static constexpr int64_t unit_stride(int64_t unit, int64_t num_rows) { return num_rows * unit; }
};
// Weights times values: added to sums. A row's weights lie side by side.
struct OfValues {
  static constexpr bool kAdds = true;
  static constexpr int64_t row_stride(int64_t) { return kStepKeys; }
  static constexpr int64_t unit_stride(int64_t unit, int64_t) { return unit; }
};

// Rows of `row_bytes` as `OfKeys` has them. Reads sixteen rows, and writes up to kSpareBytes beyond.
constexpr int64_t kSpareBytes = 64;
inline void gather_units(const char* rows, int64_t row_bytes, int64_t num_rows, char* to) {
  alignas(64) char columns[kBlockBytes];
  for (const char* end = rows + row_bytes; rows < end; rows += 64) {
    transpose(rows, row_bytes, columns, 64);
    LULLM_UNROLL for (int64_t i = 0; i < kTileUnits; i++, to += 4 * num_rows) std::memcpy(to, columns + 64 * i, 64);
  }
}

// A first operand [rows, depth * 16 units] and a second one, in blocks.
template <class E>
struct Product {
  const E* rows;
  const char* columns;
  int64_t depth;          // in blocks
  int64_t depth_stride;   // of the blocks, in bytes
  int64_t column_stride;
  float* sums;            // [rows, columns]; of Int16, integers
  int64_t sum_stride;
};

template <class Of, int kRows, int kVectors, class E>
inline void multiply_block(const Product<E>& p, int64_t column) {
  using L = Lanes<E>;
  constexpr int64_t kNextRow = Of::row_stride(kUnitElements<E>), kNextUnit = Of::unit_stride(kUnitElements<E>, kRows);
  constexpr int kUnrolled = 4;  // the loop's own additions would take places of products, a twentieth of them
  typename L::Vector sums[kRows][kVectors];
  float* to = p.sums + column * kLanes;
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++)
      sums[r][j] = Of::kAdds ? L::read(to + r * p.sum_stride + j * kLanes) : L::none();
  const char* block = p.columns + column * p.column_stride;
  const E* row = p.rows;
  for (int64_t depth = 0; depth < p.depth; depth++, block += p.depth_stride - kBlockBytes) {
    for (int64_t unit = 0; unit < kTileUnits; unit += kUnrolled) {
      LULLM_UNROLL for (int i = 0; i < kUnrolled; i++, block += 64, row += kNextUnit) {
        typename L::Vector columns[kVectors];
        LULLM_UNROLL for (int j = 0; j < kVectors; j++) columns[j] = L::read(block + j * p.column_stride);
        LULLM_UNROLL for (int r = 0; r < kRows; r++) {
          const auto own = spread(row + r * kNextRow);
          LULLM_UNROLL for (int j = 0; j < kVectors; j++) sums[r][j] = multiply_add(row, own, columns[j], sums[r][j]);
        }
      }
    }
  }
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) L::write(to + r * p.sum_stride + j * kLanes, sums[r][j]);
}

template <class Of, int kRows, int kVectors, class E>
void multiply_columns(const Product<E>& p, int64_t column, int64_t num_columns) {
  for (; column + kVectors <= num_columns; column += kVectors) multiply_block<Of, kRows, kVectors>(p, column);
  if constexpr (kVectors > 1) multiply_columns<Of, kRows, kVectors / 2>(p, column, num_columns);
}

// Calls body(number of rows) with a constant: `num_rows`, at most kRowsAtOnce.
template <class Body>
void with_rows(int64_t num_rows, Body&& body) {
  switch (num_rows) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    default: return body(std::integral_constant<int, kRowsAtOnce>());
  }
}

// `num_columns` in vectors. Up to kRowsAtOnce rows.
template <class Of, class E>
void multiply(const Product<E>& p, int64_t num_rows, int64_t num_columns) {
  with_rows(num_rows, [&](auto rows) { multiply_columns<Of, rows, kColumnVectors>(p, 0, num_columns); });
}

}  // namespace
}  // namespace LULLM_ISA
}  // namespace lullm
