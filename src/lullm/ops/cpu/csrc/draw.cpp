// Drawing a token from one row of logits, without sorting the vocabulary.
//
// Greedy: the best of each chunk of 512, then the first place of the best. At random: the weights exp(-distance), where
// distance = (best - logit) / temperature, and thresholds on them. What a threshold needs is found among few candidates:
// the chunks' best are members of the row, so a threshold that holds for them bounds the row's from below. top_k and
// top_p then select among what is above that bound as quickselect does, by count or by mass: in proportion to their
// number, also where the logits are flat and all are candidates. Then the kept tokens race: noise - distance, the
// largest wins (Gumbel's trick: it does so with its probability). Few come so near to winning that the noise is needed.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_table.h"
#include "race.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int64_t kChunk = 512;

// Sixteen elements, or as many as are left and `other` behind them.
inline V load_padded(const float* p, int64_t left, float other) {
  return left >= kLanes ? load(p) : keep_below(load_first(p, left), 0, left, other);
}

// Comparisons and loops of our own: what the standard library would make of float pointers alone has one name in all
// instruction sets, and the linker would keep any of them.
constexpr auto is_larger = [](float a, float b) { return a > b; };

inline int64_t num_chunks(int64_t size) { return (size + kChunk - 1) / kChunk; }

// The weights of a row and what is known of them. The arrays lie in the thread's scratch memory.
struct Row {
  const float* weights;  // [size]
  int64_t size;
  float* chunk_best;     // [chunks]
  float* candidates;     // room for `size`
  int64_t chunks() const { return num_chunks(size); }
};

double mass_of(const float* values, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; i++) total += values[i];
  return total;
}

// The largest threshold that keeps a mass of at least `target`; the least value if none does. Reorders the values.
float threshold_of_mass(float* values, int64_t count, double target) {
  double above = 0;
  float least = 0;
  while (count > 0) {
    const float a = values[0], b = values[count / 2], c = values[count - 1];
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    float* middle = std::partition(values, values + count, [&](float v) { return v > pivot; });
    float* end = std::partition(middle, values + count, [&](float v) { return v == pivot; });
    const double larger = mass_of(values, middle - values);
    least = pivot;
    if (above + larger >= target && middle > values) {
      count = middle - values;
      continue;
    }
    above += larger + static_cast<double>(pivot) * static_cast<double>(end - middle);
    if (above >= target) return pivot;
    count -= end - values;
    values = end;
  }
  return least;
}

int64_t collect(const Row& row, float bound) {
  int64_t count = 0;
  for (int64_t chunk = 0; chunk < row.chunks(); chunk++) {
    if (row.chunk_best[chunk] < bound) continue;
    const int64_t end = std::min(row.size, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; i++) {
      row.candidates[count] = row.weights[i];
      count += row.weights[i] >= bound;
    }
  }
  return count;
}

// The least weight that top_k and then top_p keep. Weights of 0 are never kept.
float find_threshold(const Row& row, int64_t top_k, double top_p, double total) {
  float bound = std::numeric_limits<float>::min();
  const int64_t chunks = row.chunks();
  float* best = row.candidates;
  std::memcpy(best, row.chunk_best, chunks * sizeof(float));
  if (top_k <= chunks) {
    std::nth_element(best, best + top_k - 1, best + chunks, is_larger);
    bound = std::max(bound, best[top_k - 1]);
  } else if (top_k >= row.size && mass_of(best, chunks) >= top_p * total) {
    bound = std::max(bound, threshold_of_mass(best, chunks, top_p * total));
  }
  const int64_t count = collect(row, bound);
  float* end = row.candidates + count;
  float threshold = bound;
  if (top_k < count) {
    std::nth_element(row.candidates, row.candidates + top_k - 1, end, is_larger);
    threshold = row.candidates[top_k - 1];
    end = std::partition(row.candidates, end, [&](float v) { return v >= threshold; });
  }
  if (top_p >= 1.0) return threshold;
  if (top_k < row.size) total = mass_of(row.candidates, end - row.candidates);
  return std::max(threshold, threshold_of_mass(row.candidates, end - row.candidates, top_p * total));
}

// The token whose noise - distance is the largest, the first of equals.
//
// With the random bits r of a token, as a fraction, its noise is at most -ln(r). So only tokens with
// r <= weight * e**-score of the best so far can beat it: one product and a comparison for sixteen of them.
class Race {
 public:
  Race(const float* logits, float best, float temperature, uint64_t key)
      : logits_(logits), best_(best), temperature_(temperature), key_(key) {}

  // The kept of sixteen tokens from `first` on, by their weights; others have weight 0.
  void enter(V weights, int64_t first) {
    uint32_t near = at_most(random_heads(key_, first), mul(weights, set1(reach_)));
    if (near == 0) return;
    alignas(64) float weight[kLanes];
    store(weight, weights);
    for (; near != 0; near &= near - 1) {
      const int lane = __builtin_ctz(near);
      if (weight[lane] > 0) run(first + lane);
    }
  }
  int64_t winner() const { return winner_; }

 private:
  void run(int64_t id) {
    const double distance = (best_ - logits_[id]) / temperature_;
    const double score = gumbel_noise(key_, id) - distance;
    if (score < score_ || (score == score_ && id > winner_)) return;
    score_ = score, winner_ = id;
    // 0.1 % more than 2**31 e**-score: weights and bits are rounded.
    reach_ = static_cast<float>(std::exp(-score) * (1.001 * 0x1p31));
  }

  const float* logits_;
  float best_, temperature_;
  uint64_t key_;
  double score_ = -std::numeric_limits<double>::infinity();
  int64_t winner_ = 0;
  float reach_ = std::numeric_limits<float>::max();
};

int64_t draw_scratch_bytes(int64_t size) { return 4 * (num_chunks(size) + 2 * size) + 256; }

// -1 if there is none to draw: a logit of NaN or +inf, or nothing but -inf.
int64_t draw_row(const DrawArgs& a, int64_t index, void* scratch) {
  float* logits = a.logits + index * a.stride;
  const int64_t size = a.size, chunks = num_chunks(size);
  Row row;
  row.size = size;
  row.chunk_best = static_cast<float*>(scratch);
  float* weights = row.chunk_best + chunks;
  row.weights = weights;
  row.candidates = weights + size;

  float best = -INFINITY;
  int64_t best_chunk = 0;
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    V top = set1(-INFINITY);
    const int64_t end = std::min(size, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; i += kLanes) {
      const V v = load_padded(logits + i, end - i, -INFINITY);
      if (has_nan(v)) return -1;
      top = max(top, v);
    }
    row.chunk_best[chunk] = largest(top);
    if (row.chunk_best[chunk] > best) best = row.chunk_best[chunk], best_chunk = chunk;
  }
  if (!std::isfinite(best)) return -1;
  const float temperature = a.temperatures[index];
  if (temperature == 0.0f) {
    int64_t place = best_chunk * kChunk;
    while (logits[place] != best) place++;
    return place;
  }

  const V top = set1(best), divisor = set1(temperature);
  auto distance = [&](V v) { return div(sub(top, v), divisor); };
  // What is so far away that float32 has no weight for it has none: `exp` would give it 1e-38.
  constexpr float kFarthest = 87.0f;
  auto weigh = [&](V d) { return keep_at_least(exp(sub(zero(), d)), std::exp(-kFarthest)); };
  auto weights_at = [&](int64_t i, int64_t end) {
    return weigh(distance(load_padded(logits + i, end - i, -INFINITY)));
  };
  for (int64_t i = 0; i < chunks; i += kLanes)
    store_up_to(row.chunk_best + i, weigh(distance(load_up_to(row.chunk_best + i, chunks - i))), chunks - i);

  const bool has_top = a.top_k[index] < size || a.top_p[index] < 1.0;
  const bool keeps_weights = has_top || a.writes_logits;
  double total = 0;
  for (int64_t chunk = 0; keeps_weights && chunk < chunks; chunk++) {
    const int64_t end = std::min(size, (chunk + 1) * kChunk);
    V sum_of_weights = zero();
    for (int64_t i = chunk * kChunk; i < end; i += kLanes) {
      const V w = weights_at(i, end);
      store_up_to(weights + i, w, end - i);
      sum_of_weights = add(sum_of_weights, w);
    }
    total += sum(sum_of_weights);
  }
  float threshold = 0;
  if (has_top) threshold = find_threshold(row, a.top_k[index], a.top_p[index], total);
  if (a.min_p_floors[index] > -INFINITY) {
    alignas(64) float w[kLanes];
    store(w, weigh(set1(-a.min_p_floors[index])));
    threshold = std::max(threshold, w[0]);
  }
  const bool is_truncated = threshold > 0;
  threshold = std::max(threshold, std::numeric_limits<float>::min());

  Race race(logits, best, temperature, a.keys[index]);
  auto enter_chunk = [&](int64_t chunk) {
    if (row.chunk_best[chunk] < threshold) return;
    const int64_t end = std::min(size, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; i += kLanes) {
      const V w = keeps_weights ? load_padded(weights + i, end - i, 0.0f) : weights_at(i, end);
      race.enter(keep_at_least(w, threshold), i);
    }
  };
  enter_chunk(best_chunk);  // an early leader leaves fewer near
  for (int64_t chunk = 0; chunk < chunks; chunk++)
    if (chunk != best_chunk) enter_chunk(chunk);
  if (a.writes_logits)
    for (int64_t i = 0; i < size; i++)
      logits[i] = !is_truncated || weights[i] >= threshold ? -((best - logits[i]) / temperature) : -INFINITY;
  return race.winner();
}

}  // namespace

void fill_draw(Kernels& kernels) {
  kernels.draw_scratch_bytes = draw_scratch_bytes;
  kernels.draw_row = draw_row;
}

}  // namespace LULLM_ISA
}  // namespace lullm
