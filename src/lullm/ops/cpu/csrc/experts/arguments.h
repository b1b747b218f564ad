// Experts: the arguments of the kernels that choose experts, and that join what they give.
#pragma once

#include <cstdint>

namespace lullm {

// Chooses `num_used` experts per row, and their shares; see `ops/experts/routing.py`.
struct RouteArgs {
  const void* products;     // [T, num_experts]
  const float* correction;  // [num_experts], added for the choice only; or null
  const float* factors;     // [num_experts], of the shares; or null
  int64_t* experts;         // [T, num_used], ascending
  float* shares;            // [T, num_used]
  int64_t stride, num_experts, num_used, num_groups, num_used_groups;
  int64_t num_group_scores;  // a group's rank is the sum of so many of its best scores
  float scale;
  bool is_sigmoid, normalizes;  // else scores are a softmax; shares are parts of their sum

  int64_t scratch_bytes() const { return 4 * (7 * num_experts + 3 * num_used + 64); }
};

// y = (up + 1) gate sigmoid(alpha gate), gates at most `limit`, ups within it on both sides.
struct ClampedGateArgs {
  const void* x;  // [T, 2 * size], gates first
  void* y;        // [T, size]
  int64_t size;
  float alpha, limit;
};

// A row's sum of its experts' results, each times its share, and of a result that all rows have.
struct MixArgs {
  const void* parts;       // [T * num_used, size], by expert
  const int64_t* places;   // [T, num_used]: of a row's results in `parts`, by ascending expert
  const float* shares;     // [T, num_used]
  const void* shared;      // [T, size], rows `stride` apart, or null
  const void* shared_gate; // [T] or null: its sigmoid is the shared result's share, 1 otherwise
  void* y;                 // [T, size], rows `stride` apart
  int64_t stride, size, num_used;
  int64_t first_place, last_place;  // results outside of these are other workers'
};

}  // namespace lullm
