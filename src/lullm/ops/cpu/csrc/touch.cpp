// Memory taken from the kernel ahead of a need (`engine/start/head_start.py`, `step/first_touch.py`).

#include <atomic>

#include "operation.h"
#include "thread_pool.h"

namespace {

const std::atomic<int> kGoesOn{1};

}  // namespace

// A write to each page of `page` bytes that changes nothing, while `goes_on` is not zero. In one call, because a thread
// that comes back to the interpreter after each part waits for its lock: for 0.15 s where another loads a library.
LULLM_EXPORT void lullm_touch(char* first, int64_t num_bytes, int64_t page, const std::atomic<int>* goes_on) {
  for (int64_t at = 0; at < num_bytes && goes_on->load(std::memory_order_relaxed) != 0; at += page)
    __atomic_fetch_or(first + at, 0, __ATOMIC_RELAXED);
}

// The same on all threads, for `count` ranges from a first byte to an end, of one huge page at most each: a page that two
// threads touch at once is taken twice, and given back once.
LULLM_EXPORT void lullm_touch_pages(char* const* ranges, int64_t count, int64_t page) {
  lullm::parallel_for(count, [&](int64_t i) {
    lullm_touch(ranges[2 * i], ranges[2 * i + 1] - ranges[2 * i], page, &kGoesOn);
  });
}
