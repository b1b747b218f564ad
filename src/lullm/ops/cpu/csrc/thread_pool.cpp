#include "thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace lullm {
namespace {

// How often a worker looks for work before it sleeps: with pauses of 40 to 140 cycles that is 50 to 100 microseconds,
// the time between two operations of one step.
constexpr int kSpins = 2000;

struct Pool {
  std::atomic<uint32_t> epoch{0};  // counts operations; sleepers wait for it to change
  std::atomic<int> num_asleep{0};
  std::atomic<int> num_active{0};  // workers that may touch the operation
  std::atomic<bool> open{false};   // is there an operation
  std::atomic<bool> stopping{false};
  alignas(64) std::atomic<int64_t> next{0};
  Task task = nullptr;
  void* context = nullptr;
  int64_t num_items = 0;
  int num_workers = 0;
  std::thread workers[kMaxThreads];

  explicit Pool(int count) : num_workers(count) {
    for (int i = 0; i < count; i++) workers[i] = std::thread([this] { serve(); });
  }

  void wake() { syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch), FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0); }

  void work() {
    for (;;) {
      int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= num_items) return;
      task(context, item);
    }
  }

  void serve() {
    uint32_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && epoch.load() == seen; i++) _mm_pause();
      while (epoch.load() == seen) {
        num_asleep.fetch_add(1);
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        num_asleep.fetch_sub(1);
      }
      seen = epoch.load();
      if (stopping.load()) return;
      // Announced before looking: the caller closes the operation first and then waits for the announced.
      num_active.fetch_add(1);
      if (open.load()) work();
      num_active.fetch_sub(1);
    }
  }

  void run(Task new_task, void* new_context, int64_t count) {
    task = new_task, context = new_context, num_items = count;
    next.store(0);
    open.store(true);
    epoch.fetch_add(1);
    if (num_asleep.load() > 0) wake();
    work();
    open.store(false);
    for (int i = 0; num_active.load() != 0; i++) {
      if (i < kSpins) _mm_pause();
      else sched_yield();
    }
  }

  void stop() {
    stopping.store(true);
    epoch.fetch_add(1);
    wake();
    for (int i = 0; i < num_workers; i++) workers[i].join();
  }
};

std::mutex mutex;           // held while an operation runs
Pool* pool = nullptr;       // never destroyed at exit: its threads may be asleep
int wanted_threads = 0;

int default_num_threads() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// A forked child has none of the threads and perhaps a locked mutex; it starts over.
void start_over() {
  new (&mutex) std::mutex;
  pool = nullptr;
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, start_over);

}  // namespace

void set_num_threads(int num_threads) {
  std::lock_guard lock(mutex);
  wanted_threads = std::clamp(num_threads, 1, kMaxThreads);
}

int get_num_threads() {
  std::lock_guard lock(mutex);
  if (wanted_threads == 0) wanted_threads = std::min(default_num_threads(), kMaxThreads);
  return wanted_threads;
}

void run(Task task, void* context, int64_t num_items) {
  std::unique_lock lock(mutex, std::defer_lock);
  if (num_items <= 1 || !lock.try_lock()) {
    for (int64_t item = 0; item < num_items; item++) task(context, item);
    return;
  }
  if (wanted_threads == 0) wanted_threads = std::min(default_num_threads(), kMaxThreads);
  if (pool != nullptr && pool->num_workers != wanted_threads - 1) {
    pool->stop();
    delete pool;
    pool = nullptr;
  }
  if (pool == nullptr) pool = new Pool(wanted_threads - 1);
  pool->run(task, context, num_items);
}

void* scratch(int slot, int64_t num_bytes) {
  struct Buffers {
    void* data[kNumScratchSlots] = {};
    int64_t size[kNumScratchSlots] = {};
    ~Buffers() {
      for (void* buffer : data) std::free(buffer);
    }
  };
  static thread_local Buffers buffers;
  if (buffers.size[slot] < num_bytes) {
    std::free(buffers.data[slot]);
    // Large ones in huge pages: a tile is read from 16 places.
    const int64_t page = num_bytes < (1 << 20) ? 4096 : 2 << 20;
    const int64_t size = (num_bytes + num_bytes / 4 + page - 1) / page * page;
    buffers.data[slot] = std::aligned_alloc(page, size);
    if (buffers.data[slot] == nullptr) std::abort();
    if (page > 4096) madvise(buffers.data[slot], size, MADV_HUGEPAGE);
    buffers.size[slot] = size;
  }
  return buffers.data[slot];
}

}  // namespace lullm
