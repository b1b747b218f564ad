// Attention with AMX for many query rows of one key/value head, as in a prefill: FlashAttention over the paged cache.
//
// Up to 256 rows (tokens times the query heads that share the key/value head) pass over the keys 64 at a time. The
// keys and values of a step are packed once into second operands and used by all rows: scores = q k^T into memory,
// softmax there, weights back as first operands, times v, added to the sums in memory. The softmax takes as long as the
// products, so it is lean: powers of two, the sums of weights kept apart by lane until the end, no masks where a whole
// tile is visible, and rows are scaled anew only when a score exceeds what they are relative to by a factor of 256.

#include <cmath>

#include "kernel_table.h"
#include "simd.h"
#include "tile.h"

namespace lullm {
namespace amx {
namespace {

using namespace avx512_bf16;

constexpr int64_t kStepKeys = 64;
constexpr int64_t kRowTiles = kAttendTileRows / 16 + 1;  // one row of more heads than fit is not cut

int64_t depth_of(int64_t head_size) { return (head_size + kTileDepth - 1) / kTileDepth; }

struct Memory {
  char* q;         // [row tiles][depth][16][32] bf16
  char* keys;      // [depth][4 x 16 keys][16 pairs][16][2] bf16
  char* values;    // [head_size / 16][2 x 32 keys][16 pairs][16][2] bf16
  char* weights;   // [2][16][32] bf16, of one row tile
  float* scores;   // [16][64], of one row tile
  float* sums;     // [row tiles][head_size / 16][16][16]
  float* largest;  // [rows]
  float* total;    // [rows][16]
  int64_t bytes;
};

Memory layout(const AttentionArgs& a, void* base) {
  const int64_t depth = depth_of(a.head_size), group = a.num_q_heads / a.num_kv_heads;
  const int64_t row_tiles = group > kAttendTileRows ? (group + 15) / 16 : kRowTiles;
  char* p = static_cast<char*>(base);
  Memory m;
  auto take = [&](int64_t bytes) {
    char* taken = p;
    p += (bytes + 63) / 64 * 64;
    return taken;
  };
  m.q = take(row_tiles * depth * kTileBytes);
  m.keys = take(depth * 4 * kTileBytes);
  m.values = take(a.head_size / 16 * 2 * kTileBytes);
  m.weights = take(2 * kTileBytes);
  m.scores = reinterpret_cast<float*>(take(16 * kStepKeys * 4));
  m.sums = reinterpret_cast<float*>(take(row_tiles * 16 * a.head_size * 4));
  m.largest = reinterpret_cast<float*>(take(row_tiles * 16 * 4));
  m.total = reinterpret_cast<float*>(take(row_tiles * 16 * 16 * 4));
  m.bytes = p - static_cast<char*>(base);
  return m;
}

int64_t attend_tile_scratch_bytes(const AttentionArgs& a) { return layout(a, nullptr).bytes; }

inline __m512i load_elements(const Bf16* p, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((1u << count) - 1, p);
}

// The keys of 64 slots, pairs of elements side by side and keys across.
void pack_keys(const AttentionArgs& a, const Bf16* const* keys, char* to) {
  for (int64_t depth = 0; depth < depth_of(a.head_size); depth++) {
    for (int64_t group = 0; group < 4; group++, to += kTileBytes) {
      __m512i rows[16];
      LULLM_UNROLL for (int64_t i = 0; i < 16; i++)
        rows[i] = load_elements(keys[16 * group + i] + depth * kTileDepth, a.head_size - depth * kTileDepth);
      transpose(rows, to, 64);
    }
  }
}

// The values of 64 slots: for each 16 elements, two neighbours in the sequence side by side.
void pack_values(const AttentionArgs& a, const Bf16* const* values, char* to) {
  for (int64_t pair = 0; pair < 32; pair++) {
    const Bf16 *even = values[2 * pair], *odd = values[2 * pair + 1];
    for (int64_t d = 0; d < a.head_size; d += 16) {
      __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d)));
      __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d)));
      _mm512_store_si512(to + (d / 16 * 2 + pair / 16) * kTileBytes + pair % 16 * 64,
                         _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

void multiply_keys(const char* q, const char* keys, int64_t depth, float* scores) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  for (int64_t i = 0; i < depth; i++, q += kTileBytes, keys += 4 * kTileBytes) {
    TILE_LOAD(4, q, 64);
    TILE_LOAD(5, keys, 64);
    TILE_MULTIPLY(0, 4, 5);
    TILE_LOAD(6, keys + kTileBytes, 64);
    TILE_MULTIPLY(1, 4, 6);
    TILE_LOAD(7, keys + 2 * kTileBytes, 64);
    TILE_MULTIPLY(2, 4, 7);
    TILE_LOAD(5, keys + 3 * kTileBytes, 64);
    TILE_MULTIPLY(3, 4, 5);
  }
  TILE_STORE(scores, kStepKeys * 4, 0);
  TILE_STORE(scores + 16, kStepKeys * 4, 1);
  TILE_STORE(scores + 32, kStepKeys * 4, 2);
  TILE_STORE(scores + 48, kStepKeys * 4, 3);
}

void multiply_values(const char* weights, const char* values, int64_t head_size, float* sums) {
  TILE_LOAD(4, weights, 64);
  TILE_LOAD(5, weights + kTileBytes, 64);
  int64_t d = 0;
  for (; d + 32 <= head_size; d += 32, values += 4 * kTileBytes, sums += 512) {
    TILE_LOAD(0, sums, 64);
    TILE_LOAD(1, sums + 256, 64);
    TILE_LOAD(6, values, 64);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(7, values + 2 * kTileBytes, 64);
    TILE_MULTIPLY(1, 4, 7);
    TILE_LOAD(6, values + kTileBytes, 64);
    TILE_MULTIPLY(0, 5, 6);
    TILE_LOAD(7, values + 3 * kTileBytes, 64);
    TILE_MULTIPLY(1, 5, 7);
    TILE_STORE(sums, 64, 0);
    TILE_STORE(sums + 256, 64, 1);
  }
  if (d < head_size) {
    TILE_LOAD(0, sums, 64);
    TILE_LOAD(6, values, 64);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(7, values + kTileBytes, 64);
    TILE_MULTIPLY(0, 5, 7);
    TILE_STORE(sums, 64, 0);
  }
}

constexpr float kRescaleAbove = 8;  // in powers of two

// 2**x for x <= 0 or a little above, off by 4e-5 of itself at most: what becomes of it is rounded to bf16, to 2e-3.
inline V power_of_two(V x) {
  x = max(x, set1(-126.0f));  // minus infinity has no fraction; a denormal result would cost an assist
  const V n = round(x), r = sub(x, n);
  V y = fma(set1(9.618129e-3f), r, set1(5.5504109e-2f));
  y = fma(y, r, set1(0.24022651f));
  y = fma(y, r, set1(0.69314718f));
  return scale_by_power(fma(y, r, set1(1.0f)), n);
}

// The scores of row `i` of a tile become bf16 weights. `visible`: the row sees none of the 64 keys from this one on;
// without kMasked it sees all of them.
template <bool kMasked>
inline void softmax_row(const AttentionArgs& a, const Memory& m, int64_t tile, int64_t i, int64_t visible) {
  constexpr float kLog2E = 1.44269504f;
  const float* scores = m.scores + i * kStepKeys;
  const V scale = set1(a.scale * kLog2E);
  V s[4];
  LULLM_UNROLL for (int64_t j = 0; j < 4; j++) {
    s[j] = mul(load(scores + 16 * j), scale);
    if constexpr (kMasked) {
      s[j] = keep_below(s[j], 16 * j, visible, -INFINITY);
      s[j] = keep_from(s[j], 16 * j, visible - a.window, -INFINITY);
    }
  }
  const float top = largest(max(max(s[0], s[1]), max(s[2], s[3])));
  float& base = m.largest[tile * 16 + i];
  float* total = m.total + (tile * 16 + i) * 16;
  V weights[4] = {zero(), zero(), zero(), zero()};
  if (!kMasked || top > -INFINITY) {
    if (!(top <= base + kRescaleAbove)) {
      const V factor = power_of_two(set1(base - top));
      store(total, mul(load(total), factor));
      float* sums = m.sums + tile * 16 * a.head_size + i * 16;
      for (int64_t d = 0; d < a.head_size; d += 16, sums += 256) store(sums, mul(load(sums), factor));
      base = top;
    }
    LULLM_UNROLL for (int64_t j = 0; j < 4; j++) weights[j] = power_of_two(sub(s[j], set1(base)));
    store(total, add(load(total), add(add(weights[0], weights[1]), add(weights[2], weights[3]))));
  }
  _mm512_store_si512(m.weights + i * 64, (__m512i)_mm512_cvtne2ps_pbh(weights[1], weights[0]));
  _mm512_store_si512(m.weights + kTileBytes + i * 64, (__m512i)_mm512_cvtne2ps_pbh(weights[3], weights[2]));
}

void attend_tile(const AttentionArgs& a, const AttentionItem& item, void* scratch) {
  TileSession session;
  const Memory m = layout(a, scratch);
  const int64_t group = a.num_q_heads / a.num_kv_heads, head = item.first_head, depth = depth_of(a.head_size);
  const int64_t num_rows = (item.last_row - item.first_row) * group, row_tiles = (num_rows + 15) / 16;
  const int64_t begin = a.query_starts[item.span];
  const int64_t start = a.context_lens[item.span] - (a.query_starts[item.span + 1] - begin);
  // Row r of the item is token r / group, query head r % group of this key/value head.
  auto limit_of = [&](int64_t r) { return start + item.first_row + (r < num_rows ? r : num_rows - 1) / group - begin + 1; };
  for (int64_t r = 0; r < row_tiles * 16; r++) {
    char* to = m.q + r / 16 * depth * kTileBytes + r % 16 * 64;
    const int64_t real = r < num_rows ? r : num_rows - 1;
    const Bf16* q = static_cast<const Bf16*>(a.q) + (item.first_row + real / group) * a.q_stride +
                    (head * group + real % group) * a.head_size;
    for (int64_t d = 0; d < depth; d++)
      _mm512_store_si512(to + d * kTileBytes, load_elements(q + d * kTileDepth, a.head_size - d * kTileDepth));
    m.largest[r] = -INFINITY;
  }
  std::memset(m.total, 0, row_tiles * 16 * 16 * 4);
  std::memset(m.sums, 0, row_tiles * 16 * a.head_size * 4);

  const int64_t slot_size = a.num_kv_heads * a.head_size;
  for (int64_t first = item.first_key; first < item.last_key; first += kStepKeys) {
    const Bf16 *keys[kStepKeys], *values[kStepKeys];
    for (int64_t i = 0; i < kStepKeys; i++) {  // past the end the last key again: finite, and of no weight
      const int64_t key = first + i < item.last_key ? first + i : item.last_key - 1;
      const int64_t offset = slot_of(a, item.span, key) * slot_size + head * a.head_size;
      keys[i] = static_cast<const Bf16*>(a.key_cache) + offset;
      values[i] = static_cast<const Bf16*>(a.value_cache) + offset;
    }
    pack_keys(a, keys, m.keys);
    pack_values(a, values, m.values);
    for (int64_t tile = 0; tile < row_tiles; tile++) {
      if (limit_of(tile * 16 + 15) <= first || limit_of(tile * 16) - a.window >= first + kStepKeys) continue;
      multiply_keys(m.q + tile * depth * kTileBytes, m.keys, depth, m.scores);
      const bool sees_all =
          limit_of(tile * 16) >= first + kStepKeys && limit_of(tile * 16 + 15) - a.window <= first;
      for (int64_t i = 0; i < 16; i++) {
        if (sees_all) softmax_row<false>(a, m, tile, i, 0);
        else softmax_row<true>(a, m, tile, i, limit_of(tile * 16 + i) - first);
      }
      multiply_values(m.weights, m.values, a.head_size, m.sums + tile * 16 * a.head_size);
    }
  }

  for (int64_t r = 0; r < num_rows; r++) {
    Bf16* out = static_cast<Bf16*>(a.out) +
                ((item.first_row + r / group) * a.num_q_heads + head * group + r % group) * a.head_size;
    const float* sums = m.sums + r / 16 * 16 * a.head_size + r % 16 * 16;
    const V factor = set1(1.0f / sum(load(m.total + r * 16)));
    for (int64_t d = 0; d < a.head_size; d += 16, sums += 256) store(out + d, mul(load(sums), factor));
  }
}

}  // namespace

void fill_attention(Kernels& kernels) {
  kernels.attend_tile = attend_tile;
  kernels.attend_tile_scratch_bytes = attend_tile_scratch_bytes;
}

}  // namespace amx
}  // namespace lullm
