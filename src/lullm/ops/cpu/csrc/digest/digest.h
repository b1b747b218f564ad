// Digest: a checksum of 128 bits over bytes that come piece by piece, and that may be copied on their way.
//
// The bytes are cut into stripes of 16 words of 64 bits. Each word enters two sums of its place in the stripe:
//
//   product = spread(product ^ word)     spread(x) = (x ^ x >> 32) * kSpreadFactor, a bijection
//   parity = rotate(parity) ^ word       a linear code; a bit comes to its old place after 64 stripes
//
// and each half of the value joins one kind of the sums, again by bijections. So a change within one aligned word of
// eight bytes changes both halves for certain. Products alone are blind to a few patterns of top bits (bits 31 and 63 of
// a word and bit 63 of the word below it); the code sees those. Any other change goes unnoticed with a probability of
// about 2^-64, unless it is made on purpose: the constants are no secret. All instruction sets give the same value.
#pragma once

#include <cstdint>

namespace lullm {

constexpr int64_t kDigestWords = 16;
constexpr int64_t kStripeBytes = kDigestWords * 8;
constexpr uint64_t kSpreadFactor = 0x9e3779b1;  // odd, and of 32 bits: two of the products that vectors have
constexpr int kParityTurn = 27;                 // odd

struct DigestSums {
  uint64_t products[kDigestWords], parities[kDigestWords];
};

struct Digest {
  DigestSums sums;
  char rest[kStripeBytes];  // of a stripe that is not whole yet: num_bytes % kStripeBytes of them
  int64_t num_bytes;
};

}  // namespace lullm
