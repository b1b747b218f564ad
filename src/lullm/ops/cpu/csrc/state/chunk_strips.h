// The state of a head in strips of 16 columns, as tiles read it and write it.
#pragma once

#include "chunk.h"

namespace lullm {
namespace amx {

class Strips {
 public:
  Strips(const RecurrenceArgs& a, int64_t span, char* scratch)
      : a_(a), span_(span), states_(reinterpret_cast<float*>(scratch)), parts_(scratch + num_states(a) * size_of_state() * 4) {}

  static int64_t num_bytes(const RecurrenceArgs& a) { return (num_states(a) + 1) * a.key_dim * a.value_dim * 4 + a.value_dim * 8; }

  int64_t count() const { return a_.value_dim / kLanes; }

  // The head that is meant from now on, `number` of an item's.
  void choose(int64_t head, int64_t number) { head_ = head, state_ = states_ + number * size_of_state(); }

  void clear() { std::memset(state_, 0, size_of_state() * 4); }

  // From the cache or back.
  template <bool kBack>
  void copy() {
    for_pieces([&](float* place, int64_t at, int64_t count) {
      int64_t row = at / a_.value_dim, column = at % a_.value_dim;
      while (count > 0) {
        const int64_t n = std::min(count, kLanes - column % kLanes);
        float* own = strip(column / kLanes) + row * kLanes + column % kLanes;
        float *to = kBack ? place : own, *from = kBack ? own : place;
        if (n == kLanes) store(to, load(from));
        else std::memcpy(to, from, n * 4);
        place += n, count -= n, column += n;
        if (column == a_.value_dim) column = 0, row++;
      }
    });
  }

  // All strips in two parts, straight from the cache, in the order of memory: for a step that leaves the state as it is.
  void split_from_cache() {
    const int64_t pair = 2 * a_.value_dim;
    float* held = reinterpret_cast<float*>(parts_ + size_of_state() * 4);  // a pair of rows that lies in two pages
    int64_t num_held = 0, row = 0;
    parts_len_ = a_.key_dim * 64;
    const auto take = [&](const float* rows) {
      char* to = parts_ + offset_of(row);
      for (int64_t column = 0; column < a_.value_dim; column += kLanes, to += a_.key_dim * 64)
        split_pair(load(rows + column), load(rows + a_.value_dim + column), to, to + kTileBytes);
      row += 2;
    };
    for_pieces([&](const float* place, int64_t, int64_t count) {
      while (count > 0) {
        const int64_t n = std::min(count, pair - num_held);
        if (n == pair) {
          take(place);
        } else {
          std::memcpy(held + num_held, place, n * 4);
          num_held += n;
          if (num_held == pair) take(held), num_held = 0;
        }
        place += n, count -= n;
      }
    });
  }

  // A strip in two parts. With a full chunk its rows decay.
  void split(int64_t number, bool decays, const float* factors) {
    float* state = strip(number);
    parts_len_ = 0;  // each in the place of the last one, in the first-level cache
    for (int64_t i = 0; i < a_.key_dim; i += 2, state += 2 * kLanes) {
      const V a = load(state), b = load(state + kLanes);
      char* to = parts_ + offset_of(i);
      split_pair(a, b, to, to + kTileBytes);
      if (decays) store(state, mul(a, set1(factors[i]))), store(state + kLanes, mul(b, set1(factors[i + 1])));
    }
  }

  // Rows times both parts of a strip, to [2][32][16]. Products that add to one tile wait for each other, so there is one for
  // each part. With decays by key rows have two parts, too, of which the small ones do not meet.
  void read(int64_t number, const char* rows, const ChunkRows& of, float* to) {
    const char *parts = parts_ + number * parts_len_, *rest = rows + a_.key_dim * 64;
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    for (int64_t i = 0; i < a_.key_dim; i += kTileDepth, parts += 2 * kTileBytes) {
      ahead.fetch();
      TILE_LOAD(6, parts, 64);
      TILE_LOAD(7, parts + kTileBytes, 64);
      if (of.has[0]) {
        TILE_LOAD(4, rows + (i + of.first[0]) * 64, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_MULTIPLY(2, 4, 7);
        if (a_.decays_by_key) {
          TILE_LOAD(4, rest + (i + of.first[0]) * 64, 64);
          TILE_MULTIPLY(2, 4, 6);
        }
      }
      if (of.has[1]) {
        TILE_LOAD(5, rows + (i + 16 + of.first[1]) * 64, 64);
        TILE_MULTIPLY(1, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
        if (a_.decays_by_key) {
          TILE_LOAD(5, rest + (i + 16 + of.first[1]) * 64, 64);
          TILE_MULTIPLY(3, 5, 6);
        }
      }
    }
    float *first = to + of.first[0] * kLanes, *second = to + (16 + of.first[1]) * kLanes;
    TILE_STORE(first, 64, 0); TILE_STORE(second, 64, 1);
    TILE_STORE(first + kChunkTokens * kLanes, 64, 2); TILE_STORE(second + kChunkTokens * kLanes, 64, 3);
  }

  // Adds keys times what is written, in two parts, to a strip; keys as rows in `read`.
  void write(int64_t number, const char* keys, const char* written) {
    const char* rest = keys + a_.key_dim * 64;
    float* state = strip(number);
    TILE_LOAD(6, written, 64);
    TILE_LOAD(7, written + kTileBytes, 64);
    for (int64_t i = 0; i < a_.key_dim; i += 32) {
      ahead.fetch(), ahead.fetch();
      float *first = state + i * kLanes, *second = first + 16 * kLanes;
      TILE_LOAD(0, first, 64);
      TILE_LOAD(4, keys + i * 64, 64);
      TILE_MULTIPLY(0, 4, 6);
      TILE_LOAD(1, second, 64);
      TILE_LOAD(5, keys + (i + 16) * 64, 64);
      TILE_MULTIPLY(1, 5, 6);
      TILE_MULTIPLY(0, 4, 7);
      TILE_MULTIPLY(1, 5, 7);
      if (a_.decays_by_key) {
        TILE_LOAD(4, rest + i * 64, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(5, rest + (i + 16) * 64, 64);
        TILE_MULTIPLY(1, 5, 6);
      }
      TILE_STORE(first, 64, 0);
      TILE_STORE(second, 64, 1);
    }
  }

  Ahead ahead;

 private:
  static int64_t num_states(const RecurrenceArgs& a) { return a.heads_of_item(); }
  int64_t size_of_state() const { return a_.key_dim * a_.value_dim; }
  float* strip(int64_t number) const { return state_ + number * a_.key_dim * kLanes; }
  static int64_t offset_of(int64_t row) { return row / kTileDepth * 2 * kTileBytes + row % kTileDepth * 32; }

  template <class Body>
  void for_pieces(Body&& body) {
    a_.state.for_pieces(span_, head_ * size_of_state(), size_of_state(), body);
  }

  const RecurrenceArgs& a_;
  int64_t span_, head_ = 0;
  float* states_;  // by head: [strips][key_dim][16]
  float* state_ = nullptr;
  char* parts_;    // [strips or 1][key_dim / 32][2][16][32], second operands
  int64_t parts_len_ = 0;
};

}  // namespace amx
}  // namespace lullm
