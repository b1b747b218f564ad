// Digests as Python calls them: pieces of any length and at any address, whole stripes by the kernel.

#include "digest.h"

#include <algorithm>
#include <cstring>

#include "../isa.h"
#include "../operation.h"

using namespace lullm;

namespace {

// A bijection in which every bit of the value depends on every one of x (the finalizer of splitmix64).
uint64_t stir(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

}  // namespace

LULLM_EXPORT int64_t lullm_digest_bytes() { return sizeof(Digest); }

LULLM_EXPORT void lullm_begin_digest(void* digest) {
  Digest& state = *static_cast<Digest*>(digest);
  for (int64_t word = 0; word < kDigestWords; word++) state.sums.products[word] = state.sums.parities[word] = stir(word + 1);
  state.num_bytes = 0;
}

// `to` may be null: the bytes are hashed only.
LULLM_EXPORT void lullm_extend_digest(void* digest, const char* from, char* to, int64_t num_bytes) {
  Digest& state = *static_cast<Digest*>(digest);
  const auto keep = [&](int64_t count) {  // in the stripe that is not whole yet
    std::memcpy(state.rest + state.num_bytes % kStripeBytes, from, count);
    if (to != nullptr) to = static_cast<char*>(std::memcpy(to, from, count)) + count;
    from += count, num_bytes -= count, state.num_bytes += count;
  };
  if (const int64_t begun = state.num_bytes % kStripeBytes; begun != 0) {
    keep(std::min(num_bytes, kStripeBytes - begun));
    if (state.num_bytes % kStripeBytes == 0) kernels().absorb(state.sums, state.rest, nullptr, 1);
    if (num_bytes == 0) return;
  }
  const int64_t num_stripes = num_bytes / kStripeBytes, whole = num_stripes * kStripeBytes;
  kernels().absorb(state.sums, from, to, num_stripes);
  from += whole, num_bytes -= whole, state.num_bytes += whole;
  if (to != nullptr) to += whole;
  if (num_bytes > 0) keep(num_bytes);
}

// Two words, of all bytes so far; more may follow. Zeros fill the last stripe, and the length tells them from bytes.
LULLM_EXPORT void lullm_digest_value(const void* digest, uint64_t* value) {
  Digest state = *static_cast<const Digest*>(digest);
  if (const int64_t begun = state.num_bytes % kStripeBytes; begun != 0) {
    std::memset(state.rest + begun, 0, kStripeBytes - begun);
    kernels().absorb(state.sums, state.rest, nullptr, 1);
  }
  value[0] = value[1] = stir(state.num_bytes);
  for (const uint64_t product : state.sums.products) value[0] = stir(value[0] ^ product);
  for (const uint64_t parity : state.sums.parities) value[1] = stir(value[1] ^ parity);
}
