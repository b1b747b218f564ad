// Attention over the paged cache with vectors: up to eight query rows share each key and value that is read.
//
// Online softmax (https://arxiv.org/abs/2205.14135): per row the largest score so far, the sum of the weights and the
// weighted sum of the values; keys are taken 32 at a time. The rows are the query heads of one key/value head, of one
// or several tokens.

#include <cmath>

#include "kernel_table.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int kBlockKeys = 32;
constexpr int kMaxRows = 8;

// Queries and keys as dot products read them: `kStep` elements at a time into a vector of partial sums.
template <class T>
struct Dot {
  using Query = float;
  static constexpr int kStep = kLanes;
  static V step(V acc, const float* q, const T* k, int64_t) { return fma(load(q), load(k), acc); }
};
#if defined(__AVX512BF16__)
template <>
struct Dot<Bf16> {
  using Query = Bf16;
  static constexpr int kStep = 2 * kLanes;
  static V step(V acc, const Bf16* q, const Bf16* k, int64_t left) {  // what lies behind the last key is not read
    __m512i keys = left >= kStep ? _mm512_loadu_si512(k) : _mm512_maskz_loadu_epi16((1u << left) - 1, k);
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_loadu_si512(q), (__m512bh)keys);
  }
};
#endif

template <class T>
int64_t padded_head_size(int64_t head_size) {
  return (head_size + Dot<T>::kStep - 1) / Dot<T>::kStep * Dot<T>::kStep;
}

// The keys of a step of the loop: where they lie. Those past the end repeat the last one; its weight is then zero.
struct Keys {
  int64_t first, count;
  int64_t offset[kBlockKeys];  // of head 0, in elements
};

// What comes next: 256 bytes here and there are nothing that the processor could foresee.
struct Ahead {
  const int64_t* offset;
  int64_t head;
};

template <class T>
struct Rows {
  typename Dot<T>::Query* q;  // [kMaxRows, padded_head_size], scaled by nothing
  float* largest;             // [rows]
  float* sum;                 // [rows]
  float* values;              // [rows, head_size]
  int64_t limit[kMaxRows];    // the row sees keys before this one, down to the window
};

template <class T, int kRows>
void score(const AttentionArgs& a, const T* k, const T* k_ahead, const Keys& keys, const Ahead& ahead,
           const Rows<T>& rows, float (*scores)[kBlockKeys]) {
  constexpr int kAtOnce = 16 / kRows;
  const int64_t padded = padded_head_size<T>(a.head_size);
  for (int first = 0; first < kBlockKeys; first += kAtOnce) {
    if (first >= keys.count) break;
    V acc[16];
    LULLM_UNROLL for (int i = 0; i < 16; i++) acc[i] = zero();
    for (int64_t d = 0; d < a.head_size; d += Dot<T>::kStep) {
      LULLM_UNROLL for (int i = 0; i < kAtOnce; i++) {
        const T* key = k + keys.offset[first + i] + d;
        _mm_prefetch(reinterpret_cast<const char*>(k_ahead + ahead.offset[first + i] + d), _MM_HINT_T0);
        LULLM_UNROLL for (int r = 0; r < kRows; r++)
          acc[r * kAtOnce + i] = Dot<T>::step(acc[r * kAtOnce + i], rows.q + r * padded + d, key, a.head_size - d);
      }
    }
    alignas(64) float totals[16];
    store(totals, sums(acc));
    for (int r = 0; r < kRows; r++) std::memcpy(&scores[r][first], totals + r * kAtOnce, kAtOnce * 4);
  }
}

// Scores to weights, in place; the row's state moves to its new largest score.
template <class T>
void softmax_step(const AttentionArgs& a, const Keys& keys, const Rows<T>& rows, int r, float* scores) {
  V s[2];
  V top = set1(-INFINITY);
  for (int i = 0; i < 2; i++) {
    const int64_t first = keys.first + i * kLanes;
    const int64_t last = rows.limit[r] < keys.first + keys.count ? rows.limit[r] : keys.first + keys.count;
    s[i] = keep_below(mul(load(scores + i * kLanes), set1(a.scale)), first, last, -INFINITY);
    s[i] = keep_from(s[i], first, rows.limit[r] - a.window, -INFINITY);
    top = max(top, s[i]);
  }
  const float before = rows.largest[r], now = std::fmax(before, largest(top));
  if (now == -INFINITY) {
    for (int i = 0; i < 2; i++) store(scores + i * kLanes, zero());
    return;
  }
  if (now > before) {
    alignas(64) float factor[kLanes];
    store(factor, exp(set1(before - now)));
    rows.sum[r] *= factor[0];
    float* values = rows.values + r * a.head_size;
    for (int64_t d = 0; d < a.head_size; d += kLanes) store(values + d, mul(load(values + d), set1(factor[0])));
    rows.largest[r] = now;
  }
  V total = zero();
  for (int i = 0; i < 2; i++) {
    V weights = exp(sub(s[i], set1(now)));
    store(scores + i * kLanes, weights);
    total = add(total, weights);
  }
  rows.sum[r] += sum(total);
}

template <class T, int kRows, int kVectors>
void add_values(const AttentionArgs& a, const T* v, const T* v_ahead, const Keys& keys, const Ahead& ahead,
                float* values, const float (*weights)[kBlockKeys]) {
  V acc[kRows][kVectors];
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int i = 0; i < kVectors; i++) acc[r][i] = load(values + r * a.head_size + i * kLanes);
  for (int64_t key = 0; key < keys.count; key++) {
    const T* value = v + keys.offset[key];
    constexpr int kBytes = kVectors * kLanes * sizeof(T);
    LULLM_UNROLL for (int i = 0; i < kBytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(v_ahead + ahead.offset[key]) + i, _MM_HINT_T0);
    LULLM_UNROLL for (int i = 0; i < kVectors; i++) {
      V part = load(value + i * kLanes);
      LULLM_UNROLL for (int r = 0; r < kRows; r++) acc[r][i] = fma(part, set1(weights[r][key]), acc[r][i]);
    }
  }
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int i = 0; i < kVectors; i++) store(values + r * a.head_size + i * kLanes, acc[r][i]);
}

template <class T, int kRows>
void attend_rows(const AttentionArgs& a, int64_t head, const Keys& keys, const Ahead& ahead, const Rows<T>& rows,
                 int num_rows) {
  alignas(64) float scores[kRows][kBlockKeys];
  const T *k = static_cast<const T*>(a.key_cache), *v = static_cast<const T*>(a.value_cache);
  const T *k_ahead = k + ahead.head * a.head_size, *v_ahead = v + ahead.head * a.head_size;
  score<T, kRows>(a, k + head * a.head_size, k_ahead, keys, ahead, rows, scores);
  for (int r = 0; r < kRows; r++) {
    if (r < num_rows) softmax_step<T>(a, keys, rows, r, scores[r]);
    else std::memset(scores[r], 0, sizeof scores[r]);  // padding: its weighted sum is discarded
  }
  v += head * a.head_size;
  constexpr int kVectors = kRows <= 2 ? 4 : kRows == 4 ? 2 : 1;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= a.head_size; d += kVectors * kLanes)
    add_values<T, kRows, kVectors>(a, v + d, v_ahead + d, keys, ahead, rows.values + d, scores);
  for (; d < a.head_size; d += kLanes)
    add_values<T, kRows, 1>(a, v + d, v_ahead + d, keys, ahead, rows.values + d, scores);
}

template <class T>
void copy_query(const T* from, float* to, int64_t size, int64_t) {
  for (int64_t d = 0; d < size; d += kLanes) store(to + d, load(from + d));
}
inline void copy_query(const Bf16* from, Bf16* to, int64_t size, int64_t padded) {
  std::memcpy(to, from, size * 2);
  std::memset(to + size, 0, (padded - size) * 2);
}

// Rows are cut into parts of up to 8; a part's arrays hold 8 rows, so that padding has a place to go.
int64_t num_parts(const AttentionArgs& a, int64_t num_rows) {
  return (num_rows * (a.num_q_heads / a.num_kv_heads) + kMaxRows - 1) / kMaxRows;
}

template <class T>
int64_t part_bytes(const AttentionArgs& a) {
  return kMaxRows * (a.head_size * 4 + padded_head_size<T>(a.head_size) * 4 + 64);
}

template <class T>
int64_t attention_scratch_bytes(const AttentionArgs& a) {
  return num_parts(a, kAttendRows) * a.num_kv_heads * part_bytes<T>(a);
}

template <class T>
void attend(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* after, void* scratch) {
  using Query = typename Dot<T>::Query;
  const int64_t group = a.num_q_heads / a.num_kv_heads, padded = padded_head_size<T>(a.head_size);
  const int64_t rows_per_head = (item.last_row - item.first_row) * group;
  const int64_t parts = num_parts(a, item.last_row - item.first_row);
  const int64_t start = a.context_lens[item.span] - (a.query_starts[item.span + 1] - a.query_starts[item.span]);
  auto part_of = [&](int64_t head, int64_t part) {
    char* memory = static_cast<char*>(scratch) + ((head - item.first_head) * parts + part) * part_bytes<T>(a);
    Rows<T> rows;
    rows.values = reinterpret_cast<float*>(memory);
    rows.q = reinterpret_cast<Query*>(rows.values + kMaxRows * a.head_size);
    rows.largest = reinterpret_cast<float*>(reinterpret_cast<char*>(rows.q) + kMaxRows * padded * 4);
    rows.sum = rows.largest + kMaxRows;
    for (int64_t i = 0; i < kMaxRows; i++) {
      const int64_t row = part * kMaxRows + i < rows_per_head ? (part * kMaxRows + i) / group : 0;
      rows.limit[i] = start + (item.first_row + row - a.query_starts[item.span]) + 1;
    }
    return rows;
  };
  // Calls body(rows, first row, number of rows) for every part of a head.
  auto for_parts = [&](int64_t head, auto body) {
    for (int64_t part = 0; part < parts; part++) {
      const int64_t first = part * kMaxRows;
      body(part_of(head, part), first, rows_per_head - first < kMaxRows ? rows_per_head - first : kMaxRows);
    }
  };

  for (int64_t head = item.first_head; head < item.last_head; head++) {
    for_parts(head, [&](const Rows<T>& rows, int64_t first, int64_t) {
      for (int64_t i = 0; i < kMaxRows; i++) {
        const int64_t index = first + i < rows_per_head ? first + i : rows_per_head - 1;
        const int64_t row = item.first_row + index / group, q_head = head * group + index % group;
        copy_query(static_cast<const T*>(a.q) + row * a.q_stride + q_head * a.head_size, rows.q + i * padded,
                   a.head_size, padded);
        rows.largest[i] = -INFINITY;
        rows.sum[i] = 0;
      }
      std::memset(rows.values, 0, kMaxRows * a.head_size * 4);
    });
  }

  // A step fetches about as many keys as it has itself, so an item's steps are of one size.
  const auto step_of = [](const AttentionItem& of) {
    const int64_t num_keys = of.last_key - of.first_key, num_steps = (num_keys + kBlockKeys - 1) / kBlockKeys;
    return (num_keys + num_steps - 1) / num_steps;
  };
  auto find_keys = [&](const AttentionItem& of, int64_t first) {
    Keys keys;
    keys.first = first;
    keys.count = of.last_key - first < step_of(of) ? of.last_key - first : step_of(of);
    const int64_t slot_size = a.num_kv_heads * a.head_size;
    const int64_t* block = a.block_tables + of.span * a.table_stride + first / a.block_size;
    for (int64_t i = 0, place = first % a.block_size; i < kBlockKeys; i++) {
      keys.offset[i] = i < keys.count ? (*block * a.block_size + place) * slot_size : keys.offset[keys.count - 1];
      if (++place == a.block_size) place = 0, block++;
    }
    return keys;
  };
  Keys keys = find_keys(item, item.first_key);
  for (int64_t first = item.first_key; first < item.last_key; first += step_of(item)) {
    const bool is_last = first + step_of(item) >= item.last_key;
    const AttentionItem& coming = is_last && after != nullptr ? *after : item;
    const Keys next = is_last ? after != nullptr ? find_keys(*after, after->first_key) : keys
                              : find_keys(item, first + step_of(item));
    for (int64_t head = item.first_head; head < item.last_head; head++) {
      Ahead ahead = {keys.offset, head + 1};
      if (head + 1 == item.last_head) ahead = {next.offset, coming.first_head};
      for_parts(head, [&](const Rows<T>& rows, int64_t, int64_t num_rows) {
        if (num_rows == 1) attend_rows<T, 1>(a, head, keys, ahead, rows, 1);
        else if (num_rows == 2) attend_rows<T, 2>(a, head, keys, ahead, rows, 2);
        else if (num_rows <= 4) attend_rows<T, 4>(a, head, keys, ahead, rows, static_cast<int>(num_rows));
        else attend_rows<T, 8>(a, head, keys, ahead, rows, static_cast<int>(num_rows));
      });
    }
    keys = next;
  }

  for (int64_t head = item.first_head; head < item.last_head; head++) {
    for_parts(head, [&](const Rows<T>& rows, int64_t first, int64_t num_rows) {
      for (int64_t i = 0; i < num_rows; i++) {
        const float* values = rows.values + i * a.head_size;
        if (item.partial != nullptr) {
          float* partial = item.partial + ((head - item.first_head) * group + first + i) * (a.head_size + 2);
          partial[0] = rows.largest[i];
          partial[1] = rows.sum[i];
          std::memcpy(partial + 2, values, a.head_size * 4);
          continue;
        }
        const int64_t row = item.first_row + (first + i) / group, q_head = head * group + (first + i) % group;
        T* out = static_cast<T*>(a.out) + (row * a.num_q_heads + q_head) * a.head_size;
        V factor = set1(1.0f / rows.sum[i]);
        for (int64_t d = 0; d < a.head_size; d += kLanes) store(out + d, mul(load(values + d), factor));
      }
    });
  }
}

template <class T>
void merge(const AttentionArgs& a, int64_t row, const float* partials, int64_t count) {
  const int64_t stride = partial_floats(a);
  for (int64_t head = 0; head < a.num_q_heads; head++) {
    const float* first = partials + head * (a.head_size + 2);
    float top = -INFINITY, total = 0;
    for (int64_t i = 0; i < count; i++) top = std::fmax(top, first[i * stride]);
    for (int64_t i = 0; i < count; i++) total += std::exp(first[i * stride] - top) * first[i * stride + 1];
    T* out = static_cast<T*>(a.out) + (row * a.num_q_heads + head) * a.head_size;
    for (int64_t d = 0; d < a.head_size; d += kLanes) {
      V sum = zero();
      for (int64_t i = 0; i < count; i++)
        sum = fma(load(first + i * stride + 2 + d), set1(std::exp(first[i * stride] - top) / total), sum);
      store(out + d, sum);
    }
  }
}

}  // namespace

void fill_attention(Kernels& kernels) {
  kernels.attention_scratch_bytes[kFloat32] = attention_scratch_bytes<float>;
  kernels.attention_scratch_bytes[kBFloat16] = attention_scratch_bytes<Bf16>;
  kernels.attend[kFloat32] = attend<float>;
  kernels.attend[kBFloat16] = attend<Bf16>;
  kernels.merge[kFloat32] = merge<float>;
  kernels.merge[kBFloat16] = merge<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
