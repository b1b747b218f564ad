// Panels of narrow floats, expanded to packed ones; see `narrow.h`.

#include "expand.h"

#include "../processor.h"
#include "../simd.h"
#include "narrow.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// How far ahead of the reading memory is fetched: while a part is multiplied nothing is, so that the part after it, too, must
// be on its way.
constexpr int64_t kFarBytes = 16384;
constexpr int64_t kNearBytes = 1024;

// A factor per row, for the numbers of its pairs: rows 0 to 7, and 8 to 15.
struct PairScales {
  V halves[2];
};
template <class Scale>
PairScales pair_scales(const Scale& of_row) {
  alignas(64) float twice[2 * kTileRows];
  for (int row = 0; row < kTileRows; row++) twice[2 * row] = twice[2 * row + 1] = of_row(row);
  return {{load(twice), load(twice + kLanes)}};
}

// Thirty-two numbers, pairs of 16 rows: into one line of bf16, or into two of floats, of which each has an input.
void store_pairs(Bf16* to, V low, V high) {
#if defined(LULLM_HAS_DOTS)
  store(reinterpret_cast<float*>(to), round_to_pairs(low, high));
#else
  store_numbers(to, low);
  store_numbers(to + kLanes, high);
#endif
}
void store_pairs(float* to, V low, V high) {
  alignas(64) float pairs[2 * kLanes];
  store(pairs, low);
  store(pairs + kLanes, high);
  for (int row = 0; row < kTileRows; row++) {
    to[row] = pairs[2 * row];
    to[kTileRows + row] = pairs[2 * row + 1];
  }
}

// Where the pairs of a tile go: those of bf16 fill a tile; of floats, the first 8 fill one, the others that of the next
// block.
Bf16* place(Bf16* to, int64_t block, int64_t tile, int64_t pair) { return to + (block * 2 + tile) * 512 + pair * 32; }
float* place(float* to, int64_t block, int64_t tile, int64_t pair) {
  return to + ((2 * block + pair / 8) * 2 + tile) * 256 + pair % 8 * 32;
}

// Thirty-two e4m3, times 2**-8: by way of half precision, whose exponent counts from 15 instead of 7. None is NaN.
inline void widen_e4m3(const uint8_t* from, V (&numbers)[2]) {
#if defined(__AVX512F__)
  const __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const __m512i halves = both(shift_left_16<7>(words), _mm512_set1_epi16(static_cast<short>(0xbfff)));
  numbers[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  numbers[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
#else
  const FiniteFloat8* bytes = reinterpret_cast<const FiniteFloat8*>(from);
  for (int i = 0; i < 2; i++) numbers[i] = load(bytes + i * kLanes);
#endif
}

template <class T>
void expand_e4m3(const uint8_t* panel, int format, int64_t in, int64_t first, int64_t count, T* to) {
  const int64_t shared = blocks_of_scale(format);
  const float* scales = reinterpret_cast<const float*>(panel + in / kNarrowInputs * kE4m3BlockBytes);
  panel += first * kE4m3BlockBytes;
  PairScales tiles[2];
  for (int64_t block = first; block < first + count; block++, panel += kE4m3BlockBytes) {
    if (block == first || block % shared == 0) {
      const float* of_panel = scales + block / shared * kPanelRows;
      for (int tile = 0; tile < 2; tile++)
        tiles[tile] = pair_scales([&](int row) { return of_panel[tile * kTileRows + row] * 0x1p8f; });
    }
    for (int tile = 0; tile < 2; tile++) {
      LULLM_UNROLL for (int pair = 0; pair < 16; pair++) {
        const uint8_t* from = panel + tile * (kE4m3BlockBytes / 2) + pair * 32;
        if (pair % 2 == 0) fetch_far(from + kFarBytes), fetch_near(from + kNearBytes);
        V numbers[2];
        widen_e4m3(from, numbers);
        store_pairs(place(to, block - first, tile, pair), mul(numbers[0], tiles[tile].halves[0]), mul(numbers[1], tiles[tile].halves[1]));
      }
    }
  }
}

inline float power_of_two(int biased_exponent) {
  const uint32_t bits = static_cast<uint32_t>(biased_exponent) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Pair k of a line, times 2**-14: the three low bits of a number are those of a half at its exponent's low end.
template <int k>
inline I halves_of(I line) {
  const I sign = set_integers(static_cast<int32_t>(0x80008000)), magnitude = set_integers(0x0e000e00);
  I signs = line, magnitudes;
  if constexpr (k < 3) signs = shift_left_16<12 - 4 * k>(line), magnitudes = shift_left_16<9 - 4 * k>(line);
  else magnitudes = shift_right_16<3>(line);
  return either(both(signs, sign), both(magnitudes, magnitude));
}

template <int k, class T>
inline void expand_pair(I line, const PairScales& scales, T* to) {
  const I halves = halves_of<k>(line);
  alignas(64) uint16_t parts[2 * kLanes];
  store_integers(parts, halves);
  store_pairs(to, mul(load_halves(parts), scales.halves[0]), mul(load_halves(parts + kLanes), scales.halves[1]));
}

template <class T>
void expand_mxfp4_block(const uint8_t* from, int64_t block, T* to) {
  for (int tile = 0; tile < 2; tile++) {
    const uint8_t* exponents = from + kMxfp4DigitBytes + tile * kTileRows;
    const PairScales scales = pair_scales([&](int row) { return power_of_two(exponents[row] + 14); });
    for (int j = 0; j < 4; j++) {
      const I line = load_integers(from + tile * (kMxfp4DigitBytes / 2) + j * 64);
      expand_pair<0>(line, scales, place(to, block, tile, 4 * j));
      expand_pair<1>(line, scales, place(to, block, tile, 4 * j + 1));
      expand_pair<2>(line, scales, place(to, block, tile, 4 * j + 2));
      expand_pair<3>(line, scales, place(to, block, tile, 4 * j + 3));
    }
  }
}

#if defined(__AVX2__)
// The bf16 of four bits of each word, from the bit `shift` on, by a table.
template <int shift>
inline I numbers_at(I line) {
  const I moved = shift == 0 ? line : shift_right_16<shift>(line);
#if defined(__AVX512BW__)
  // The table is asked by five bits, so it holds the numbers twice.
  const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
      0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<short>(0x8000), static_cast<short>(0xbf00),
      static_cast<short>(0xbf80), static_cast<short>(0xbfc0), static_cast<short>(0xc000), static_cast<short>(0xc040),
      static_cast<short>(0xc080), static_cast<short>(0xc0c0)));
  return _mm512_permutexvar_epi16(moved, table);
#else
  // A table of their upper bytes and one of their lower ones. The other byte of a word asks for zero's, which is 0.
  const __m256i upper = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i lower = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));
  const I bits = both(moved, set_integers(0x000f000f)), above = shift_left_16<8>(bits);
  return either({_mm256_shuffle_epi8(upper, above.low), _mm256_shuffle_epi8(upper, above.high)},
                {_mm256_shuffle_epi8(lower, bits.low), _mm256_shuffle_epi8(lower, bits.high)});
#endif
}

void expand_mxfp4_block(const uint8_t* from, int64_t block, Bf16* to) {
  LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
    const int8_t* exponents = reinterpret_cast<const int8_t*>(from + kMxfp4DigitBytes + tile * kTileRows);
    const I rows = both(load_signed_bytes(exponents), set_integers(0xff));
    const I twice = either(rows, shift_left_32<16>(rows));
    const I powers = add_16(shift_left_16<7>(twice), set_integers(static_cast<int32_t>(0xc080c080)));  // less 127 << 7
    LULLM_UNROLL for (int j = 0; j < 4; j++) {
      const uint8_t* at = from + tile * (kMxfp4DigitBytes / 2) + j * 64;
      fetch_far(at + kFarBytes), fetch_near(at + kNearBytes);
      const I line = load_integers(at);
      store_integers(place(to, block, tile, 4 * j), add_to_numbers(numbers_at<0>(line), powers));
      store_integers(place(to, block, tile, 4 * j + 1), add_to_numbers(numbers_at<4>(line), powers));
      store_integers(place(to, block, tile, 4 * j + 2), add_to_numbers(numbers_at<8>(line), powers));
      store_integers(place(to, block, tile, 4 * j + 3), add_to_numbers(numbers_at<12>(line), powers));
    }
  }
}
#endif

template <class T>
void expand(const uint8_t* panel, int format, int64_t in, int64_t first, int64_t count, T* to) {
  if (!is_mxfp4(format)) return expand_e4m3(panel, format, in, first, count, to);
  for (int64_t block = 0; block < count; block++)
    expand_mxfp4_block(panel + (first + block) * kMxfp4BlockBytes, block, to);
}

}  // namespace

void expand_narrow(const uint8_t* panel, int format, int64_t in, int64_t first, int64_t count, float* to) {
  expand(panel, format, in, first, count, to);
}
void expand_narrow(const uint8_t* panel, int format, int64_t in, int64_t first, int64_t count, Bf16* to) {
  expand(panel, format, in, first, count, to);
}

}  // namespace LULLM_ISA
}  // namespace lullm
