// What members of a group do together: in parts that fit into a buffer, each of them a round or two (see `group.h`).

#include <algorithm>
#include <cstring>

#include "../isa.h"
#include "../operation.h"
#include "../thread_pool.h"
#include "group.h"

using namespace lullm;

namespace {

constexpr int64_t kItemBytes = 64 * 1024;        // for one thread
constexpr int64_t kLeastSharedOut = 128 * 1024;  // bytes of a part; see `reduce_part`

Group& group_of(void* handle) { return *static_cast<Group*>(handle); }

void copy(void* to, const void* from, int64_t num_bytes) {
  parallel_for((num_bytes + kItemBytes - 1) / kItemBytes, [&](int64_t item) {
    const int64_t first = item * kItemBytes, count = std::min(kItemBytes, num_bytes - first);
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first, count);
  });
}

// body(first, count) over the parts of a range of bytes, until one returns false. 1 if none did.
template <class Body>
int for_parts(int64_t num_bytes, Body&& body) {
  for (int64_t first = 0; first < num_bytes; first += kPartBytes)
    if (!body(first, std::min(kPartBytes, num_bytes - first))) return 0;
  return 1;
}

// The elements [first, last) of all members' buffers, into `out`.
void sum(const Group& group, void* out, int64_t first, int64_t last, int dtype) {
  const void* parts[kMaxMembers];
  for (int64_t member = 0; member < group.size; member++) parts[member] = group.buffer(member);
  const int64_t per_item = kItemBytes / size_of(dtype);
  parallel_for((last - first + per_item - 1) / per_item, [&](int64_t item) {
    const int64_t start = first + item * per_item;
    kernels().sum_parts[dtype](parts, group.size, out, start, std::min(last, start + per_item));
  });
}

// Every member adds all copies: it reads as many as there are members. With more than two members, and more to read than
// another wait costs, a member adds its share of the elements, and reads the shares of the others in a second round.
bool reduce_part(Group& group, char* x, int64_t num_bytes, int dtype) {
  const int64_t count = num_bytes / size_of(dtype);
  copy(group.begin_round(), x, num_bytes);
  if (!group.arrive()) return false;
  if (group.size <= 2 || num_bytes < kLeastSharedOut) {
    sum(group, x, 0, count, dtype);
    return true;
  }
  const auto start = [&](int64_t member) { return count * member / group.size / 32 * 32; };
  const auto end = [&](int64_t member) { return member + 1 == group.size ? count : start(member + 1); };
  sum(group, x, start(group.rank), end(group.rank), dtype);
  const int64_t size = size_of(dtype), first = start(group.rank) * size, last = end(group.rank) * size;
  copy(group.begin_round() + first, x + first, last - first);
  if (!group.arrive()) return false;
  for (int64_t member = 0; member < group.size; member++) {
    const int64_t from = start(member) * size;
    if (member != group.rank) copy(x + from, group.buffer(member) + from, end(member) * size - from);
  }
  return true;
}

}  // namespace

LULLM_EXPORT int64_t lullm_group_bytes(int64_t size) { return Group::region_bytes(size); }

// Blocking until all members have opened their end; null only if the memory cannot be had.
LULLM_EXPORT void* lullm_open_group(int descriptor, int64_t offset, int64_t rank, int64_t size, int64_t timeout_ns) {
  return Group::open(descriptor, offset, rank, size, timeout_ns);
}

LULLM_EXPORT void lullm_close_group(void* group) { delete static_cast<Group*>(group); }

// Why calls fail, and in `member` whom they waited for; see `Failure`.
LULLM_EXPORT int lullm_group_failure(void* group, int64_t* member) {
  *member = group_of(group).lost_member;
  return group_of(group).failure;
}

LULLM_EXPORT int lullm_meet(void* group) {
  group_of(group).begin_round();
  return group_of(group).arrive();
}

LULLM_EXPORT int lullm_all_reduce(void* group, void* x, int64_t count, int dtype) {
  return for_parts(count * size_of(dtype), [&](int64_t first, int64_t num_bytes) {
    return reduce_part(group_of(group), static_cast<char*>(x) + first, num_bytes, dtype);
  });
}

LULLM_EXPORT int lullm_all_gather(void* group, const void* x, void* y, int64_t num_rows, int64_t row_bytes) {
  Group& g = group_of(group);
  const int64_t width = std::max<int64_t>(1, std::min(row_bytes, kPartBytes)), height = kPartBytes / width;
  for (int64_t row = 0; row < num_rows; row += height) {
    const int64_t rows = std::min(height, num_rows - row);
    for (int64_t column = 0; column < row_bytes; column += width) {
      const int64_t bytes = std::min(width, row_bytes - column);
      char* own = g.begin_round();
      for (int64_t i = 0; i < rows; i++)
        std::memcpy(own + i * bytes, static_cast<const char*>(x) + (row + i) * row_bytes + column, bytes);
      if (!g.arrive()) return 0;
      for (int64_t member = 0; member < g.size; member++) {
        char* to = static_cast<char*>(y) + (row * g.size + member) * row_bytes + column;
        for (int64_t i = 0; i < rows; i++)
          std::memcpy(to + i * g.size * row_bytes, g.buffer(member) + i * bytes, bytes);
      }
    }
  }
  return 1;
}

// Of x [num_rows, row_bytes] the rows of this member, with the bytes of all members in rank order. Each has as many rows;
// where they do not divide, the last ones begin earlier.
LULLM_EXPORT int lullm_deal_rows(void* group, const void* x, void* y, int64_t num_rows, int64_t row_bytes) {
  Group& g = group_of(group);
  const char* from = static_cast<const char*>(x);
  const int64_t num_own = (num_rows + g.size - 1) / g.size;
  const auto first_of = [&](int64_t member) { return std::min(member * num_own, num_rows - num_own); };
  const int64_t room = kPartBytes / g.size, width = std::max<int64_t>(1, std::min(row_bytes, room)), height = room / width;
  for (int64_t row = 0; row < num_own; row += height) {
    const int64_t rows = std::min(height, num_own - row);
    for (int64_t column = 0; column < row_bytes; column += width) {
      const int64_t bytes = std::min(width, row_bytes - column);
      const auto source = [&](int64_t member, int64_t i) { return from + (first_of(member) + row + i) * row_bytes + column; };
      char* own = g.begin_round();
      for (int64_t member = 0; member < g.size; member++)
        for (int64_t i = 0; i < rows && member != g.rank; i++)
          std::memcpy(own + (member * height + i) * bytes, source(member, i), bytes);
      if (!g.arrive()) return 0;
      for (int64_t member = 0; member < g.size; member++) {
        char* to = static_cast<char*>(y) + (row * g.size + member) * row_bytes + column;
        for (int64_t i = 0; i < rows; i++) {
          const char* piece = member == g.rank ? source(member, i) : g.buffer(member) + (g.rank * height + i) * bytes;
          std::memcpy(to + i * g.size * row_bytes, piece, bytes);
        }
      }
    }
  }
  return 1;
}

LULLM_EXPORT int lullm_send(void* group, const void* x, int64_t num_bytes, int64_t to) {
  return for_parts(num_bytes, [&](int64_t first, int64_t count) {
    char* room = group_of(group).await_room(to);
    if (room == nullptr) return false;
    copy(room, static_cast<const char*>(x) + first, count);
    group_of(group).sent(to);
    return true;
  });
}

LULLM_EXPORT int lullm_receive(void* group, void* x, int64_t num_bytes, int64_t from) {
  return for_parts(num_bytes, [&](int64_t first, int64_t count) {
    const char* part = group_of(group).await_part(from);
    if (part == nullptr) return false;
    copy(static_cast<char*>(x) + first, part, count);
    group_of(group).received(from);
    return true;
  });
}
