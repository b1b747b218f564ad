// Element types of tensors, and the layout of packed weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lullm {

struct Bf16 {
  uint16_t bits;
};

// Elements of a KV cache of 8 bits: integers with a scale per row, and e4m3 (https://arxiv.org/abs/2209.05433).
struct Int8 {
  int8_t value;
};
struct Float8 {
  uint8_t bits;
};
// Of which none is NaN.
struct FiniteFloat8 : Float8 {};

// Half precision, which only sums over workers know.
struct Half {
  uint16_t bits;
};

enum DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// What is applied to the gates of a linear layer of gates and ups, or to a tensor. `kClampedSilu` is for gates only.
enum Activation : int { kNoActivation = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3, kRelu = 4, kClampedSilu = 5, kRelu2 = 6 };

inline int64_t size_of(int dtype) { return dtype == kFloat32 ? 4 : 2; }

// What a KV cache holds: elements of the activations' type; int8, and behind each row of a head its scale, a float16; or
// e4m3, with a scale per head, which lies elsewhere.
enum CacheFormat : int { kPlainCache = 0, kInt8Cache = 1, kFloat8Cache = 2, kNumCacheFormats = 3 };

constexpr int64_t kScaleBytes = 2;

// A weight [out, in] is packed in place, 32 rows at a time, so that one row of activations reads it as one stream.
//
// Its rows are seen as 32-bit units: one float, or a pair of bf16 neighbours. A tile is 16 rows by 16 units, transposed:
// unit u of the rows r..r+15 lies in one cache line. That is what a bf16 dot product with a broadcast pair wants, and
// also what an AMX multiplication wants as its second operand. A panel is 32 rows: for each 16 units the tile of its
// first 16 rows, then the tile of the others. A panel fills the same bytes as the rows it is made of. Rows after the
// last whole panel stay as they are; so do matrices whose rows are not whole tiles.
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileUnits = 16;
constexpr int64_t kTileBytes = kTileRows * kTileUnits * 4;
constexpr int64_t kPanelRows = 2 * kTileRows;

inline int64_t units_of(int64_t in, int dtype) { return in * size_of(dtype) / 4; }

// The number of whole panels of a packed weight; 0 if its rows are not whole tiles.
inline int64_t num_panels(int64_t out, int64_t in, int dtype) {
  return in * size_of(dtype) % (4 * kTileUnits) == 0 ? out / kPanelRows : 0;
}

}  // namespace lullm
