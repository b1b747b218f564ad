// Meeting, waiting, and noticing that somebody is lost.

#include "group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdio>

#include "../processor.h"

namespace lullm {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kSpinNs = 20'000;        // then others may have the core
constexpr int64_t kYieldNs = 500'000;      // then the thread sleeps
constexpr int64_t kLookNs = 100'000'000;   // a sleeper looks this often whether the others live

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

int64_t in_pages(int64_t num_bytes) { return (num_bytes + kPage - 1) / kPage * kPage; }

int64_t head_bytes(int64_t size) { return in_pages(size * sizeof(Member) + size * size * sizeof(Channel)); }

bool has_reached(const Counter& counter, uint32_t count) {
  return static_cast<int32_t>(counter.count.load(std::memory_order_acquire) - count) >= 0;
}

void call_futex(Counter& counter, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&counter.count), operation, value, timeout, nullptr, 0);
}

// Until it counts up, at most for kLookNs; not at all if it has reached the number already.
void sleep_before(Counter& counter, uint32_t count) {
  const timespec pause = {0, kLookNs};
  counter.num_asleep.fetch_add(1);
  const uint32_t seen = counter.count.load();
  if (!has_reached(counter, count)) call_futex(counter, FUTEX_WAIT, seen, &pause);
  counter.num_asleep.fetch_sub(1);
}

// A lock of one byte, which belongs to an open description of the file and ends with it.
struct flock lock_of(int64_t offset, int64_t rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = offset + rank, lock.l_len = 1;
  return lock;
}

}  // namespace

int64_t Group::region_bytes(int64_t size) {
  return head_bytes(size) + (size * kNumBuffers + size * size * kChannelBuffers) * kPartBytes;  // pages that nobody touches take no memory
}

Group* Group::open(int descriptor, int64_t offset, int64_t rank, int64_t size, int64_t timeout_ns) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct flock lock = lock_of(offset, rank);
  const int64_t bytes = region_bytes(size);
  void* header = MAP_FAILED;
  void* region = MAP_FAILED;
  if (fcntl(file, F_OFD_SETLK, &lock) == 0) {
    header = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
  }
  if (header == MAP_FAILED || region == MAP_FAILED) {
    if (header != MAP_FAILED) munmap(header, kPage);
    if (region != MAP_FAILED) munmap(region, bytes);
    ::close(file);
    return nullptr;
  }
  Group* group = new Group(rank, size);
  group->lock_ = file, group->offset_ = offset, group->bytes_ = bytes, group->timeout_ns_ = timeout_ns;
  group->header_ = static_cast<FileHeader*>(header);
  group->members_ = static_cast<Member*>(region);
  group->channels_ = reinterpret_cast<Channel*>(static_cast<char*>(region) + size * sizeof(Member));
  group->buffers_ = static_cast<char*>(region) + head_bytes(size);
  group->channel_buffers_ = group->buffers_ + size * kNumBuffers * kPartBytes;
  group->members_[rank].state.store(kPresent);
  return group;
}

Group::~Group() {
  members_[rank].state.store(kGone);
  munmap(members_, bytes_);
  munmap(header_, kPage);
  ::close(lock_);
}

char* Group::begin_round() {
  round_++;
  return buffer(rank);
}

bool Group::arrive() {
  announce(members_[rank].arrived);
  for (int64_t member = 0; member < size; member++)
    if (member != rank && !wait(members_[member].arrived, round_, member)) return false;
  return true;
}

char* Group::await_room(int64_t to) {
  Channel& c = channel(rank, to);
  const uint32_t part = c.written.count.load();
  return wait(c.read, part + 1 - kChannelBuffers, to) ? channel_buffer(rank, to, part) : nullptr;
}

char* Group::await_part(int64_t from) {
  Channel& c = channel(from, rank);
  const uint32_t part = c.read.count.load();
  return wait(c.written, part + 1, from) ? channel_buffer(from, rank, part) : nullptr;
}

void Group::announce(Counter& counter) {
  counter.count.fetch_add(1);
  if (counter.num_asleep.load() > 0) call_futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
}

// Until the counter, which `member` counts up, has reached `count`.
bool Group::wait(Counter& counter, uint32_t count, int64_t member) {
  if (failure != kNone) return false;
  if (has_reached(counter, count)) return true;
  const int64_t start = now_ns();
  for (int64_t waited = 0, looked = 0; !has_reached(counter, count); waited = now_ns() - start) {
    if (waited < kSpinNs) {
      for (int i = 0; i < 16 && !has_reached(counter, count); i++) wait_briefly();
    } else if (waited < kYieldNs) {
      sched_yield();
    } else {
      sleep_before(counter, count);
    }
    if (waited - looked < kLookNs) continue;
    looked = waited;
    const Failure fate = waited > timeout_ns_ ? kLate : fate_of(member);
    if (fate != kNone) return has_reached(counter, count) || fail(fate, member);  // it may have done its part before
  }
  return true;
}

Failure Group::fate_of(int64_t member) const {
  if (header_->is_broken.load() != 0) return kBrokenElsewhere;
  if (members_[member].state.load() == kGone) return kLeft;
  if (members_[member].state.load() == kAbsent) return kNone;
  struct flock lock = lock_of(offset_, member);
  const bool has_ended = fcntl(lock_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  return !has_ended ? kNone : members_[member].state.load() == kGone ? kLeft : kDied;
}

bool Group::fail(Failure why, int64_t member) {
  failure = why, lost_member = member;
  header_->is_broken.store(1);
  return false;
}

}  // namespace lullm
