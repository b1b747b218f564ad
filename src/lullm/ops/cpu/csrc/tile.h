// AMX tiles: eight registers of 16 rows of 64 bytes, and the product of a 16 x 32 and a 32 x 16 matrix of bf16.
//
// Spelled as assembly because the compiler's own intrinsics do not say that they read and write memory (gcc 12), so
// stores before them may be dropped.
#pragma once

#include <cstdint>

namespace lullm {
namespace amx {

constexpr int64_t kTileDepth = 32;  // bf16 elements in a row of a first operand

struct TileShape {
  int64_t rows = 16, row_bytes = 64;
};

// The shapes of the tiles. Loads, stores and products take time by the rows of the first operand, so few rows pay for few;
// short edges elsewhere are padded with zeros in memory.
class TileSession {
 public:
  // `depth`: bytes in a row of the first operands, registers 4 and 5; the second ones, 6 and 7, have a row per four.
  explicit TileSession(int64_t depth = 64)
      : TileSession({{}, {}, {}, {}, {16, depth}, {16, depth}, {depth / 4, 64}, {depth / 4, 64}}) {}
  explicit TileSession(const TileShape (&shapes)[8]) {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; i++) {
      config.row_bytes[i] = static_cast<uint16_t>(shapes[i].row_bytes);
      config.rows[i] = static_cast<uint8_t>(shapes[i].rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~TileSession() { asm volatile("tilerelease" ::: "memory"); }
};

// The register's number is part of the instruction, hence macros.
#define TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::: "memory")
#define TILE_LOAD(tile, pointer, stride_bytes) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(pointer), "r"((int64_t)(stride_bytes)) : "memory")
// The same for what will not be needed soon, so that it does not push out what will.
#define TILE_LOAD_ONCE(tile, pointer, stride_bytes) \
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"(pointer), "r"((int64_t)(stride_bytes)) : "memory")
#define TILE_STORE(pointer, stride_bytes, tile) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(pointer), "r"((int64_t)(stride_bytes)) : "memory")
#define TILE_MULTIPLY(sum, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")
// The same of 16 x 64 and 64 x 16 bytes, summed as integers; the second operand is signed, the first as the name says. Of
// the last two, the second operand is unsigned.
#define TILE_MULTIPLY_SIGNED(sum, a, b) asm volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")
#define TILE_MULTIPLY_UNSIGNED(sum, a, b) asm volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")
#define TILE_MULTIPLY_SIGNED_UNSIGNED(sum, a, b) \
  asm volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")
#define TILE_MULTIPLY_BOTH_UNSIGNED(sum, a, b) \
  asm volatile("tdpbuud %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")

}  // namespace amx
}  // namespace lullm
