/* A scripted CUPTI: the activity interface over records that the test makes, with the behaviour of several releases.
 *
 * Environment, read when the library is loaded:
 *   FAKE_CUPTI_VERSION=130001      what cuptiGetVersion says (default 130001)
 *   FAKE_CUPTI_STRIDES=10:216,1:96 sizes of the records by kind (default: CUDA 13.0's)
 *   FAKE_CUPTI_FAIL=cuptiActivityEnable=15,cuptiSubscribe=abort   a function's answer; "abort" ends the process
 *   FAKE_CUPTI_FLAGS=0x5           see below (default: a buffer a thread, as CUDA 13)
 *   FAKE_CUPTI_LATE=1              records and buffers still move when the process is ending, after the interpreter
 *
 * The same and more at run time through the fake_cupti_… functions. Works beside the fake libcuda, whose work it turns
 * into records by itself, or alone. -DWITHOUT_LATER leaves out what old releases lack, -DWITH_STRUCT_SIZE adds 13.2's
 * cuptiActivityGetStructSize. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LOCKED = 1,        /* a lock of the library is held while it calls back */
    OWN_THREAD = 2,    /* the library calls back from a thread of its own */
    PER_THREAD = 4,    /* each launching thread fills a buffer of its own */
    REVERSED = 8,      /* finished buffers come back in reverse order */
    NAMES_DIE = 16,    /* names are overwritten and freed once their buffer was given back to the client */
    SILENT = 32,       /* records are made but the client's callbacks are not called: another profiler has taken over */
    TORN = 64,         /* half a record at the end of each buffer */
    UNKNOWN = 128,     /* a record of a kind no one knows at the end of each buffer */
    LATE = 256         /* a buffer stays empty until it comes back; else a record is there when the launch returns */
};

enum { KINDS = 64, MAX_NAMES = 64, MAX_OPEN = 4096, MAX_DONE = 65536, ERROR_LIMIT = 12, ERROR_KIND = 21 };

typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef struct { uint8_t *data, *hidden; size_t size, used; pthread_t owner; } buffer_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, names_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned flags = PER_THREAD, version = 130001;
static size_t stride[KINDS];
static int enabled[KINDS], swallow[KINDS], subscribed, holder, subscribe_ms;
static int memsets_off; /* as in CUDA 13.0: disabling copies (1) ends memsets (2), until these are enabled again */
static struct { char name[56]; unsigned calls; int code; } function_table[MAX_NAMES];
static int function_names;
static requested_t requested;
static completed_t completed;
static buffer_t open_buffers[MAX_OPEN], done[MAX_DONE];
static unsigned open_count, done_count;
static uint8_t *lent[MAX_OPEN];
static unsigned lent_count;
static char *dying[MAX_DONE];
static unsigned dying_count;
static uint64_t dropped, requests, refusals, external[64];
static unsigned correlation, external_depth, counters;
static int64_t clock_offset;

/* ---- control ---------------------------------------------------------------------------------------------------- */

static int find_name(const char *name) {
    for (int i = 0; i < function_names; i++)
        if (strcmp(function_table[i].name, name) == 0) return i;
    if (function_names == MAX_NAMES) abort();
    snprintf(function_table[function_names].name, sizeof function_table[0].name, "%s", name);
    return function_names++;
}

static int enter(const char *name) {
    pthread_mutex_lock(&names_lock);
    int index = find_name(name), code = function_table[index].code;
    function_table[index].calls++;
    pthread_mutex_unlock(&names_lock);
    if (code == -1) {
        fprintf(stderr, "fake libcupti: %s was called\n", name);
        abort();
    }
    return code;
}

#define ENTER(name) do { int code_ = enter(#name); if (code_) return code_; } while (0)

void fake_cupti_fail(const char *name, int code) {
    pthread_mutex_lock(&names_lock);
    function_table[find_name(name)].code = code;
    pthread_mutex_unlock(&names_lock);
}

unsigned fake_cupti_calls(const char *name) {
    pthread_mutex_lock(&names_lock);
    unsigned calls = function_table[find_name(name)].calls;
    pthread_mutex_unlock(&names_lock);
    return calls;
}

unsigned fake_cupti_all_calls(void) {
    unsigned calls = 0;
    for (int i = 0; i < function_names; i++) calls += function_table[i].calls;
    return calls;
}

void fake_cupti_set_flags(unsigned value) { flags = value; }
void fake_cupti_set_version(unsigned value) { version = value; }
void fake_cupti_set_stride(unsigned kind, size_t value) { stride[kind] = value; }
void fake_cupti_set_holder(int value) { holder = value; } /* another profiler has the subscription */
void fake_cupti_set_subscribe_ms(int value) { subscribe_ms = value; } /* how long subscribing takes */
void fake_cupti_set_correlation(unsigned value) { correlation = value; }
void fake_cupti_set_clock_offset(int64_t value) { clock_offset = value; }
void fake_cupti_swallow(unsigned kind, int count) { swallow[kind] = count; }
int fake_cupti_enabled(unsigned kind) { return enabled[kind]; }
int fake_cupti_subscribed(void) { return subscribed; }
unsigned fake_cupti_counters(void) { return counters; } /* of unified memory */
unsigned fake_cupti_in_flight(void) { return lent_count; }
uint64_t fake_cupti_requests(void) { return requests; }
uint64_t fake_cupti_refusals(void) { return refusals; }

/* Calls the client's own callback with a buffer that it never gave. */
void fake_cupti_complete(uint8_t *buffer, size_t size, size_t valid) { completed(NULL, 0, buffer, size, valid); }

/* Writes into every buffer that is in flight, as the library may until the process ends. */
void fake_cupti_scribble(void) {
    for (unsigned i = 0; i < lent_count; i++) memset(lent[i], 0x5a, 256);
}

static void set_strides(const char *text) {
    unsigned kind;
    size_t size;
    while (text && sscanf(text, "%u:%zu", &kind, &size) == 2) {
        if (kind < KINDS) stride[kind] = size;
        text = strchr(text, ',');
        if (text) text++;
    }
}

static void watch_driver(void);

__attribute__((constructor)) static void configure(void) {
    const char *text;
    set_strides("1:96,2:88,3:216,4:40,5:40,8:184,9:32,10:216,17:56,22:96,25:104,38:56,39:24,49:128");
    set_strides(getenv("FAKE_CUPTI_STRIDES"));
    if ((text = getenv("FAKE_CUPTI_VERSION"))) version = (unsigned)strtoul(text, 0, 0);
    if ((text = getenv("FAKE_CUPTI_FLAGS"))) flags = (unsigned)strtoul(text, 0, 0);
    if ((text = getenv("FAKE_CUPTI_HOLDER"))) holder = atoi(text);
    if ((text = getenv("FAKE_CUPTI_FAIL"))) {
        char copy[1024], *rest = copy, *part;
        snprintf(copy, sizeof copy, "%s", text);
        while ((part = strsep(&rest, ","))) {
            char *equals = strchr(part, '=');
            if (!equals) continue;
            *equals++ = 0;
            fake_cupti_fail(part, strcmp(equals, "abort") == 0 ? -1 : atoi(equals));
        }
    }
    watch_driver();
}

typedef uint64_t (*clock_function_t)(void);
static clock_function_t clock_function; /* that a tool has given: all times are by it */

static uint64_t now(void) {
    if (clock_function) return clock_function();
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)((int64_t)time.tv_sec * 1000000000 + time.tv_nsec + clock_offset);
}

/* ---- buffers ---------------------------------------------------------------------------------------------------- */

typedef struct { int request; buffer_t buffer; } call_t;

static void call_back(call_t *call) {
    if (call->request) {
        size_t records = 0;
        requested(&call->buffer.data, &call->buffer.size, &records);
    } else {
        completed(NULL, 0, call->buffer.data, call->buffer.size, call->buffer.used);
    }
}

static void *call_back_here(void *call) {
    call_back(call);
    return NULL;
}

static void on_some_thread(call_t *call) {
    pthread_t thread;
    if (flags & OWN_THREAD && pthread_create(&thread, NULL, call_back_here, call) == 0)
        pthread_join(thread, NULL);
    else
        call_back(call);
}

/* The two below are called with the lock held, and give it away around the callback unless LOCKED. */
static void without_lock(call_t *call) {
    if (!(flags & LOCKED)) pthread_mutex_unlock(&lock);
    on_some_thread(call);
    if (!(flags & LOCKED)) pthread_mutex_lock(&lock);
}

enum { BEGUN = 0x80 }; /* in the uppermost byte of a record's kind until its work has ended */

/* The work of all records has ended. */
static void end_records(buffer_t *buffer) {
    if (buffer->hidden) memcpy(buffer->data, buffer->hidden, buffer->used);
    free(buffer->hidden);
    buffer->hidden = NULL;
    for (size_t at = 0; at + 8 <= buffer->used;) {
        buffer->data[at + 3] &= (uint8_t)~BEGUN;
        uint32_t kind = *(uint32_t *)(buffer->data + at);
        if (kind >= KINDS || !stride[kind]) return;
        at += stride[kind];
    }
}

static void close_buffer(buffer_t *buffer) {
    end_records(buffer);
    if (flags & UNKNOWN && buffer->used + 64 <= buffer->size) {
        memset(buffer->data + buffer->used, 0, 64);
        buffer->data[buffer->used] = 61;
        buffer->used += 64;
    } else if (flags & TORN && buffer->used + 100 <= buffer->size) {
        memset(buffer->data + buffer->used, 0, 100);
        buffer->data[buffer->used] = 10;
        buffer->used += 100;
    }
    if (done_count < MAX_DONE) done[done_count++] = *buffer;
    *buffer = open_buffers[--open_count];
}

static buffer_t *find_buffer(void) {
    pthread_t self = pthread_self();
    for (unsigned i = 0; i < open_count; i++)
        if (!(flags & PER_THREAD) || pthread_equal(open_buffers[i].owner, self)) return &open_buffers[i];
    return NULL;
}

static buffer_t *buffer_for(size_t bytes) {
    buffer_t *found = find_buffer();
    if (found && found->used + bytes <= found->size) return found;
    if (found) close_buffer(found);
    call_t call = {.request = 1};
    requests++;
    without_lock(&call);
    if (!call.buffer.data || call.buffer.size < bytes || open_count == MAX_OPEN) {
        refusals++;
        return NULL;
    }
    found = find_buffer(); /* the lock may have been away */
    if (found && found->used + bytes <= found->size) {
        if (done_count < MAX_DONE) done[done_count++] = call.buffer;
    } else {
        call.buffer.owner = pthread_self();
        call.buffer.hidden = flags & LATE ? calloc(1, call.buffer.size) : NULL;
        open_buffers[open_count++] = call.buffer;
        found = &open_buffers[open_count - 1];
    }
    if (lent_count < MAX_OPEN) lent[lent_count++] = call.buffer.data;
    return found;
}

static int write_record(unsigned kind, const void *record, size_t bytes) {
    uint8_t padded[512] = {0};
    size_t size = kind < KINDS && stride[kind] ? stride[kind] : bytes;
    memcpy(padded, record, bytes < size ? bytes : size);
    pthread_mutex_lock(&lock);
    int wanted = kind >= KINDS || (enabled[kind] && !(kind == 2 && memsets_off));
    if (wanted && kind < KINDS && swallow[kind] > 0) {
        swallow[kind]--;
        wanted = 0;
    }
    if (wanted && !(flags & SILENT) && requested) {
        buffer_t *buffer = buffer_for(size);
        if (buffer) {
            if (kind < KINDS && version >= 130000) padded[3] |= BEGUN;
            memcpy((buffer->hidden ? buffer->hidden : buffer->data) + buffer->used, padded, size);
            buffer->used += size;
        } else {
            dropped++;
        }
    }
    pthread_mutex_unlock(&lock);
    return wanted;
}

static void deliver(int forced) {
    pthread_mutex_lock(&lock);
    while (open_count) close_buffer(&open_buffers[0]);
    (void)forced;
    unsigned count = done_count;
    buffer_t *list = malloc(sizeof *list * (count + 1));
    memcpy(list, done, sizeof *list * count);
    done_count = 0;
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < lent_count; j++)
            if (lent[j] == list[i].data) lent[j] = lent[--lent_count];
    char *dead[1024];
    unsigned dead_count = 0;
    if (flags & NAMES_DIE)
        while (dying_count && dead_count < 1024) dead[dead_count++] = dying[--dying_count];
    for (unsigned i = 0; i < count; i++) {
        call_t call = {.request = 0, .buffer = list[flags & REVERSED ? count - 1 - i : i]};
        without_lock(&call);
    }
    pthread_mutex_unlock(&lock);
    /* Those of buffers delivered before this call; the client has read them, or will not find them any more. */
    static char *previous[1024];
    static unsigned previous_count;
    for (unsigned i = 0; i < previous_count; i++) memset(previous[i], 'X', strlen(previous[i]));
    memcpy(previous, dead, sizeof *dead * dead_count);
    previous_count = dead_count;
    free(list);
}

/* ---- records ---------------------------------------------------------------------------------------------------- */

#define RECORD __attribute__((packed, aligned(8)))

typedef struct RECORD {
    uint32_t kind; uint8_t cache, shared; uint16_t registers; uint32_t cache_2[2]; uint64_t start, end, finished;
    uint32_t device, context, stream; int32_t grid[3], block[3], static_shared, dynamic_shared; uint32_t local, local_total,
    correlation; int64_t grid_id; const char *name; void *reserved; uint64_t queued, submitted; uint8_t launch[4];
    uint32_t executed; uint64_t node; uint32_t limit, graph; void *policy; uint32_t channel[2];
} kernel_t;

typedef struct RECORD {
    uint32_t kind; uint8_t copy, source, target, flags; uint64_t bytes, start, end; uint32_t device, context, stream,
    correlation, runtime, pad; void *reserved; uint64_t node; uint32_t graph, channel[2], pad_2;
} memcpy_t;

typedef struct RECORD {
    uint32_t kind, value; uint64_t bytes, start, end; uint32_t device, context, stream, correlation; uint16_t flags, memory;
    uint32_t pad; void *reserved; uint64_t node; uint32_t graph, channel[2], pad_2;
} memset_t;

typedef struct RECORD {
    uint32_t kind, type; uint64_t start, end; uint32_t correlation, context, stream, event;
} sync_t;

typedef struct RECORD { uint32_t kind, cbid; uint64_t start, end; uint32_t process, thread, correlation, result; } api_t;
typedef struct RECORD { uint32_t kind, external; uint64_t id; uint32_t correlation, reserved; } external_t;

static unsigned next(unsigned wanted) { return wanted ? wanted : __atomic_add_fetch(&correlation, 1, __ATOMIC_RELAXED); }

static const char *keep_name(const char *name) {
    static char *kept[256];
    pthread_mutex_lock(&lock);
    if (!(flags & NAMES_DIE))
        for (unsigned i = 0; i < 256; i++) {
            if (!kept[i]) kept[i] = strdup(name);
            if (strcmp(kept[i], name) == 0) {
                pthread_mutex_unlock(&lock);
                return kept[i];
            }
        }
    char *copy = strdup(name);
    if (flags & NAMES_DIE && dying_count < MAX_DONE) dying[dying_count++] = copy;
    pthread_mutex_unlock(&lock);
    return copy;
}

/* Each returns the correlation id, given (not 0) or the next. Times of 0 mean now and one microsecond. */
unsigned fake_cupti_kernel(const char *name, unsigned device, unsigned stream, uint64_t start, uint64_t end, unsigned id) {
    kernel_t record = {
        .kind = 10, .registers = 32, .start = start ? start : now(), .device = device, .context = device + 1,
        .stream = stream, .grid = {4, 1, 1}, .block = {128, 1, 1}, .correlation = next(id), .name = keep_name(name),
    };
    record.end = end ? end : record.start + 1000;
    record.finished = record.end;
    write_record(10, &record, sizeof record);
    return record.correlation;
}

/* A kernel that a graph replays. */
void fake_cupti_graph_kernel(const char *name, uint64_t node, uint64_t duration, unsigned id) {
    kernel_t record = {
        .kind = 10, .registers = 32, .start = now(), .context = 1, .stream = 7, .grid = {4, 1, 1}, .block = {128, 1, 1},
        .correlation = next(id), .name = keep_name(name), .node = node, .graph = 3,
    };
    record.end = record.start + duration;
    write_record(10, &record, sizeof record);
}

unsigned fake_cupti_memcpy(unsigned copy, uint64_t bytes, unsigned device, unsigned stream, uint64_t start, uint64_t end,
                           unsigned id) {
    memcpy_t record = {
        .kind = 1, .copy = (uint8_t)copy, .source = copy == 1 ? 1 : 3, .target = copy == 2 ? 1 : 3, .bytes = bytes,
        .start = start ? start : now(), .device = device, .context = device + 1, .stream = stream, .correlation = next(id),
    };
    record.end = end ? end : record.start + 1000;
    write_record(1, &record, sizeof record);
    return record.correlation;
}

unsigned fake_cupti_memset(unsigned value, uint64_t bytes, unsigned device, unsigned stream, unsigned id) {
    memset_t record = {
        .kind = 2, .value = value, .bytes = bytes, .start = now(), .device = device, .context = device + 1,
        .stream = stream, .correlation = next(id), .memory = 3,
    };
    record.end = record.start + 500;
    write_record(2, &record, sizeof record);
    return record.correlation;
}

unsigned fake_cupti_sync(unsigned type, unsigned context, unsigned stream, unsigned id) {
    sync_t record = {.kind = 38, .type = type, .start = now(), .correlation = next(id), .context = context,
                     .stream = stream, .event = 0xffffffffu};
    record.end = record.start + 2000;
    write_record(38, &record, sizeof record);
    return record.correlation;
}

unsigned fake_cupti_api(unsigned kind, unsigned cbid, unsigned id) {
    api_t record = {.kind = kind, .cbid = cbid, .start = now(), .process = (uint32_t)getpid(), .correlation = next(id)};
    record.end = record.start + 300;
    if (external_depth) {
        external_t tag = {.kind = 39, .external = 5, .id = external[external_depth - 1], .correlation = record.correlation};
        write_record(39, &tag, sizeof tag);
    }
    write_record(kind, &record, sizeof record);
    return record.correlation;
}

/* Any bytes, as one record. */
void fake_cupti_raw(const void *record, size_t bytes) { write_record(KINDS, record, bytes); }

static void *storm(void *unused) {
    (void)unused;
    for (;;) fake_cupti_kernel("storm", 0, 7, 0, 0, 0);
    return NULL;
}

/* Threads that launch until the process ends. */
void fake_cupti_storm(int threads) {
    pthread_t thread;
    while (threads-- > 0)
        if (pthread_create(&thread, NULL, storm, NULL) == 0) pthread_detach(thread);
}

__attribute__((destructor)) static void late(void) {
    if (!getenv("FAKE_CUPTI_LATE") || !requested) return;
    for (int kind = 0; kind < KINDS; kind++) enabled[kind] = stride[kind] != 0;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 200; i++) fake_cupti_kernel("late", 0, 7, 0, 0, 0);
        deliver(1);
    }
    if (write(1, "late\n", 5) != 5) _exit(9);
}

/* ---- work of the fake libcuda ----------------------------------------------------------------------------------- */

struct fake_cuda_event {
    int what;
    unsigned correlation, device, context, stream;
    unsigned grid[3], block[3], static_shared, dynamic_shared, registers;
    int pinned;
    unsigned value;
    uint64_t bytes, start_ns, end_ns;
};

static kernel_t running[64]; /* without an end: only a forced flush returns them */
static unsigned running_count;
static uint8_t driver_off[900]; /* functions whose calls give no record while the DRIVER kind is on */

void fake_cupti_observe(int what, const char *name, unsigned id, const struct fake_cuda_event *event) {
    if (what == 1) {
        kernel_t record = {
            .kind = 10, .registers = (uint16_t)event->registers, .start = event->start_ns, .end = event->end_ns,
            .finished = event->end_ns, .device = event->device, .context = event->context, .stream = event->stream,
            .static_shared = (int32_t)event->static_shared, .dynamic_shared = (int32_t)event->dynamic_shared,
            .correlation = id, .name = keep_name(name),
        };
        for (int i = 0; i < 3; i++) {
            record.grid[i] = (int32_t)event->grid[i];
            record.block[i] = (int32_t)event->block[i];
        }
        if (event->end_ns) write_record(10, &record, sizeof record);
        else if (running_count < 64) running[running_count++] = record;
    } else if (what <= 4) {
        uint8_t host = event->pinned ? 2 : 1;
        memcpy_t record = {
            .kind = 1, .copy = what == 4 ? 8 : (uint8_t)(what - 1), .source = what == 2 ? host : 3,
            .target = what == 3 ? host : 3, .bytes = event->bytes, .start = event->start_ns, .end = event->end_ns,
            .device = event->device, .context = event->context, .stream = event->stream, .correlation = id,
        };
        write_record(1, &record, sizeof record);
    } else if (what == 6) {
        api_t record = {.kind = 4, .cbid = event->value, .start = event->start_ns, .end = event->end_ns + 100,
                        .process = (uint32_t)getpid(), .thread = (uint32_t)(uintptr_t)pthread_self(), .correlation = id};
        if (!driver_off[event->value]) write_record(4, &record, sizeof record);
    } else if (what == 7) {
        sync_t record = {.kind = 38, .type = 2, .start = event->start_ns, .end = event->end_ns + 100, .correlation = id,
                         .context = event->context, .stream = event->stream, .event = 1};
        write_record(38, &record, sizeof record);
    } else {
        memset_t record = {
            .kind = 2, .value = event->value, .bytes = event->bytes, .start = event->start_ns, .end = event->end_ns,
            .device = event->device, .context = event->context, .stream = event->stream, .correlation = id, .memory = 3,
        };
        write_record(2, &record, sizeof record);
    }
}

/* Finds a fake libcuda in this process and asks it to tell of its work. */
static void watch_driver(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/'), *end = path ? strchr(path, '\n') : NULL;
        if (!end) continue;
        *end = 0;
        char *base = strrchr(path, '/') + 1;
        void *driver = strstr(base, "libcuda.so") ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        void (*set_observer)(void *) = driver ? (void (*)(void *))dlsym(driver, "fake_cuda_set_observer") : NULL;
        if (set_observer) {
            set_observer((void *)fake_cupti_observe);
            ((void (*)(int))dlsym(driver, "fake_cuda_tell_calls"))(1);
            break;
        }
    }
    if (maps) fclose(maps);
}

/* ---- the interface ---------------------------------------------------------------------------------------------- */

int cuptiGetVersion(uint32_t *value) {
    ENTER(cuptiGetVersion);
    *value = version;
    return 0;
}

int cuptiGetContextId(void *context, uint32_t *id) {
    ENTER(cuptiGetContextId);
    *id = ((struct { int device, retained; unsigned id; } *)context)->id; /* as the fake libcuda lays a context out */
    return 0;
}

int cuptiGetStreamIdEx(void *context, void *stream, uint8_t per_thread, uint32_t *id) {
    ENTER(cuptiGetStreamIdEx);
    (void)context, (void)per_thread;
    *id = ((struct { void *context; unsigned id; } *)stream)->id; /* as the fake libcuda lays a stream out */
    return 0;
}

int cuptiActivityRegisterTimestampCallback(clock_function_t function) {
    ENTER(cuptiActivityRegisterTimestampCallback);
    if (!function) return 1;
    clock_function = function;
    return 0;
}

int cuptiGetTimestamp(uint64_t *value) {
    ENTER(cuptiGetTimestamp);
    *value = now();
    return 0;
}

typedef void (*event_t)(void *data, int domain, uint32_t event, const void *facts);
static event_t on_event;
static void *event_data;
static uint8_t resource_on[32], call_on[3][1024]; /* call_on: by domain, driver 1 and runtime 2 */

int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    ENTER(cuptiSubscribe);
    if (!callback) return 1;
    if (subscribed || holder) return 39;
    subscribed = 1;
    memcpy(&on_event, &callback, sizeof on_event);
    event_data = data;
    memset(resource_on, 0, sizeof resource_on);
    memset(call_on, 0, sizeof call_on);
    *subscriber = &subscribed;
    struct timespec time = {0, subscribe_ms * 1000000L};
    nanosleep(&time, NULL);
    return 0;
}

int cuptiUnsubscribe(void *subscriber) {
    ENTER(cuptiUnsubscribe);
    if (subscriber != &subscribed || !subscribed) return 1;
    subscribed = 0;
    return 0;
}

int cuptiFinalize(void) {
    ENTER(cuptiFinalize);
    pthread_mutex_lock(&lock);
    memset(enabled, 0, sizeof enabled);
    requested = NULL, completed = NULL;
    open_count = done_count = lent_count = 0;
    subscribed = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t cbid) {
    ENTER(cuptiEnableCallback);
    if (subscriber != &subscribed) return 1;
    if (domain == 3 && cbid < 32) resource_on[cbid] = (uint8_t)on;
    if (domain == 1 || domain == 2) {
        if (cbid >= (version < 130000 ? 700u : 900u)) return 1; /* a function that this release does not know */
        call_on[domain][cbid] = (uint8_t)on;
    }
    return 0;
}

/* A node of a graph is made, or cloned from another; the subscriber hears of it as the client asked. */
void fake_cupti_graph_node(void *node, void *original) {
    struct { void *graph, *original_graph, *node, *original; int type; void *dependency, *executable; } graph = {
        .node = node, .original = original,
    };
    struct { void *context, *handle, *descriptor; } facts = {.descriptor = &graph};
    uint32_t event = original ? 20 : 13;
    if (subscribed && resource_on[event]) on_event(event_data, 3, event, &facts);
}

unsigned fake_cupti_calls_wanted(void) {
    unsigned found = 0;
    for (int domain = 1; domain <= 2; domain++)
        for (int cbid = 0; cbid < 1024; cbid++) found += call_on[domain][cbid];
    return subscribed ? found : 0;
}

static void tell(uint32_t site, int domain, uint32_t cbid, unsigned id) {
    struct { uint32_t site; const char *name; void *rest[5]; uint64_t *shared; uint32_t correlation; } facts = {
        .site = site, .name = "", .correlation = id,
    };
    if (subscribed && call_on[domain][cbid]) on_event(event_data, domain, cbid, &facts);
}

static int signal_before_call; /* raised on the calling thread as the next call begins */
void fake_cupti_signal_before_call(int number) { signal_before_call = number; }

/* The program waits in a function of the driver (domain 1) or, with the driver's inside, of the runtime (2). ``type`` as
 * in records of synchronisations; 0: a copy that returns when it is done. Returns the correlation id. */
unsigned fake_cupti_wait(int domain, uint32_t cbid, unsigned type, uint64_t duration, unsigned id) {
    sync_t record = {.kind = 38, .type = type, .start = now(), .correlation = next(id), .context = 1, .stream = 7,
                     .event = 0xffffffffu};
    id = record.correlation;
    int number = __atomic_exchange_n(&signal_before_call, 0, __ATOMIC_SEQ_CST);
    if (number) raise(number);
    tell(0, domain, cbid, id);
    if (domain == 2) tell(0, 1, 126, id), tell(1, 1, 126, id);
    record.end = record.start + duration;
    if (type) write_record(38, &record, sizeof record);
    else fake_cupti_memcpy(2, 4096, 0, 7, record.start, record.end, id);
    tell(1, domain, cbid, id);
    return id;
}

static struct { uint64_t count; unsigned left; } foreign;

static void *wait_here(void *unused) {
    (void)unused;
    for (uint64_t i = 0; i < foreign.count; i++) fake_cupti_wait(2, 131, 3, 2000, 0);
    __atomic_sub_fetch(&foreign.left, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Threads that Python knows nothing of, each of which waits ``count`` times; how many are not done yet. */
void fake_cupti_foreign_waits(int threads, uint64_t count) {
    pthread_t thread;
    foreign.count = count, foreign.left = (unsigned)threads;
    while (threads-- > 0)
        if (pthread_create(&thread, NULL, wait_here, NULL) == 0) pthread_detach(thread);
}
unsigned fake_cupti_foreign_left(void) { return __atomic_load_n(&foreign.left, __ATOMIC_SEQ_CST); }

int cuptiActivityRegisterCallbacks(requested_t request, completed_t complete) {
    ENTER(cuptiActivityRegisterCallbacks);
    if (!request || !complete) return 1;
    pthread_mutex_lock(&lock);
    requested = request, completed = complete;
    pthread_mutex_unlock(&lock);
    watch_driver();
    return 0;
}

int cuptiActivityEnable(unsigned kind) {
    ENTER(cuptiActivityEnable);
    char name[56];
    snprintf(name, sizeof name, "cuptiActivityEnable:%u", kind);
    int code = enter(name);
    if (code) return code;
    if (kind >= KINDS || !stride[kind]) return ERROR_KIND;
    if (kind == 4) memset(driver_off, 0, sizeof driver_off);
    if (kind == 2 && !enabled[2]) memsets_off = 0;
    enabled[kind] = 1;
    return 0;
}

int cuptiActivityConfigureUnifiedMemoryCounter(const uint32_t *rows, uint32_t count) {
    ENTER(cuptiActivityConfigureUnifiedMemoryCounter);
    for (uint32_t i = 0; i < count; i++)
        if (rows[4 * i] > 2 || !rows[4 * i + 1] || rows[4 * i + 1] > 8) return 1;
    counters = count;
    return 0;
}

int cuptiActivityDisable(unsigned kind) {
    ENTER(cuptiActivityDisable);
    if (kind >= KINDS) return ERROR_KIND;
    if (kind == 1) memsets_off = 1;
    enabled[kind] = 0;
    return 0;
}

int cuptiActivityFlushAll(uint32_t flag) {
    ENTER(cuptiActivityFlushAll);
    while (flag == 1 && running_count) {
        running_count--;
        write_record(10, &running[running_count], sizeof *running);
    }
    if (completed && !(flags & SILENT)) deliver(flag == 1);
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    ENTER(cuptiActivityGetNextRecord);
    if (!buffer || !record) return 1;
    uint8_t *at = buffer;
    if (*record) {
        uint32_t kind = *(uint32_t *)(void *)*record;
        at = *record + stride[kind];
    }
    if (at + 4 > buffer + valid) return ERROR_LIMIT;
    uint32_t kind = *(uint32_t *)(void *)at;
    if (kind >= KINDS || !stride[kind]) return ERROR_KIND;
    if (at + stride[kind] > buffer + valid) return ERROR_LIMIT;
    *record = at;
    return 0;
}

int cuptiActivityGetAttribute(int attribute, size_t *size, void *value) {
    ENTER(cuptiActivityGetAttribute);
    if (attribute != 9 || version < 21) return 1;
    if (*size < 1) return 10;
    *(uint8_t *)value = (flags & PER_THREAD) != 0;
    return 0;
}

int cuptiActivitySetAttribute(int attribute, size_t *size, void *value) {
    ENTER(cuptiActivitySetAttribute);
    if (attribute != 9 || version < 21) return 1;
    if (*size != 1) return 10;
    flags = *(uint8_t *)value ? flags | PER_THREAD : flags & ~(unsigned)PER_THREAD;
    return 0;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    ENTER(cuptiActivityGetNumDroppedRecords);
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    *count = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiActivityEnableLatencyTimestamps(uint8_t on) {
    ENTER(cuptiActivityEnableLatencyTimestamps);
    (void)on;
    return 0;
}

int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id) {
    ENTER(cuptiActivityPushExternalCorrelationId);
    if (kind < 1 || kind > 5 || external_depth == 64) return 1;
    external[external_depth++] = id;
    return 0;
}

int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
    ENTER(cuptiActivityPopExternalCorrelationId);
    (void)kind;
    if (!external_depth) return 18;
    *last = external[--external_depth];
    return 0;
}

int cuptiGetCallbackName(int domain, uint32_t cbid, const char **name) {
    ENTER(cuptiGetCallbackName);
    *name = domain == 1 && cbid == 307 ? "cuLaunchKernel" : domain == 2 && cbid == 211 ? "cudaLaunchKernel_v7000" : NULL;
    return *name ? 0 : 1;
}

int cuptiGetGraphNodeId(void *node, uint64_t *id) {
    ENTER(cuptiGetGraphNodeId);
    *id = (uint64_t)(uintptr_t)node + 1;
    return 0;
}

int cuptiGetGraphId(void *graph, uint32_t *id) {
    ENTER(cuptiGetGraphId);
    *id = (uint32_t)(uintptr_t)graph + 2;
    return 0;
}

#ifndef WITHOUT_LATER
int cuptiActivityEnableHWTrace(uint8_t on) {
    ENTER(cuptiActivityEnableHWTrace);
    for (int kind = 0; kind < KINDS; kind++)
        if (enabled[kind]) return 7;
    (void)on;
    return 0;
}

int cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t on) {
    ENTER(cuptiActivityEnableDriverApi);
    if (cbid >= 900) return 1;
    driver_off[cbid] = !on;
    return 0;
}

int cuptiActivityEnableRuntimeApi(uint32_t cbid, uint8_t on) {
    ENTER(cuptiActivityEnableRuntimeApi);
    (void)on;
    return cbid < 900 ? 0 : 1;
}
#endif

#ifdef WITH_STRUCT_SIZE
int cuptiActivityGetStructSize(int kind, uint32_t wanted, size_t *size) {
    ENTER(cuptiActivityGetStructSize);
    if (kind < 0 || kind >= KINDS || !stride[kind]) return ERROR_KIND;
    if (wanted) return 27;
    *size = stride[kind];
    return 0;
}
#endif
