// Products of few rows with the keys and values of a step where these lie in the cache.
//
// For few rows packing costs more than the products: values are read in place, and of keys two blocks at a time become
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

constexpr int64_t kPortionBytes = 128;  // of a block, beside which the next ones are fetched

// Blocks of 16 keys each, one behind the other. U: what their units are made of, operands, or two bf16 or four bytes of
// which these are made.
//
// A function of its own, as `add_columns` is: gcc takes five times as long for all of them in one, which is no faster.
template <class E, class U, int kRows, int64_t kBlocks, class Between>
__attribute__((noinline)) void multiply_columns(const Scores<E>& p, const char* blocks, Between&& between) {
  using L = Lanes<E>;
  typename L::Vector sums[kBlocks][kRows];
  LULLM_UNROLL for (int64_t g = 0; g < kBlocks; g++)
    LULLM_UNROLL for (int r = 0; r < kRows; r++) sums[g][r] = L::read(p.sums + r * kStepKeys + 16 * g);
  const E* row = p.rows;
  auto multiply = [&](auto&& columns_of) __attribute__((always_inline)) {
    LULLM_UNROLL for (int64_t g = 0; g < kBlocks; g++) {
      const typename L::Vector columns = columns_of(blocks + g * kBlockBytes);
      LULLM_UNROLL for (int r = 0; r < kRows; r++) {
        sums[g][r] = multiply_add(row, spread(row + r * p.row_stride), columns, sums[g][r]);
        if constexpr (std::is_same_v<E, Int16>) hold(sums[g][r]);
      }
    }
    row += kUnitElements<E>;
  };
  alignas(64) U runs[sizeof(U) == 1 && std::is_same_v<E, float> ? kBlocks * kBlockBytes : 1];
  if constexpr (sizeof runs > sizeof(U)) {
    for (int64_t i = 0; i < kBlocks * kBlockBytes; i += 64) split_bytes(blocks + i, runs + i);
  }
  LULLM_UNROLL for (int64_t at = 0; at < kBlockBytes; at += 64) {
    if (at % kPortionBytes == 0) between();
    if constexpr (std::is_same_v<U, Bf16> && std::is_same_v<E, float>) {
      multiply([&](const char* block) { return even(reinterpret_cast<const Bf16*>(block + at)); });
      multiply([&](const char* block) { return odd(reinterpret_cast<const Bf16*>(block + at)); });
    } else if constexpr (std::is_same_v<E, Int16>) {
      multiply([&](const char* block) { return first_and_third(load_integers(block + at)); });
      multiply([&](const char* block) { return second_and_fourth(load_integers(block + at)); });
    } else if constexpr (sizeof(U) > 1) {
      multiply([&](const char* block) { return load(reinterpret_cast<const float*>(block + at)); });
    } else {
      for (int64_t i = at; i < at + 64; i += 16) multiply([&](const char* block) { return load(runs + (block - blocks) + i); });
    }
  }
  LULLM_UNROLL for (int64_t g = 0; g < kBlocks; g++)
    LULLM_UNROLL for (int r = 0; r < kRows; r++) L::write(p.sums + r * kStepKeys + 16 * g, sums[g][r]);
}

// `between` gets its share of the `num_bytes` that were read of these keys.
template <class E, class U, int64_t kGroups, class Between>
void multiply_columns(const Scores<E>& p, int64_t num_rows, const char* blocks, int64_t num_bytes, Between&& between) {
  for (int64_t row = 0; row < num_rows; row += kRowsAtOnce) {
    const Scores<E> own = {p.rows + row * p.row_stride, p.row_stride, p.sums + row * kStepKeys};
    const int64_t row_bytes = row == 0 ? num_bytes : 0;
    with_rows(num_rows - row, [&](auto rows) {
      constexpr int64_t kBlocks = kRegisters >= 32 || rows <= 2 ? kGroups : 1;
      for (int64_t g = 0; g < kGroups; g += kBlocks)
        multiply_columns<E, U, rows, kBlocks>({own.rows, own.row_stride, own.sums + 16 * g}, blocks + g * kBlockBytes,
                                              [&] { between(row_bytes * kBlocks / kGroups * kPortionBytes / kBlockBytes); });
    });
  }
}

// The products with 16 kGroups keys of a step, from `first` on, are added to the sums. `between` gets the number of bytes
// just read.
//
// All elements of a few keys are read before those of the next: elements of 64 keys first, 4 x 1600 take a tenth longer.
template <class E, class C, int64_t kGroups, class Between>
void multiply_keys(int64_t head_size, const CacheRows& keys, int64_t first, const Scores<E>& p, int64_t num_rows,
                   Between&& between) {
  constexpr int64_t kElements = kTileUnits * 4 / sizeof(C);
  alignas(64) char blocks[kGroups * kBlockBytes];
  int64_t d = 0;
  auto multiply = [&](auto unit, int64_t num_elements, auto&& load_row) {
    LULLM_UNROLL for (int64_t g = 0; g < kGroups; g++) {
      V rows[16];
      LULLM_UNROLL for (int64_t i = 0; i < 16; i++) rows[i] = load_row(keys.row<C>(first + 16 * g + i) + d);
      transpose(rows, blocks + g * kBlockBytes);
    }
    multiply_columns<E, decltype(unit), kGroups>({p.rows + d, p.row_stride, p.sums + first}, num_rows, blocks,
                                                 16 * kGroups * num_elements * sizeof(C), between);
    d += num_elements;
  };
  if constexpr (std::is_same_v<C, Bf16> && std::is_same_v<E, float>) {
    while (d + kElements <= head_size)
      multiply(C(), kElements, [](const C* key) { return load(reinterpret_cast<const float*>(key)); });
  }
  if constexpr (kAreBytes<E, C>) {
    while (d < head_size) multiply(C(), kElements, [&](const C* key) { return load_bytes(key, head_size - d); });
  } else {
    while (d < head_size)
      multiply(E(), kBlockElements<E>, [&](const C* key) { return load_units<E>(key, head_size - d); });
  }
}

// In which order a row's sums of values lie (`fold.h`): that in which a cache of C gives its elements.
template <class C>
using DirectOrder = std::conditional_t<std::is_same_v<C, Bf16>, Bf16, float>;

// Columns of a unit of keys: `kVectors` of them from element d of the head on, in DirectOrder.
template <class E, class C, int kVectors>
__attribute__((always_inline)) inline void load_columns(const CacheRows& values, int64_t unit, int64_t d, int64_t head_size,
                                                        V* columns) {
  if constexpr (std::is_same_v<E, float>) {
    const C* value = values.row<C>(unit) + d;
    if constexpr (!std::is_same_v<C, Bf16>) {
      LULLM_UNROLL for (int j = 0; j < kVectors; j++) columns[j] = load(value + j * kLanes);
    } else if constexpr (kVectors > 1) {  // an instruction for 16 elements, where their own order takes two
      LULLM_UNROLL for (int j = 0; j < kVectors; j += 2)
        columns[j] = even(value + j * kLanes), columns[j + 1] = odd(value + j * kLanes);
    } else {
      columns[0] = d % (2 * kLanes) != 0 ? odd(value - kLanes) : d + 2 * kLanes <= head_size ? even(value) : load(value);
    }
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
  bool is_first;  // of the passes over these values: what comes next is fetched beside it
};

template <class E, class C, int kRows, int kVectors, class Between>
__attribute__((noinline)) void add_columns(const Weighted<E>& p, const CacheRows& values, int64_t num_units, int64_t d,
                                           Between&& between) {
  V sums[kRows][kVectors];
  float* to = p.sums + d;
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) sums[r][j] = load(to + r * p.head_size + j * kLanes);
  auto add_unit = [&](int64_t unit) __attribute__((always_inline)) {
    V columns[kVectors];
    load_columns<E, C, kVectors>(values, unit, d, p.head_size, columns);
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
    between(p.is_first ? kUnits * kBytes : 0);
  }
  for (; unit < num_units; unit++) add_unit(unit);
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) store(to + r * p.head_size + j * kLanes, sums[r][j]);
}

// Vectors of columns of so many rows whose sums have a register each. Pairs become two at a time.
template <class E>
constexpr int vectors_for(int rows) {
  if (kRegisters >= 32) return rows <= 2 ? 8 : 4;
  return rows == 1 ? 4 : rows <= 3 || kUnitElements<E> == 2 ? 2 : 1;
}

// Up to kRowsAtOnce rows. `between` gets the number of bytes just read.
template <class E, class C, class Between>
void add_values(const Weighted<E>& p, int64_t num_rows, const CacheRows& values, int64_t num_keys, Between&& between) {
  const int64_t num_units = (num_keys + kUnitElements<E> - 1) / kUnitElements<E>;
  with_rows(num_rows, [&](auto rows) {
    constexpr int kVectors = vectors_for<E>(rows);
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
