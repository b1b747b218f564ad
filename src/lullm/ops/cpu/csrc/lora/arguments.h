// Low-rank adapters of a linear layer (https://arxiv.org/abs/2106.09685), of which several lie beside each other in places.
#pragma once

#include <cstdint>

namespace lullm {

// y [num_rows, out] += b a x of the adapter in the row's place. The layer has parts, whose outputs follow each other, each
// with an adapter of its own.
struct LoraArgs {
  const void* x;          // [num_rows, in]
  void* y;                // [num_rows, out]
  const void* a;          // [places, num_parts * max_rank, in]
  const void* b;          // [places, max_rank, out]
  const int64_t* ranks;   // [places, num_parts], at most max_rank; 0: no adapter here
  int64_t x_stride, y_stride, in, out, num_parts, max_rank;
};

// Rows with the same adapter.
struct LoraGroup {
  const int64_t* rows;  // of x and y
  float* inner;         // [rows, num_parts * max_rank]: what `a` gives
  int64_t place;
};

}  // namespace lullm
