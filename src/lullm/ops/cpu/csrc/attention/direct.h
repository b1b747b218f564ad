// Products of few rows with the keys and values of a step where these lie in the cache.
//
// For few rows packing costs more than the products: values are read in place, and of keys one block at a time becomes
// columns. Each sum runs over the units from first to last, as with packed operands (`products.h`): the same bits.
#pragma once

#include "packed.h"
#include "products.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// Rows [rows, head] and what becomes of them, [rows, kStepKeys].
template <class E>
struct Scores {
  const E* rows;
  int64_t row_stride;  // in elements
  float* sums;         // of Int16, integers
};

// A block of 16 keys. U: what its units are made of, operands, or two bf16 or four bytes of which these are made.
template <class E, class U, int kRows>
inline void multiply_columns(const Scores<E>& p, const char* block) {
  using L = Lanes<E>;
  typename L::Vector sums[kRows];
  LULLM_UNROLL for (int r = 0; r < kRows; r++) sums[r] = L::read(p.sums + r * kStepKeys);
  const E* row = p.rows;
  auto multiply = [&](typename L::Vector columns) __attribute__((always_inline)) {
    LULLM_UNROLL for (int r = 0; r < kRows; r++) {
      sums[r] = multiply_add(row, spread(row + r * p.row_stride), columns, sums[r]);
      if constexpr (std::is_same_v<E, Int16>) hold(sums[r]);
    }
    row += kUnitElements<E>;
  };
  LULLM_UNROLL for (int64_t unit = 0; unit < kTileUnits; unit++, block += 64) {
    if constexpr (std::is_same_v<U, Bf16> && std::is_same_v<E, float>) {
      multiply(even(reinterpret_cast<const Bf16*>(block)));
      multiply(odd(reinterpret_cast<const Bf16*>(block)));
    } else if constexpr (std::is_same_v<E, Int16>) {
      multiply(first_and_third(load_integers(block)));
      multiply(second_and_fourth(load_integers(block)));
    } else if constexpr (sizeof(U) > 1) {
      multiply(load(reinterpret_cast<const float*>(block)));
    }
  }
  if constexpr (sizeof(U) == 1 && std::is_same_v<E, float>) {
    alignas(64) U runs[kBlockBytes];
    for (int64_t i = 0; i < kBlockBytes; i += 64) split_bytes(block - kBlockBytes + i, runs + i);
    for (int64_t i = 0; i < kBlockBytes; i += 16) multiply(load(runs + i));
  }
  LULLM_UNROLL for (int r = 0; r < kRows; r++) L::write(p.sums + r * kStepKeys, sums[r]);
}

template <class E, class U>
void multiply_columns(const Scores<E>& p, int64_t num_rows, const char* block) {
  for (int64_t row = 0; row < num_rows; row += kRowsAtOnce) {
    const Scores<E> own = {p.rows + row * p.row_stride, p.row_stride, p.sums + row * kStepKeys};
    with_rows(num_rows - row, [&](auto rows) { multiply_columns<E, U, rows>(own, block); });
  }
}

// The products with the first `count` keys of a step, in whole blocks. `between` gets the number of lines just read.
template <class E, class C, class Between>
void multiply_keys(int64_t head_size, const CacheRows& keys, int64_t count, const Scores<E>& p, int64_t num_rows,
                   Between&& between) {
  constexpr int64_t kElements = kTileUnits * 4 / sizeof(C);
  alignas(64) char block[kBlockBytes];
  std::memset(p.sums, 0, num_rows * kStepKeys * sizeof(float));
  int64_t d = 0;
  auto multiply = [&](auto unit, auto&& load_row) {
    for (int64_t first = 0; first < count; first += 16) {
      V rows[16];
      LULLM_UNROLL for (int64_t i = 0; i < 16; i++) {
        rows[i] = load_row(keys.row<C>(first + i) + d);
        if (i % 4 == 3) between(4);
      }
      transpose(rows, block);
      multiply_columns<E, decltype(unit)>({p.rows + d, p.row_stride, p.sums + first}, num_rows, block);
    }
  };
  if constexpr (std::is_same_v<C, Bf16> && std::is_same_v<E, float>) {
    for (; d + kElements <= head_size; d += kElements)
      multiply(C(), [](const C* key) { return load(reinterpret_cast<const float*>(key)); });
  }
  if constexpr (kAreBytes<E, C>) {
    for (; d < head_size; d += kElements)
      multiply(C(), [&](const C* key) { return load_bytes(key, head_size - d); });
  } else {
    for (; d < head_size; d += kBlockElements<E>)
      multiply(E(), [&](const C* key) { return load_units<E>(key, head_size - d); });
  }
}

// Columns of a unit of keys: `kVectors` of them from element d of the head on, in the order of packed values.
template <class E, class C, int kVectors>
__attribute__((always_inline)) inline void load_columns(const CacheRows& values, int64_t unit, int64_t d, V* columns) {
  if constexpr (std::is_same_v<E, float>) {
    const C* value = values.row<C>(unit) + d;
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) columns[j] = load(value + j * kLanes);
  } else {
    const C *first = values.row<C>(2 * unit) + d, *second = values.row<C>(2 * unit + 1) + d;
    if constexpr (kVectors == 1) columns[0] = pair_last(first, second);
    else LULLM_UNROLL for (int j = 0; j < kVectors; j += 2)
      pair(first + j * kLanes, second + j * kLanes, columns[j], columns[j + 1]);
  }
}

// Rows [rows, kStepKeys] and the sums they are added to, [rows, head_size].
template <class E>
struct Weighted {
  const E* rows;
  float* sums;
  int64_t head_size;
};

template <class E, class C, int kRows, int kVectors, class Between>
inline void add_columns(const Weighted<E>& p, const CacheRows& values, int64_t num_units, int64_t d, Between&& between) {
  V sums[kRows][kVectors];
  float* to = p.sums + d;
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) sums[r][j] = load(to + r * p.head_size + j * kLanes);
  auto add_unit = [&](int64_t unit) __attribute__((always_inline)) {
    V columns[kVectors];
    load_columns<E, C, kVectors>(values, unit, d, columns);
    LULLM_UNROLL for (int r = 0; r < kRows; r++) {
      const V own = spread(p.rows + r * kStepKeys + unit * kUnitElements<E>);
      LULLM_UNROLL for (int j = 0; j < kVectors; j++) sums[r][j] = multiply_add(p.rows, own, columns[j], sums[r][j]);
    }
  };
  constexpr int64_t kBytes = kUnitElements<E> * kVectors * kLanes * sizeof(C);
  constexpr int64_t kUnits = kBytes >= 256 ? 1 : kBytes >= 128 ? 2 : 4;
  int64_t unit = 0;
  for (; unit + kUnits <= num_units; unit += kUnits) {
    LULLM_UNROLL for (int64_t i = 0; i < kUnits; i++) add_unit(unit + i);
    between(std::max<int64_t>(1, kUnits * kBytes / 64));
  }
  for (; unit < num_units; unit++) add_unit(unit);
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) store(to + r * p.head_size + j * kLanes, sums[r][j]);
}

// Vectors of columns of so many rows whose sums have a register each.
constexpr int vectors_for(int rows) {
  if (kRegisters >= 32) return rows <= 2 ? 8 : 4;
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

// Up to kRowsAtOnce rows. `between` gets the number of lines just read.
template <class E, class C, class Between>
void add_values(const Weighted<E>& p, int64_t num_rows, const CacheRows& values, int64_t num_keys, Between&& between) {
  const int64_t num_units = (num_keys + kUnitElements<E> - 1) / kUnitElements<E>;
  with_rows(num_rows, [&](auto rows) {
    constexpr int kVectors = vectors_for(rows);
    int64_t d = 0;
    for (; d + kVectors * kLanes <= p.head_size; d += kVectors * kLanes)
      add_columns<E, C, rows, kVectors>(p, values, num_units, d, between);
    for (; d + 2 * kLanes <= p.head_size; d += 2 * kLanes)
      add_columns<E, C, rows, 2>(p, values, num_units, d, between);
    if (d < p.head_size) add_columns<E, C, rows, 1>(p, values, num_units, d, between);
  });
}

}  // namespace
}  // namespace LULLM_ISA
}  // namespace lullm
