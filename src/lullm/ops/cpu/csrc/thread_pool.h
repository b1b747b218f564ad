// ThreadPool: the one pool of the process. Each thread starts with neighbouring items of its own and takes them a few at
// a time, fewer towards the end; then it helps the others, so a slow thread delays them by no more than one run of items.
// Workers spin for a tenth of a millisecond after an operation and sleep after that.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lullm {

using Task = void (*)(void* context, int64_t first, int64_t last);

// Threads that `run` uses, the caller included. Takes effect with the next `run`.
void set_num_threads(int num_threads);
int get_num_threads();

// Calls task(context, first, last) for runs of at most `most` items that make up [0, num_items), some of them on other
// threads, and returns when all are done. A second caller at the same time works alone, on its own thread.
void run(Task task, void* context, int64_t num_items, int64_t most);

constexpr int kMaxThreads = 256;

// body(first, last) over [0, num_items), at most `most` items at a time.
template <class Body>
void parallel_for_runs(int64_t num_items, int64_t most, Body&& body) {
  run([](void* context, int64_t first, int64_t last) { (*static_cast<std::remove_reference_t<Body>*>(context))(first, last); },
      &body, num_items, most);
}

// body(item) over [0, num_items), for items that are worth handing out one by one.
template <class Body>
void parallel_for(int64_t num_items, Body&& body) {
  parallel_for_runs(num_items, 1, [&](int64_t first, int64_t) { body(first); });
}

// At least `num_bytes` of memory, aligned to 64 bytes, of the calling thread; valid until its next call with this slot.
void* scratch(int slot, int64_t num_bytes);

enum ScratchSlot { kItemScratch, kSharedScratch, kPartialScratch, kGatheredScratch, kGatheredResults, kNumScratchSlots };

}  // namespace lullm
