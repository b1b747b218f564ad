/* A driver of no device: the functions of libcuda, libamdhip64 and libascendcl that arenas call, over host memory.
 *
 * Physical memory is a memfd, mapping is mmap, and reserved addresses without memory fault when they are touched, as on
 * a device. Every call is recorded; misuse is answered with an error code; copies run when somebody waits for them, and
 * not before. `fake_fail` makes the n-th call of a function fail. Any thread may call; one call runs at a time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX = 512, INVALID_VALUE = 1, INVALID_CONTEXT = 201 };

typedef struct { int type, handle_types, location_type, location_id; void *windows; unsigned char rest[8]; } Prop;
typedef struct { int location_type, location_id, flags; } Access;
typedef struct { int handle_type, allocation_type, attribute; uint32_t id; int type; uint64_t reserved; } AclProp;

static struct { uint64_t address, size; } ranges[MAX];
static struct { uint64_t size; int fd, live; } handles[MAX];
static struct { uint64_t address, size, handle; } mappings[MAX];
static struct { int live; uint64_t queued, done; } streams[MAX];
static struct { int live; uint64_t stream, position; } events[MAX];
static struct { uint64_t stream, destination, source, size; } copies[1 << 14];
static uint64_t num_copies;
static size_t granularity = 2 << 20;
static struct { uint64_t address, size; } pins[MAX];
static int contexts;
static _Thread_local int current;

static char text[1 << 20];
static size_t text_size;
static char failing[64];
static int fail_at, fail_code;

const char *fake_log(void) { return text; }
void fake_reset(void) { text[0] = 0; text_size = 0; failing[0] = 0; }
void fake_granularity(uint64_t bytes) { granularity = bytes; }
void fake_fail(const char *name, int nth, int code) { snprintf(failing, sizeof failing, "%s", name); fail_at = nth; fail_code = code; }

/* Live ranges, handles, mappings, streams, events, retained contexts, pinned pieces of host memory. */
void fake_counts(int out[7]) {
    memset(out, 0, 7 * sizeof *out);
    for (int i = 0; i < MAX; i++) {
        out[0] += ranges[i].size != 0;
        out[1] += handles[i].live;
        out[2] += mappings[i].size != 0;
        out[3] += streams[i].live;
        out[4] += events[i].live;
        out[6] += pins[i].size != 0;
    }
    out[5] = contexts;
}

static int enter(const char *name, int num, ...) {
    va_list values;
    va_start(values, num);
    text_size += snprintf(text + text_size, sizeof text - text_size, "%s", name);
    for (int i = 0; i < num; i++)
        text_size += snprintf(text + text_size, sizeof text - text_size, " %llu", (unsigned long long)va_arg(values, uint64_t));
    text_size += snprintf(text + text_size, sizeof text - text_size, "\n");
    va_end(values);
    return !strcmp(name, failing) && --fail_at == 0 ? fail_code : 0;
}
#define U(x) ((uint64_t)(x))
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int lock(void) { return pthread_mutex_lock(&mutex); }
static void unlock(int *unused) { (void)unused; pthread_mutex_unlock(&mutex); }
/* Holds the lock until the function returns. */
#define ENTER(name, num, ...)                                                                                          \
    __attribute__((cleanup(unlock))) int locked = lock();                                                              \
    (void)locked;                                                                                                      \
    do { int code = enter(name, num, ##__VA_ARGS__); if (code) return code; } while (0)
#define NEED(condition) do { if (!(condition)) return INVALID_VALUE; } while (0)
#define NEED_DEVICE() do { if (!current) return INVALID_CONTEXT; } while (0)

static int reserve(uint64_t *out, uint64_t size) {
    NEED_DEVICE();
    NEED(size && size % granularity == 0);
    /* Aligned to the granularity, as a device's addresses are. */
    char *memory = mmap(NULL, size + granularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 2;
    uint64_t address = (U(memory) + granularity - 1) / granularity * granularity;
    if (address > U(memory)) munmap(memory, address - U(memory));
    munmap((void *)(address + size), U(memory) + granularity - address);
    for (int i = 0; i < MAX; i++)
        if (!ranges[i].size) { ranges[i].address = address; ranges[i].size = size; *out = address; return 0; }
    return 2;
}
static int free_range(uint64_t address, uint64_t size) {
    NEED_DEVICE();
    for (int i = 0; i < MAX; i++) {
        if (!ranges[i].size || ranges[i].address != address) continue;
        NEED(size == 0 || size == ranges[i].size);
        for (int m = 0; m < MAX; m++)
            NEED(!mappings[m].size || mappings[m].address < address || mappings[m].address >= address + ranges[i].size);
        munmap((void *)address, ranges[i].size);
        ranges[i].size = 0;
        return 0;
    }
    return INVALID_VALUE;
}
static int create(uint64_t *out, uint64_t size) {
    NEED_DEVICE();
    NEED(size && size % granularity == 0);
    for (int i = 1; i < MAX; i++)
        if (!handles[i].live) {
            handles[i].fd = memfd_create("fake", 0);
            if (handles[i].fd < 0 || ftruncate(handles[i].fd, size)) return 2;
            handles[i].size = size;
            handles[i].live = 1;
            *out = i;
            return 0;
        }
    return 2;
}
static int release(uint64_t handle) {
    NEED_DEVICE();
    NEED(handle && handle < MAX && handles[handle].live);
    close(handles[handle].fd);
    handles[handle].live = 0;
    return 0;
}
static int map(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, int protection) {
    NEED_DEVICE();
    NEED(offset == 0 && address % granularity == 0 && handle < MAX && handles[handle].live && handles[handle].size == size);
    int reserved = 0;
    for (int i = 0; i < MAX; i++) {
        reserved |= ranges[i].size && address >= ranges[i].address && address + size <= ranges[i].address + ranges[i].size;
        NEED(!mappings[i].size || address + size <= mappings[i].address || address >= mappings[i].address + mappings[i].size);
    }
    NEED(reserved);
    if (mmap((void *)address, size, protection, MAP_SHARED | MAP_FIXED, handles[handle].fd, 0) == MAP_FAILED) return 2;
    for (int i = 0; i < MAX; i++)
        if (!mappings[i].size) {
            mappings[i].address = address;
            mappings[i].size = size;
            mappings[i].handle = handle;
            return 0;
        }
    return 2;
}
static int set_access(uint64_t address, uint64_t size, const Access *access, uint64_t count) {
    NEED_DEVICE();
    NEED(count == 1 && access->location_type == 1 && access->flags == 3);
    for (int i = 0; i < MAX; i++)
        if (mappings[i].size == size && mappings[i].address == address)
            return mprotect((void *)address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : 0;
    return INVALID_VALUE;
}
static int unmap(uint64_t address, uint64_t size) {
    NEED_DEVICE();
    for (int i = 0; i < MAX; i++) {
        if (!mappings[i].size || mappings[i].address != address) continue;
        NEED(size == 0 || size == mappings[i].size);
        mmap((void *)address, mappings[i].size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        mappings[i].size = 0;
        return 0;
    }
    return INVALID_VALUE;
}
static int copy(uint64_t destination, uint64_t source, uint64_t size, uint64_t stream) {
    NEED_DEVICE();
    NEED(stream && stream < MAX && streams[stream].live && num_copies < sizeof copies / sizeof *copies);
    copies[num_copies].stream = stream;
    copies[num_copies].destination = destination;
    copies[num_copies].source = source;
    copies[num_copies++].size = size;
    streams[stream].queued = num_copies;
    return 0;
}
static int run(uint64_t stream, uint64_t position) {
    NEED(stream && stream < MAX && streams[stream].live);
    for (uint64_t i = streams[stream].done; i < position; i++)
        if (copies[i].stream == stream) memcpy((void *)copies[i].destination, (void *)copies[i].source, copies[i].size);
    if (position > streams[stream].done) streams[stream].done = position;
    return 0;
}
static int make_stream(uint64_t *out) {
    NEED_DEVICE();
    for (int i = 1; i < MAX; i++)
        if (!streams[i].live) { streams[i].live = 1; streams[i].queued = streams[i].done = num_copies; *out = i; return 0; }
    return 2;
}
static int drop_stream(uint64_t stream) {
    NEED(stream && stream < MAX && streams[stream].live && streams[stream].done >= streams[stream].queued);
    streams[stream].live = 0;
    return 0;
}
static int make_event(uint64_t *out) {
    for (int i = 1; i < MAX; i++)
        if (!events[i].live) { events[i].live = 1; events[i].stream = 0; *out = i; return 0; }
    return 2;
}
static int record(uint64_t event, uint64_t stream) {
    NEED(event && event < MAX && events[event].live && stream < MAX && streams[stream].live);
    events[event].stream = stream;
    events[event].position = num_copies;
    return 0;
}
static int wait_event(uint64_t event) {
    NEED(event && event < MAX && events[event].live && events[event].stream);
    return run(events[event].stream, events[event].position);
}
static int drop_event(uint64_t event) {
    NEED(event && event < MAX && events[event].live);
    events[event].live = 0;
    return 0;
}

static int pin(uint64_t address, uint64_t size, unsigned flags) {
    NEED_DEVICE();
    NEED(size && address % 4096 == 0 && flags == 3);
    for (int i = 0; i < MAX; i++)
        if (pins[i].size && address < pins[i].address + pins[i].size && pins[i].address < address + size) return 712;
    for (int i = 0; i < MAX; i++)
        if (!pins[i].size) { pins[i].address = address; pins[i].size = size; return 0; }
    return 2;
}
static int unpin(uint64_t address) {
    NEED_DEVICE();
    for (int i = 0; i < MAX; i++)
        if (pins[i].size && pins[i].address == address) { pins[i].size = 0; return 0; }
    return 713;
}

/* CUDA and HIP differ in names only, as far as memory goes. */
#define UNIFIED(prefix)                                                                                                \
    int prefix##MemGetAllocationGranularity(size_t *out, const Prop *prop, int option) {                               \
        ENTER(#prefix "MemGetAllocationGranularity", 1, U(option));                                                    \
        NEED_DEVICE();                                                                                                 \
        NEED(prop->type == 1 && prop->location_type == 1);                                                             \
        *out = granularity;                                                                                            \
        return 0;                                                                                                      \
    }                                                                                                                  \
    int prefix##MemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t wish, unsigned long long flags) { \
        ENTER(#prefix "MemAddressReserve", 4, U(size), U(alignment), wish, U(flags));                                  \
        NEED(!flags);                                                                                                  \
        return reserve(out, size);                                                                                     \
    }                                                                                                                  \
    int prefix##MemCreate(uint64_t *out, size_t size, const Prop *prop, unsigned long long flags) {                    \
        ENTER(#prefix "MemCreate", 2, U(size), U(prop->location_id));                                                  \
        NEED(prop->type == 1 && prop->handle_types == 0 && prop->location_type == 1 && !prop->windows && !flags);      \
        return create(out, size);                                                                                      \
    }                                                                                                                  \
    int prefix##MemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {      \
        ENTER(#prefix "MemMap", 4, address, U(size), U(offset), handle);                                               \
        NEED(!flags);                                                                                                  \
        return map(address, size, offset, handle, PROT_NONE);                                                          \
    }                                                                                                                  \
    int prefix##MemSetAccess(uint64_t address, size_t size, const Access *access, size_t count) {                      \
        ENTER(#prefix "MemSetAccess", 4, address, U(size), U(access->location_id), U(access->flags));                  \
        return set_access(address, size, access, count);                                                               \
    }                                                                                                                  \
    int prefix##MemUnmap(uint64_t address, size_t size) {                                                              \
        ENTER(#prefix "MemUnmap", 2, address, U(size));                                                                \
        NEED(size);                                                                                                    \
        return unmap(address, size);                                                                                   \
    }                                                                                                                  \
    int prefix##MemRelease(uint64_t handle) { ENTER(#prefix "MemRelease", 1, handle); return release(handle); }        \
    int prefix##MemAddressFree(uint64_t address, size_t size) {                                                        \
        ENTER(#prefix "MemAddressFree", 2, address, U(size));                                                          \
        NEED(size);                                                                                                    \
        return free_range(address, size);                                                                              \
    }
UNIFIED(cu)
UNIFIED(hip)

#define HANDLE_FUNCTION(name, body) int name(uint64_t handle) { ENTER(#name, 1, handle); return body(handle); }
#define FLAGS_FUNCTION(name, body) int name(uint64_t *out, unsigned flags) { ENTER(#name, 1, U(flags)); return body(out); }
#define PLAIN_FUNCTION(name, body) int name(uint64_t *out) { ENTER(#name, 0); return body(out); }
#define RECORD_FUNCTION(name) int name(uint64_t event, uint64_t stream) { ENTER(#name, 2, event, stream); return record(event, stream); }
static int synchronize(uint64_t stream) { return run(stream, num_copies); }

int cuInit(unsigned flags) { ENTER("cuInit", 1, U(flags)); return 0; }
int cuDeviceGet(int *out, int ordinal) { ENTER("cuDeviceGet", 1, U(ordinal)); *out = ordinal; return ordinal > 1 ? 101 : 0; }
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    ENTER("cuDeviceGetAttribute", 2, U(attribute), U(device));
    *out = attribute == 102 && strcmp(failing, "no virtual memory") != 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **out, int device) {
    ENTER("cuDevicePrimaryCtxRetain", 1, U(device));
    contexts++;
    *out = (void *)U(0x7000000000 + device);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { ENTER("cuDevicePrimaryCtxRelease_v2", 1, U(device)); NEED(contexts > 0); contexts--; return 0; }
int cuCtxSetCurrent(uint64_t context) { ENTER("cuCtxSetCurrent", 1, context); current = context >> 36 == 7; return 0; }
int cuGetErrorName(int code, const char **out) { *out = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int code, const char **out) { *out = "the fake driver's words"; return code == 999; }
int cuMemcpyDtoHAsync_v2(uint64_t to, uint64_t from, size_t size, uint64_t stream) {
    ENTER("cuMemcpyDtoHAsync_v2", 4, to, from, U(size), stream);
    return copy(to, from, size, stream);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, uint64_t from, size_t size, uint64_t stream) {
    ENTER("cuMemcpyHtoDAsync_v2", 4, to, from, U(size), stream);
    return copy(to, from, size, stream);
}
FLAGS_FUNCTION(cuStreamCreate, make_stream)
HANDLE_FUNCTION(cuStreamSynchronize, synchronize)
HANDLE_FUNCTION(cuStreamDestroy_v2, drop_stream)
FLAGS_FUNCTION(cuEventCreate, make_event)
RECORD_FUNCTION(cuEventRecord)
HANDLE_FUNCTION(cuEventSynchronize, wait_event)
HANDLE_FUNCTION(cuEventDestroy_v2, drop_event)

int cuMemHostRegister_v2(void *p, size_t size, unsigned flags) {
    ENTER("cuMemHostRegister_v2", 3, U(p), U(size), U(flags));
    return pin(U(p), size, flags);
}
HANDLE_FUNCTION(cuMemHostUnregister, unpin)

int hipInit(unsigned flags) { ENTER("hipInit", 1, U(flags)); return 0; }
int hipSetDevice(int device) { ENTER("hipSetDevice", 1, U(device)); current = 1; return 0; }
const char *hipGetErrorString(int code) { return code == 2 ? "out of memory" : "the fake driver's words"; }
int hipMemcpyAsync(uint64_t to, uint64_t from, size_t size, int kind, uint64_t stream) {
    ENTER("hipMemcpyAsync", 5, to, from, U(size), U(kind), stream);
    return copy(to, from, size, stream);
}
int hipHostRegister(void *p, size_t size, unsigned flags) {
    ENTER("hipHostRegister", 3, U(p), U(size), U(flags));
    return pin(U(p), size, flags);
}
HANDLE_FUNCTION(hipHostUnregister, unpin)
FLAGS_FUNCTION(hipStreamCreateWithFlags, make_stream)
HANDLE_FUNCTION(hipStreamSynchronize, synchronize)
HANDLE_FUNCTION(hipStreamDestroy, drop_stream)
FLAGS_FUNCTION(hipEventCreateWithFlags, make_event)
RECORD_FUNCTION(hipEventRecord)
HANDLE_FUNCTION(hipEventSynchronize, wait_event)
HANDLE_FUNCTION(hipEventDestroy, drop_event)

int aclrtSetDevice(int32_t device) { ENTER("aclrtSetDevice", 1, U(device)); current = 1; return 0; }
const char *aclGetRecentErrMsg(void) { return failing[0] ? "the fake driver's words" : NULL; }
int aclrtMemGetAllocationGranularity(AclProp *prop, int option, size_t *out) {
    ENTER("aclrtMemGetAllocationGranularity", 1, U(option));
    NEED(prop->type == 1 && prop->attribute == 4);
    *out = granularity;
    return 0;
}
int aclrtReserveMemAddress(uint64_t *out, size_t size, size_t alignment, void *wish, uint64_t flags) {
    ENTER("aclrtReserveMemAddress", 4, U(size), U(alignment), U(wish), flags);
    return reserve(out, size);
}
int aclrtMallocPhysical(uint64_t *out, size_t size, const AclProp *prop, uint64_t flags) {
    ENTER("aclrtMallocPhysical", 2, U(size), U(prop->id));
    NEED(prop->handle_type == 0 && prop->allocation_type == 0 && prop->attribute == 4 && prop->type == 1 && !flags);
    return create(out, size);
}
int aclrtMapMem(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    ENTER("aclrtMapMem", 4, address, U(size), U(offset), handle);
    NEED(!flags);
    return map(address, size, offset, handle, PROT_READ | PROT_WRITE);
}
int aclrtUnmapMem(uint64_t address) { ENTER("aclrtUnmapMem", 1, address); return unmap(address, 0); }
int aclrtFreePhysical(uint64_t handle) { ENTER("aclrtFreePhysical", 1, handle); return release(handle); }
int aclrtReleaseMemAddress(uint64_t address) { ENTER("aclrtReleaseMemAddress", 1, address); return free_range(address, 0); }
int aclrtMemcpyAsync(uint64_t to, size_t room, uint64_t from, size_t size, int kind, uint64_t stream) {
    ENTER("aclrtMemcpyAsync", 6, to, U(room), from, U(size), U(kind), stream);
    NEED(size <= room);
    return copy(to, from, size, stream);
}
PLAIN_FUNCTION(aclrtCreateStream, make_stream)
HANDLE_FUNCTION(aclrtSynchronizeStream, synchronize)
HANDLE_FUNCTION(aclrtDestroyStream, drop_stream)
PLAIN_FUNCTION(aclrtCreateEvent, make_event)
RECORD_FUNCTION(aclrtRecordEvent)
HANDLE_FUNCTION(aclrtSynchronizeEvent, wait_event)
HANDLE_FUNCTION(aclrtDestroyEvent, drop_event)
