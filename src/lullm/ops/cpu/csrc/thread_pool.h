// ThreadPool: the one pool of the process. Work is handed out item by item, so a slow thread delays nobody for longer
// than its item, but each thread starts with a run of neighbours of its own. Workers spin for tens of microseconds after an operation and sleep after that.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lullm {

using Task = void (*)(void* context, int64_t item);

// Threads that `run` uses, the caller included. Takes effect with the next `run`.
void set_num_threads(int num_threads);
int get_num_threads();

// Calls task(context, 0..num_items-1), some of them on other threads, and returns when all are done. A second caller at
// the same time works alone, on its own thread.
void run(Task task, void* context, int64_t num_items);

constexpr int kMaxThreads = 256;

template <class Body>
void parallel_for(int64_t num_items, Body&& body) {
  run([](void* context, int64_t item) { (*static_cast<std::remove_reference_t<Body>*>(context))(item); }, &body, num_items);
}

// At least `num_bytes` of memory, aligned to 64 bytes, of the calling thread; valid until its next call with this slot.
void* scratch(int slot, int64_t num_bytes);

enum ScratchSlot { kItemScratch, kSharedScratch, kPartialScratch, kNumScratchSlots };

}  // namespace lullm
