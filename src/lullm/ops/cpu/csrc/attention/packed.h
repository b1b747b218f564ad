// Keys and values of a step as second operands of products, for vectors and for tiles.
//
// A unit is 32 bits of the direction that is summed over: a float, or two neighbours in bf16. A block is a tile of 16
// units by 16 columns, 1 KiB. Keys: elements of the head are summed over, the 64 keys are columns; blocks are ordered by
// units, then columns. Values: keys are summed over, elements of the head are columns; by columns, then units.
//
// For queries of bf16 vectors multiply keys of a cache of integers as integers, two of 16 bits in a unit: of four bytes in a
// row the first and the third, then the second and the fourth. That takes three instructions for 64 bytes, and floats eight.
//
// Bytes of keys become columns as bytes, four of a key side by side, and what they stand for after that: a quarter of the
// permutations.
#pragma once

#include <type_traits>

#include "../simd.h"
#include "rows.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int64_t kBlockBytes = kTileBytes;

// What products of queries of type T, or of weights, are made of: bf16 where the instruction set multiplies it and the
// cache holds it, else floats, which bytes become in fewer instructions.
#if defined(LULLM_HAS_DOTS)
template <class T, class C>
using Operand = std::conditional_t<std::is_same_v<T, Bf16> && std::is_same_v<C, Bf16>, Bf16, float>;
#else
template <class T, class C>
using Operand = float;
#endif

struct Int16 {
  int16_t value;
};

// A bf16 as a float, the second of two neighbours before the first: fused products in this order are dot products of pairs.
struct Swapped {
  float value;
};
template <class T, class C>
using KeyOperand = std::conditional_t<std::is_same_v<T, Bf16> && std::is_same_v<C, Int8>, Int16, Operand<T, C>>;

// Do keys become columns before they become operands?
template <class E, class C>
constexpr bool kAreBytes = sizeof(C) == 1 && (std::is_same_v<E, Int16> || std::is_same_v<E, float>);

// Are sums in the order of dot products whose bits are those of fused products?
template <class E>
#if defined(LULLM_HAS_DOTS)
constexpr bool kHasDotBits = kDotsAreProducts && (std::is_same_v<E, Bf16> || std::is_same_v<E, Swapped>);
#else
constexpr bool kHasDotBits = false;
#endif

template <class E>
constexpr int64_t kUnitElements = 4 / sizeof(E);
template <class E>
constexpr int64_t kBlockElements = kTileUnits * kUnitElements<E>;

// Blocks of units that a head has; the last may be filled up with zeros.
template <class E>
int64_t depth_of(int64_t head_size) {
  return (head_size + kBlockElements<E> - 1) / kBlockElements<E>;
}
// Blocks of units that the keys of a step are.
template <class E>
constexpr int64_t kStepBlocks = kStepKeys / kBlockElements<E>;

template <class E>
constexpr int64_t kStepUnits = kStepKeys / kUnitElements<E>;

template <class E>
int64_t key_bytes(int64_t head_size) {
  return depth_of<E>(head_size) * 4 * kBlockBytes;
}
template <class E>
int64_t value_bytes(int64_t head_size) {
  return head_size / 16 * kStepBlocks<E> * kBlockBytes;
}

// Keys or values of one head in a cache: row i begins at first + offset[i].
struct CacheRows {
  const char* first;
  const int64_t* offset;

  template <class C>
  const C* row(int64_t i) const {
    return reinterpret_cast<const C*>(first + offset[i]);
  }
};

// The operand's elements that make up a block's row, in 16 units. `left`: a multiple of 16; those past it are zero.
template <class E, class C>
inline V load_units(const C* p, [[maybe_unused]] int64_t left) {
  if constexpr (std::is_same_v<E, float>) return load(p);
#if defined(LULLM_HAS_DOTS)
  else if constexpr (std::is_same_v<E, Swapped>) return swap_neighbours(load(p));
  else return load_pairs(p, left);
#endif
}

// The even and the odd elements of a block of pairs become two blocks of floats, unit after unit.
template <class E>
inline void split_pairs(const char* pairs, char* to, int64_t next) {
  constexpr int64_t kEven = std::is_same_v<E, Swapped> ? 64 : 0;
  for (int64_t i = 0; i < 16; i++) {
    const Bf16* unit = reinterpret_cast<const Bf16*>(pairs + 64 * i);
    char* place = to + i / 8 * next + i % 8 * 128;
    store(reinterpret_cast<float*>(place + kEven), even(unit));
    store(reinterpret_cast<float*>(place + 64 - kEven), odd(unit));
  }
}

// The two units of 16 keys that four bytes of each are.
inline I first_and_third(I bytes) { return shift_signed_16<8>(shift_left_16<8>(bytes)); }
inline I second_and_fourth(I bytes) { return shift_signed_16<8>(bytes); }

// Sixty-four bytes, or as many as are left, and zeros.
inline V load_bytes(const void* p, int64_t left) {
  if (left >= 64) return load(static_cast<const float*>(p));
  alignas(64) float bytes[kLanes] = {};
  std::memcpy(bytes, p, left);
  return load(bytes);
}

// The four bytes of sixteen keys as operands, as many units as these are, 64 bytes each.
template <class E, class C>
inline void widen_bytes(const char* four, char* units) {
  if constexpr (std::is_same_v<E, Int16>) {
    const I bytes = load_integers(four);
    store_integers(units, first_and_third(bytes));
    store_integers(units + 64, second_and_fourth(bytes));
  } else {
    alignas(64) C runs[64];
    split_bytes(four, runs);
    LULLM_UNROLL for (int64_t i = 0; i < 4; i++) store(reinterpret_cast<float*>(units) + i * kLanes, load(runs + 16 * i));
  }
}

template <class E, class C, class Between>
void pack_bytes(int64_t head_size, const CacheRows& keys, char* to, Between&& between) {
  constexpr int64_t kFours = kBlockElements<E> / 4;  // in a block
  for (int64_t d = 0; d < head_size; d += 64) {
    const int64_t num_blocks = (std::min<int64_t>(64, head_size - d) + kBlockElements<E> - 1) / kBlockElements<E>;
    for (int64_t first = 0; first < kStepKeys; first += 16) {
      alignas(64) char bytes[kBlockBytes];
      V rows[16];
      LULLM_UNROLL for (int64_t i = 0; i < 16; i++) rows[i] = load_bytes(keys.row<C>(first + i) + d, head_size - d);
      transpose(rows, bytes);
      for (int64_t block = 0; block < num_blocks; block++) {
        char* units = to + block * 4 * kBlockBytes + first / 16 * kBlockBytes;
        for (int64_t i = kFours * block; i < kFours * (block + 1); i++, units += kBlockBytes / kFours)
          widen_bytes<E, C>(bytes + 64 * i, units);
        between();
      }
    }
    to += num_blocks * 4 * kBlockBytes;
  }
}

// Do these rows of e4m3 hold a NaN? Looked for apart, it costs an eighth of what it does in every conversion.
inline bool rows_hold_nan(int64_t head_size, const CacheRows& rows, int64_t count) {
  I most = zero_integers();
  for (int64_t i = 0; i < count; i++)
    for (int64_t d = 0; d < head_size; d += 64)
      most = note_nan(most, bits_of(load_bytes(rows.row<Float8>(i) + d, head_size - d)));
  return holds_nan(most);
}

// Calls body with an element of the type as which the first `count` rows are read for operands of type E.
template <class E, class C, class Body>
inline void with_elements(int64_t head_size, const CacheRows& rows, int64_t count, Body&& body) {
  if constexpr (std::is_same_v<C, Float8> && std::is_same_v<E, float>) {
    if (!rows_hold_nan(head_size, rows, count)) return body(FiniteFloat8());
  }
  body(C());
}

// `between` is called after every block.
template <class E, class C, class Between>
void pack_keys(int64_t head_size, const CacheRows& keys, char* to, Between&& between) {
  constexpr int64_t kElements = kBlockElements<E>;
  if constexpr (kAreBytes<E, C>) return pack_bytes<E, C>(head_size, keys, to, between);
  int64_t d = 0;
  if constexpr (std::is_same_v<C, Bf16> && kUnitElements<E> == 1) {  // two elements at a time: half the permutations
    for (; d + 32 <= head_size; d += 32, to += 4 * kBlockBytes) {
      for (int64_t first = 0; first < kStepKeys; first += 16, to += kBlockBytes) {
        alignas(64) char pairs[kBlockBytes];
        V rows[16];
        LULLM_UNROLL for (int64_t i = 0; i < 16; i++)
          rows[i] = load(reinterpret_cast<const float*>(keys.row<C>(first + i) + d));
        transpose(rows, pairs);
        split_pairs<E>(pairs, to, 4 * kBlockBytes);
        between();
        between();
      }
    }
  }
  for (; d < head_size; d += kElements) {
    for (int64_t first = 0; first < kStepKeys; first += 16, to += kBlockBytes) {
      V rows[16];
      LULLM_UNROLL for (int64_t i = 0; i < 16; i++)
        rows[i] = load_units<E>(keys.row<C>(first + i) + d, head_size - d);
      transpose(rows, to);
      between();
    }
  }
}

#if defined(LULLM_HAS_DOTS)
// Two neighbours in the sequence side by side. Of 32 elements of the head the even ones make a block and the odd ones the
// next, which takes no permutation here; `write` puts them in order.
template <class C>
inline void pair(const C* first, const C* second, V& even, V& odd) {
  const V low = load_pairs(first, 32), high = load_pairs(second, 32);
  even = pair_even(low, high), odd = pair_odd(low, high);
}
// Where 16 elements are left.
template <class C>
inline V pair_last(const C* first, const C* second) {
  return pair_first(load_pairs(first, kLanes), load_pairs(second, kLanes));
}
#endif

// A unit of keys, with all elements of the head. `to`: its place in the first block of columns.
template <class E, class C>
inline void pack_unit(int64_t head_size, const CacheRows& values, int64_t unit, char* to) {
  constexpr int64_t kNextBytes = kStepBlocks<E> * kBlockBytes;
  if constexpr (kUnitElements<E> == 1) {
    const C* value = values.row<C>(unit ^ static_cast<int64_t>(std::is_same_v<E, Swapped>));
    for (int64_t d = 0; d < head_size; d += kLanes, to += kNextBytes)
      store(reinterpret_cast<float*>(to), load(value + d));
  }
#if defined(LULLM_HAS_DOTS)
  else {
    const C *first = values.row<C>(2 * unit), *second = values.row<C>(2 * unit + 1);
    int64_t d = 0;
#if defined(LULLM_PAIRS_BYTES)
    if constexpr (std::is_same_v<C, Int8>) {
      for (; d + 64 <= head_size; d += 64, to += 4 * kNextBytes) {
        V columns[4];
        pair_bytes(first + d, second + d, columns);
        LULLM_UNROLL for (int i = 0; i < 4; i++) store(reinterpret_cast<float*>(to + i * kNextBytes), columns[i]);
      }
    }
#endif
    for (; d + 32 <= head_size; d += 32, to += 2 * kNextBytes) {
      V even, odd;
      pair(first + d, second + d, even, odd);
      store(reinterpret_cast<float*>(to), even);
      store(reinterpret_cast<float*>(to + kNextBytes), odd);
    }
    if (d < head_size) store(reinterpret_cast<float*>(to), pair_last(first + d, second + d));
  }
#endif
}

template <class E, class C>
inline void pack_values(int64_t head_size, const CacheRows& values, int64_t first_unit, int64_t last_unit, char* to) {
  for (int64_t unit = first_unit; unit < last_unit; unit++)
    pack_unit<E, C>(head_size, values, unit, to + unit / 16 * kBlockBytes + unit % 16 * 64);
}

}  // namespace
}  // namespace LULLM_ISA
}  // namespace lullm
