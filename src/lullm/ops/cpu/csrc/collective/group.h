// Group: a member's view of memory that several processes share, in which they meet, wait for each other and leave bytes.
//
// Every member makes the same calls in the same order, and a call is one or more rounds. In a round each member writes
// into its own buffer, says so, waits for the others and reads their buffers. There are two buffers, used in turns: who
// says "round r + 1" has read all of round r, so that one wait per round suffices. A channel carries bytes from one
// member to another in the same way, past the others.
#pragma once

#include <atomic>
#include <cstdint>

#include "../kernel_table.h"

namespace lullm {

constexpr int64_t kPartBytes = 256 * 1024;  // of a buffer: what stays in the second cache of two cores
constexpr int64_t kNumBuffers = 2;
constexpr int64_t kChannelBuffers = 8;      // a stage may be ahead of the next one by some decodes

// A number that goes up, and how many sleep until it does.
struct alignas(64) Counter {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> num_asleep;
};

enum MemberState : uint32_t { kAbsent = 0, kPresent = 1, kGone = 2 };

struct alignas(64) Member {
  Counter arrived;  // rounds whose bytes lie in its buffer
  std::atomic<uint32_t> state;
};

struct Channel {
  Counter written, read;  // parts
};

// The first page of the file: what holds for all groups in it.
struct FileHeader {
  std::atomic<uint32_t> is_broken;  // a member of some group is lost: nobody waits any more
};

// Why calls fail.
enum Failure : int { kNone = 0, kDied = 1, kLeft = 2, kLate = 3, kBrokenElsewhere = 4 };

class Group {
 public:
  // Of the region of a group of `size` in its file; a multiple of the page size.
  static int64_t region_bytes(int64_t size);

  // A member's end, over a file that is long enough. Null if it cannot be mapped or the place is taken.
  static Group* open(int descriptor, int64_t offset, int64_t rank, int64_t size, int64_t timeout_ns);
  ~Group();

  // The own buffer of a new round.
  char* begin_round();
  // Says that it is written, and waits for those of all others. False, as all calls from then on: a member is lost.
  bool arrive();
  // A member's buffer of this round.
  char* buffer(int64_t member) const { return buffers_ + (member * kNumBuffers + round_ % kNumBuffers) * kPartBytes; }

  // Where the next part to a member goes, once there is room, and where the next one from a member lies. Null: lost.
  char* await_room(int64_t to);
  char* await_part(int64_t from);
  void sent(int64_t to) { announce(channel(rank, to).written); }
  void received(int64_t from) { announce(channel(from, rank).read); }

  const int64_t rank, size;
  Failure failure = kNone;
  int64_t lost_member = -1;

 private:
  Group(int64_t rank, int64_t size) : rank(rank), size(size) {}
  Channel& channel(int64_t from, int64_t to) const { return channels_[from * size + to]; }
  char* channel_buffer(int64_t from, int64_t to, uint32_t part) const {
    return channel_buffers_ + ((from * size + to) * kChannelBuffers + part % kChannelBuffers) * kPartBytes;
  }
  static void announce(Counter&);
  bool wait(Counter&, uint32_t count, int64_t member);
  Failure fate_of(int64_t member) const;
  bool fail(Failure, int64_t member);

  int lock_ = -1;  // a description of the file of its own: its lock ends with the process
  int64_t offset_ = 0, bytes_ = 0, timeout_ns_ = 0;
  uint32_t round_ = 0;
  FileHeader* header_ = nullptr;
  Member* members_ = nullptr;
  Channel* channels_ = nullptr;
  char* buffers_ = nullptr;
  char* channel_buffers_ = nullptr;
};

}  // namespace lullm
