// The sum of equal parts, in their order, in float32, rounded once.

#include "../kernel_table.h"
#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {

namespace {

template <class T>
void sum_lanes(const void* const* parts, int64_t num_parts, T* out, int64_t i) {
  V total = load(static_cast<const T*>(parts[0]) + i);
  for (int64_t part = 1; part < num_parts; part++) total = add(total, load(static_cast<const T*>(parts[part]) + i));
  store(out + i, total);
}

template <class T>
void sum_parts(const void* const* parts, int64_t num_parts, void* out, int64_t first, int64_t last) {
  T* to = static_cast<T*>(out);
  int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) sum_lanes(parts, num_parts, to, i);
  if (i == last) return;
  alignas(64) T ends[kMaxMembers][kLanes] = {}, sums[kLanes];
  const void* rows[kMaxMembers];
  for (int64_t part = 0; part < num_parts; part++) {
    std::memcpy(ends[part], static_cast<const T*>(parts[part]) + i, (last - i) * sizeof(T));
    rows[part] = ends[part];
  }
  sum_lanes(rows, num_parts, sums, 0);
  std::memcpy(to + i, sums, (last - i) * sizeof(T));
}

}  // namespace

void fill_collective(Kernels& kernels) {
  kernels.sum_parts[kFloat32] = sum_parts<float>;
  kernels.sum_parts[kBFloat16] = sum_parts<Bf16>;
  kernels.sum_parts[kFloat16] = sum_parts<Half>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
