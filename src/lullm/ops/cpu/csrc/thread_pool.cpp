#include "thread_pool.h"

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

#include "processor.h"
#include "turn.h"

namespace lullm {
namespace {

// Calls `is_done` until it is true or the time is over: as long as a worker looks for work before it sleeps, more than the
// time between two operations of one step. Waking a sleeper takes 30 microseconds, a tenth of a linear layer.
template <class Condition>
bool spin_until(Condition&& is_done) {
  const uint64_t most = short_ticks();
  for (const uint64_t start = ticks(); !is_done();) {
    if (ticks() - start > most) return false;
    wait_briefly();
  }
  return true;
}

struct Pool {
  std::atomic<uint32_t> epoch{0};  // counts operations; sleepers wait for it to change
  std::atomic<int> num_asleep{0};
  std::atomic<int> num_active{0};  // workers that may touch the operation
  std::atomic<bool> open{false};   // is there an operation
  std::atomic<bool> stopping{false};
  std::atomic<int> caller_core{-1};
  Task task = nullptr;
  void* context = nullptr;
  int64_t most = 1;
  int num_workers = 0;
  // A run is this part of what is left of a range: long ones at first, and short ones where others may be waiting.
  static constexpr int64_t kShare = 4;
  // Every thread starts in a range of its own and then helps with the others': neighbouring items go to one thread,
  // which reads them as one stream, and still no thread waits for a slow one. Items handed out in turn instead read
  // memory at 26 to 28 GB/s, ranges at 31 to 33.
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  Range ranges[kMaxThreads];
  std::thread workers[kMaxThreads];

  explicit Pool(int count) : num_workers(count) {
    for (int i = 0; i < count; i++) workers[i] = std::thread([this, i] { serve(i + 1); });
  }

  void wake() { syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch), FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0); }

  // False: the worker's turn is over, and there may be items left.
  bool work(int thread, Turn* turn) {
    const int num_threads = num_workers + 1;
    for (int i = 0; i < num_threads; i++) {
      Range& range = ranges[(thread + i) % num_threads];
      for (int64_t first = range.next.load(std::memory_order_relaxed); first < range.end;) {
        const int64_t last = first + std::clamp((range.end - first) / kShare, int64_t{1}, most);
        if (!range.next.compare_exchange_weak(first, last, std::memory_order_relaxed)) continue;
        task(context, first, last);
        finish_streams();
        if (turn != nullptr && turn->is_over(caller_core.load(std::memory_order_relaxed))) return false;
        first = range.next.load(std::memory_order_relaxed);
      }
    }
    return true;
  }

  void serve(int thread) {
    uint32_t seen = 0;
    Turn turn;
    for (;;) {
      spin_until([&] { return epoch.load() != seen; });
      while (epoch.load() == seen) {
        num_asleep.fetch_add(1);
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        num_asleep.fetch_sub(1);
      }
      seen = epoch.load();
      if (stopping.load()) return;
      turn.enter();
      for (bool is_done = false; !is_done;) {
        // Announced before looking: the caller closes the operation first and then waits for the announced.
        num_active.fetch_add(1);
        is_done = !open.load() || work(thread, &turn);
        num_active.fetch_sub(1);
        if (is_done) break;
        turn.pass();
      }
    }
  }

  void run(Task new_task, void* new_context, int64_t count, int64_t new_most) {
    task = new_task, context = new_context, most = new_most;
    for (int64_t i = 0; i <= num_workers; i++) {
      ranges[i].next.store(count * i / (num_workers + 1), std::memory_order_relaxed);
      ranges[i].end = count * (i + 1) / (num_workers + 1);
    }
    caller_core.store(sched_getcpu(), std::memory_order_relaxed);
    open.store(true);
    epoch.fetch_add(1);
    if (num_asleep.load() > 0) wake();
    work(0, nullptr);
    open.store(false);
    while (!spin_until([&] { return num_active.load() == 0; })) sched_yield();
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

void run(Task task, void* context, int64_t num_items, int64_t most) {
  std::unique_lock lock(mutex, std::defer_lock);
  if (num_items <= 1 || !lock.try_lock()) {
    for (int64_t first = 0; first < num_items; first += most) task(context, first, std::min(num_items, first + most));
    finish_streams();
    return;
  }
  if (wanted_threads == 0) wanted_threads = std::min(default_num_threads(), kMaxThreads);
  if (pool != nullptr && pool->num_workers != wanted_threads - 1) {
    pool->stop();
    delete pool;
    pool = nullptr;
  }
  if (pool == nullptr) pool = new Pool(wanted_threads - 1);
  pool->run(task, context, num_items, most);
}

constexpr int64_t kHugeFrom = 64 * 1024;  // bytes; below that small pages do

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
    // In huge pages: a tile is read from 16 places, and prompts of 96 and 128 tokens lost a tenth to small ones.
    const int64_t page = num_bytes < kHugeFrom ? 4096 : 2 << 20;
    const int64_t size = (num_bytes + num_bytes / 4 + page - 1) / page * page;
    buffers.data[slot] = std::aligned_alloc(page, size);
    if (buffers.data[slot] == nullptr) std::abort();
    if (page > 4096) madvise(buffers.data[slot], size, MADV_HUGEPAGE);
    buffers.size[slot] = size;
  }
  return buffers.data[slot];
}

}  // namespace lullm
