// Turn: when a worker of the thread pool lets another process have its core, which it finds out by the time it misses.
#pragma once

#include <sched.h>
#include <time.h>

#include "processor.h"

namespace lullm {

// A worker that loses its core in the middle of an item keeps all threads waiting until it has it again: beside a busy
// process on one of two cores, decoding ran at 0.51 of its speed, as if that core were not there. So a worker whose core
// is wanted sleeps between two items, before the system takes it, and the others go on without it. Meanwhile it keeps off
// the caller's core: Linux would put both on one for a quarter of the time, and leave the other to the process.
class Turn {
 public:
  // Before the first item of an operation; the worker has looked for it, or slept.
  void enter() {
    see();
    if (avoided >= 0 && seen >= shared_until) {
      sched_setaffinity(0, sizeof allowed, &allowed);
      avoided = -1;
    }
  }

  // Between two items. True: the worker should leave the operation, and call `pass`.
  bool is_over(int caller_core) {
    if (see()) {
      remember();
      avoid(caller_core);
    }
    return seen < shared_until && seen - start > 16 * short_ticks();  // Linux looks every 4 ms who else wants a core
  }

  // Leaves the core to another process, if there is one. By a moment's sleep: who calls `sched_yield` gives away his part of
  // the next slice as well, and got 46 % of the core instead of half.
  void pass() {
    const timespec moment{0, 100000};
    nanosleep(&moment, nullptr);
    if (see()) remember();
    start = seen;
  }

 private:
  // Has time passed in which the worker did not run? That begins a turn. An item of a decode takes less.
  bool see() {
    const uint64_t now = ticks();
    const bool has_missed = now - seen > 10 * short_ticks();
    if (has_missed) start = now;
    seen = now;
    return has_missed;
  }

  void remember() { shared_until = seen + 1000 * short_ticks(); }

  void avoid(int core) {
    if (core < 0 || core == avoided) return;
    if (avoided < 0 && sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    cpu_set_t others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) avoided = core;
  }

  uint64_t seen = 0, start = 0, shared_until = 0;
  int avoided = -1;
  cpu_set_t allowed;  // while one is avoided
};

}  // namespace lullm
