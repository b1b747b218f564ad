// What recurrent layers do to their states: the gated delta rule, and state spaces.
//
// Tokens of a sequence come one after the other, in one step as in many, and all sums have one order. So the bits of a
// token follow neither the batch nor the chunks of its prompt. A state stays in the first-level cache for all tokens of a
// step: the columns of a head's matrix do not meet, and an item has 64 of them.
//
// Decay is not applied to the state but to a factor beside it, which what is written is divided by, and what is read
// multiplied with: an operation less on each element. Once the factor is small the state takes it over, which follows from
// the tokens so far alone. The factor is kept with the state. Where every element of a key decays by itself, the state
// takes each token's decays at once.

#include <cmath>
#include <type_traits>

#include "../kernel_table.h"
#include "../simd.h"
#include "softplus.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr float kNormEps = 1e-6f;
constexpr float kLeastFactor = 0x1p-64f;  // what is divided by it stays far below the largest float

template <class T>
const T* row_of(const void* base, int64_t row, int64_t stride) {
  return static_cast<const T*>(base) + row * stride;
}

// As floats; the elements behind the last are zeros.
template <class T>
void widen(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_up_to(from + i, count - i));
}

// Makes it a vector of length `length`.
void normalize(float* x, int64_t padded, float length) {
  V squares = zero();
  for (int64_t i = 0; i < padded; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const V factor = set1(length / std::sqrt(sum(squares) + kNormEps));
  for (int64_t i = 0; i < padded; i += kLanes) store(x + i, mul(load(x + i), factor));
}

using LULLM_ISA::softplus;
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// S^T k of the first `num_vectors` vectors of columns, rows in two chains that are added at the end.
inline void multiply(const float* state, const float* keys, int64_t key_dim, int64_t num_vectors, float* held) {
  for (int64_t j = 0; j < num_vectors; j++) {
    const float* column = state + j * kLanes;
    V even = zero(), odd = zero();
    int64_t i = 0;
    for (; i + 1 < key_dim; i += 2) {
      even = fma(set1(keys[i]), load(column + i * kStateColumns), even);
      odd = fma(set1(keys[i + 1]), load(column + (i + 1) * kStateColumns), odd);
    }
    if (i < key_dim) even = fma(set1(keys[i]), load(column + i * kStateColumns), even);
    store(held + j * kLanes, add(even, odd));
  }
}

// One token: its query and key as floats, and what is written; then what is read.
struct Move {
  const float *query, *key;
  const float* asked;  // the key for what the state before the token has for it
  float* taken;        // what the rows of the state are multiplied with first, if it takes something
  bool takes;
  float before;  // the factor of the state before the token, this token's decay included, unless the state takes it anyway
  float factor;  // of the state from now on
  float written[kStateColumns], read[kStateColumns];
};

// S <- diag(taken) S + k v^T; S^T q: for kTokens tokens, one after the other, on kVectors vectors of columns from `column` on.
// The state is loaded and stored once for all of them; each element sees the same operations as token by token.
// kTakes: some of them take; the others have a `taken` of ones.
template <bool kTakes, int kTokens, int kVectors>
void move_on(float* state, Move* moves, int64_t key_dim, int64_t column) {
  V values[kTokens][kVectors], out[kTokens][kVectors];
  LULLM_UNROLL for (int t = 0; t < kTokens; t++) {
    LULLM_UNROLL for (int j = 0; j < kVectors; j++)
      values[t][j] = load(moves[t].written + column + j * kLanes), out[t][j] = zero();
  }
  for (int64_t i = 0; i < key_dim; i++) {
    float* row = state + i * kStateColumns + column;
    V moved[kVectors];
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) moved[j] = load(row + j * kLanes);
    LULLM_UNROLL for (int t = 0; t < kTokens; t++) {
      const V key = set1(moves[t].key[i]), query = set1(moves[t].query[i]);
      const V factor = kTakes ? set1(moves[t].taken[i]) : zero();
      LULLM_UNROLL for (int j = 0; j < kVectors; j++) {
        moved[j] = fma(key, values[t][j], kTakes ? mul(factor, moved[j]) : moved[j]);
        out[t][j] = fma(query, moved[j], out[t][j]);
      }
    }
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) store(row + j * kLanes, moved[j]);
  }
  LULLM_UNROLL for (int t = 0; t < kTokens; t++)
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) store(moves[t].read + column + j * kLanes, out[t][j]);
}

// `move_on` of one token, and on the way S^T k of the next, as `multiply` sums it: the state is read once, not twice.
template <bool kTakes, int kVectors>
void move_on_and_multiply(float* state, Move& move, const float* next_key, int64_t key_dim, int64_t column, float* held) {
  V values[kVectors], out[kVectors], even[kVectors], odd[kVectors];
  LULLM_UNROLL for (int j = 0; j < kVectors; j++)
    values[j] = load(move.written + column + j * kLanes), out[j] = even[j] = odd[j] = zero();
  const auto step = [&](int64_t i, V* sums) {
    float* row = state + i * kStateColumns + column;
    const V key = set1(move.key[i]), query = set1(move.query[i]), next = set1(next_key[i]);
    const V factor = kTakes ? set1(move.taken[i]) : zero();
    LULLM_UNROLL for (int j = 0; j < kVectors; j++) {
      const V held_so_far = load(row + j * kLanes);
      const V moved = fma(key, values[j], kTakes ? mul(factor, held_so_far) : held_so_far);
      store(row + j * kLanes, moved);
      out[j] = fma(query, moved, out[j]);
      sums[j] = fma(next, moved, sums[j]);
    }
  };
  int64_t i = 0;
  for (; i + 1 < key_dim; i += 2) step(i, even), step(i + 1, odd);
  if (i < key_dim) step(i, even);
  LULLM_UNROLL for (int j = 0; j < kVectors; j++) {
    store(move.read + column + j * kLanes, out[j]);
    store(held + column + j * kLanes, add(even[j], odd[j]));
  }
}

// body(first column, a constant number of vectors) over `num_vectors` vectors of columns: as many at a time as `kMost`,
// which is what fits into registers beside each other, then one by one.
template <int kMost, class Body>
void for_columns(int64_t num_vectors, Body&& body) {
  int64_t j = 0;
  for (; j + kMost <= num_vectors; j += kMost) body(j * kLanes, std::integral_constant<int, kMost>());
  for (; j < num_vectors; j++) body(j * kLanes, std::integral_constant<int, 1>());
}

// body(whether, as a constant).
template <class Body>
void for_either(bool whether, Body&& body) {
  if (whether) body(std::true_type());
  else body(std::false_type());
}

// A token's decays by element of the key, and the key times these.
template <class T>
void decay_by_key(const RecurrenceArgs& a, const T* steps, int64_t head, float rate, const float* key, float* asked, float* decays) {
  const int64_t first = head * a.key_dim;
  for (int64_t i = 0; i < a.key_dim; i += kLanes) {
    const int64_t left = a.key_dim - i;
    const V step = softplus(add(load_up_to(steps + first + i, left), load_up_to(a.dt_bias + first + i, left)));
    const V decay = exp(mul(set1(rate), step));
    store(decays + i, decay);
    store(asked + i, mul(load(key + i), decay));
  }
}

template <class T>
void recur(const RecurrenceArgs& a, int64_t span, int64_t head, int64_t block, void* scratch) {
  const int64_t column = block * kStateColumns, count = std::min(kStateColumns, a.value_dim - column);
  const int64_t num_vectors = (count + kLanes - 1) / kLanes, padded = a.padded_key_dim();
  float* state = static_cast<float*>(scratch);  // [key_dim, kStateColumns]
  float* widened = state + a.key_dim * kStateColumns;  // [kTokensAtOnce, 4, padded]: a move's vectors
  const int64_t first = head * a.key_dim * a.value_dim + column, group = head / a.heads_of_group();
  for (int64_t i = 0; i < a.key_dim; i++) {
    float* row = state + i * kStateColumns;
    if (count < kStateColumns) std::memset(row, 0, kStateColumns * sizeof(float));
    a.state.read(span, first + i * a.value_dim, count, row);
  }
  const bool is_delta = a.is_delta();
  const float rate = -std::exp(a.a_log[head]);
  float factor = 1.0f;
  if (!a.decays_by_key && !a.state.begins(span)) a.state.read(span, a.factor_place(head, block), 1, &factor);
  const int64_t first_row = a.state.first_row(span), end_row = first_row + a.state.num_rows(span);
  Move moves[kTokensAtOnce];
  float given[kTokensAtOnce][kStateColumns], betas[kTokensAtOnce], held[kStateColumns];
  for (int64_t token = first_row; token < end_row; token += kTokensAtOnce) {
    const int num_tokens = static_cast<int>(std::min<int64_t>(kTokensAtOnce, end_row - token));
    bool takes = false;
    for (int t = 0; t < num_tokens; t++) {
      Move& move = moves[t];
      float *query = widened + t * 4 * padded, *key = query + padded, *asked = key + padded;
      widen(row_of<T>(a.queries, token + t, a.key_stride) + group * a.key_dim, a.key_dim, query);
      widen(row_of<T>(a.keys, token + t, a.key_stride) + group * a.key_dim, a.key_dim, key);
      widen(row_of<T>(a.values, token + t, a.value_stride) + head * a.value_dim + column, count, given[t]);
      if (is_delta) {
        normalize(query, padded, 1.0f / std::sqrt(static_cast<float>(a.key_dim)));
        normalize(key, padded, 1.0f);
        betas[t] = a.most_step / (1.0f + std::exp(-to_float(row_of<T>(a.betas, token + t, a.step_stride)[head])));
      }
      move.query = query, move.key = key, move.asked = key, move.taken = asked + padded;
      const T* steps = row_of<T>(a.steps, token + t, a.step_stride);
      if (a.decays_by_key) {
        decay_by_key(a, steps, head, rate, key, asked, move.taken);
        move.asked = asked, move.takes = takes = true, move.before = move.factor = 1.0f;
        continue;
      }
      float step = softplus(to_float(steps[head]) + a.dt_bias[head]);
      if (!is_delta) step = std::min(std::max(step, a.least_step), a.most_step);
      move.before = factor * std::exp(rate * step);
      move.takes = !(move.before >= kLeastFactor);
      takes |= move.takes;
      factor = move.factor = move.takes ? 1.0f : move.before;
      for (int64_t j = 0; j < count && !is_delta; j += kLanes) store(move.written + j, mul(set1(step / factor), load(given[t] + j)));
    }
    for (int t = 0; t < num_tokens && takes && !a.decays_by_key; t++)
      std::fill_n(moves[t].taken, padded, moves[t].takes ? moves[t].before : 1.0f);
    if (is_delta) {
      multiply(state, moves[0].asked, a.key_dim, num_vectors, held);
      for (int t = 0; t < num_tokens; t++) {
        Move& move = moves[t];
        for (int64_t j = 0; j < count; j += kLanes) {
          const V error = fnma(set1(move.before), load(held + j), load(given[t] + j));
          store(move.written + j, mul(set1(betas[t] / move.factor), error));
        }
        for_either(move.takes, [&](auto taking) {
          for_columns<4>(num_vectors, [&](int64_t at, auto size) {
            if (t + 1 < num_tokens) move_on_and_multiply<taking(), size()>(state, move, moves[t + 1].asked, a.key_dim, at, held);
            else move_on<taking(), 1, size()>(state, &move, a.key_dim, at);
          });
        });
      }
    } else {
      for_either(takes, [&](auto taking) {
        if (num_tokens == kTokensAtOnce) {
          for_columns<2>(num_vectors, [&](int64_t at, auto size) {
            move_on<taking(), kTokensAtOnce, size()>(state, moves, a.key_dim, at);
          });
          return;
        }
        for (int t = 0; t < num_tokens; t++)
          for_columns<4>(num_vectors,
                         [&](int64_t at, auto size) { move_on<taking(), 1, size()>(state, moves + t, a.key_dim, at); });
      });
    }
    for (int t = 0; t < num_tokens; t++) {
      T* y = static_cast<T*>(a.y) + ((token + t) * a.num_heads + head) * a.value_dim + column;
      for (int64_t j = 0; j < count; j += kLanes) {
        V out = mul(set1(moves[t].factor), load(moves[t].read + j));
        if (!is_delta) out = fma(set1(a.skip[head]), load(given[t] + j), out);
        store_up_to(y + j, out, count - j);
      }
    }
  }
  for (int64_t i = 0; i < a.key_dim; i++) a.state.write(span, first + i * a.value_dim, count, state + i * kStateColumns);
  if (!a.decays_by_key) a.state.write(span, a.factor_place(head, block), 1, &factor);
}

}  // namespace

void fill_recurrence(Kernels& kernels) {
  kernels.recur[kFloat32] = recur<float>;
  kernels.recur[kBFloat16] = recur<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
