/* A scripted CUDA driver: the functions gpusense calls, with real copies and no device.
 *
 * Environment, read when the library is loaded:
 *   FAKE_CUDA_DEVICES=2            number of devices (default 1, at most 8)
 *   FAKE_CUDA_ORDER=20             which physical device each ordinal is, as CUDA_VISIBLE_DEVICES makes it (default 0123…)
 *   FAKE_CUDA_VERSION=12040        what cuDriverGetVersion says (default 13000)
 *   FAKE_CUDA_CAPABILITY=10        major compute capability (default 9)
 *   FAKE_CUDA_LIVE=1               already initialised, as in a process that used CUDA before
 *   FAKE_CUDA_MIG=1                cuDeviceGetUuid_v2 answers with another identity than cuDeviceGetUuid
 *   FAKE_CUDA_FAIL=cuInit=abort,cuMemAlloc_v2=2   a function's answer; "abort" ends the process
 *
 * The same and more at run time through the fake_cuda_… functions below. -DWITHOUT_LATER leaves out the functions that
 * old drivers lack. Kernels do nothing; each takes kernel_ns of virtual time, which events measure.
 *
 * After fake_cuda_set_now(t), streams have times of their own instead: fake_cuda_work(stream, ns) gives one something to
 * do, an event is reached when its stream comes to it, and the clock stands at t until it is set again. Or it is the
 * machine's, after fake_cuda_real_time().
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DEVICES = 8, MAX_ATTRIBUTE = 160, MAX_NAMES = 128, MAX_LOG = 8192, MAX_STACK = 64, MAX_PINNED = 64 };

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, IMPLICIT = 906,
    ABORT = -1
};

/* What an observer is told of each piece of device work. */
enum { FAKE_KERNEL = 1, FAKE_HTOD = 2, FAKE_DTOH = 3, FAKE_DTOD = 4, FAKE_MEMSET = 5, FAKE_CALL = 6, FAKE_WAIT = 7 };

struct fake_cuda_event {
    int what;
    unsigned correlation, device, context, stream;
    unsigned grid[3], block[3], static_shared, dynamic_shared, registers;
    int pinned; /* the host side of a copy */
    unsigned value; /* of a memset; of a call: the id that CUPTI has for the function */
    uint64_t bytes, start_ns, end_ns;
};

typedef void (*fake_cuda_observer)(int what, const char *name, unsigned correlation, const struct fake_cuda_event *);

typedef struct { int device, retained; unsigned id; } context_t;
typedef struct { context_t *context; unsigned id; uint64_t busy_until; int capturing; } stream_t;
typedef struct { uint64_t time_ns; int recorded; unsigned context; } event_t;
typedef struct { char name[256]; int params; size_t size[32]; } function_t;
typedef struct { int functions; function_t function[32]; } module_t;
typedef struct { size_t size; int device; uint32_t magic; } header_t;

#define MAGIC 0xC0DAC0DAu
#define PADDING 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int device_count = 1, version = 13000, live, mig;
static char device_name[MAX_DEVICES][128];
static size_t total_bytes[MAX_DEVICES], used_bytes[MAX_DEVICES];
static int attribute[MAX_DEVICES][MAX_ATTRIBUTE];
static context_t primary[MAX_DEVICES];
static struct { const char *name; unsigned calls; int code; char kept[64]; } function_table[MAX_NAMES];
static int function_names;
static const char *call_log[MAX_LOG];
static unsigned call_count, correlation, stream_ids = 7; /* correlation 0 means that there is none */
static uint64_t virtual_ns = 1000, kernel_ns = 5000, now_ns, look_ns, latency_ns, mark_ns;
static int real_time; /* the clock of the streams is CLOCK_MONOTONIC */
static stream_t legacy[8]; /* by device */
static __thread stream_t per_thread;
static __thread int capture_mode; /* of the thread: 0 global, 1 thread-local, 2 relaxed */
static int capturing; /* streams that are captured in global mode */
static unsigned capture_breaks; /* calls that would have broken their capture */
static unsigned registers_per_thread = 32, static_shared;
static fake_cuda_observer observer;
static int order[MAX_DEVICES] = {0, 1, 2, 3, 4, 5, 6, 7};
static int stuck; /* kernels do not end, and waiting for them does not either */
static int tell_calls; /* the observer also hears of calls that are no device work */
static struct fake_cuda_event last_event;
static char last_name[256];
static unsigned launches;
static unsigned char last_arguments[512];
static unsigned char *pinned[MAX_PINNED];
static size_t pinned_size[MAX_PINNED];
static __thread context_t *stack[MAX_STACK];
static __thread int depth;

/* ---- control ---------------------------------------------------------------------------------------------------- */

static int find_name(const char *name) {
    for (int i = 0; i < function_names; i++)
        if (strcmp(function_table[i].name, name) == 0) return i;
    if (function_names == MAX_NAMES) abort();
    snprintf(function_table[function_names].kept, sizeof function_table[0].kept, "%s", name);
    function_table[function_names].name = function_table[function_names].kept;
    return function_names++;
}

void fake_cuda_fail(const char *name, int code) {
    pthread_mutex_lock(&lock);
    function_table[find_name(name)].code = code;
    pthread_mutex_unlock(&lock);
}

unsigned fake_cuda_calls(const char *name) {
    pthread_mutex_lock(&lock);
    unsigned calls = function_table[find_name(name)].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

unsigned fake_cuda_call_count(void) { return call_count; }
const char *fake_cuda_call(unsigned index) { return index < call_count && index < MAX_LOG ? call_log[index] : NULL; }
void fake_cuda_set_live(int value) { live = value; }
void fake_cuda_set_devices(int count) { device_count = count; }
void fake_cuda_set_version(int value) { version = value; }
void fake_cuda_set_name(int device, const char *name) { snprintf(device_name[device], 128, "%s", name); }
void fake_cuda_set_memory(int device, uint64_t bytes) { total_bytes[device] = bytes; }
void fake_cuda_set_attribute(int device, int number, int value) { attribute[device][number] = value; }
void fake_cuda_set_kernel_ns(uint64_t value) { kernel_ns = value; }
void fake_cuda_set_registers(unsigned registers, unsigned shared) { registers_per_thread = registers, static_shared = shared; }
void fake_cuda_set_observer(fake_cuda_observer value) { observer = value; }
static unsigned next_correlation(void) {
    unsigned next = __sync_add_and_fetch(&correlation, 1);
    return next ? next : __sync_add_and_fetch(&correlation, 1);
}

unsigned fake_cuda_count_call(void) { return next_correlation(); }
void fake_cuda_set_correlation(unsigned value) { correlation = value; }
void fake_cuda_set_stuck(int value) { stuck = value; }
void fake_cuda_tell_calls(int value) { tell_calls = value; }
void fake_cuda_set_now(uint64_t value) { now_ns = value; }
void fake_cuda_set_look(uint64_t value) { look_ns = value; } /* what a look at the clock takes */
void fake_cuda_real_time(void) { real_time = 1; }
void fake_cuda_set_latency(uint64_t value) { latency_ns = value; } /* from the call to where the stream is reached */
void fake_cuda_set_mark(uint64_t value) { mark_ns = value; } /* from work to an event behind it, and to work behind that */
unsigned fake_cuda_capture_breaks(void) { return capture_breaks; }
int fake_cuda_stack_depth(void) { return depth; }
int fake_cuda_retained(int device) { return primary[device].retained; }
uint64_t fake_cuda_used_bytes(int device) { return used_bytes[device]; }
unsigned fake_cuda_launches(void) { return launches; }
const char *fake_cuda_last_name(void) { return last_name; }
const struct fake_cuda_event *fake_cuda_last_event(void) { return &last_event; }
const unsigned char *fake_cuda_last_arguments(void) { return last_arguments; }

static void set_defaults(int device) {
    static const int numbers[][2] = {
        {1, 1024}, {8, 49152}, {10, 32}, {12, 65536}, {13, 1980000}, {16, 132}, {18, 0}, {33, 0x1b}, {34, 0}, {36, 2619000},
        {37, 5120}, {38, 52428800}, {39, 2048}, {50, 0}, {75, 9}, {76, 0}, {81, 233472}, {82, 65536}, {97, 232448},
        {106, 32}, {111, 1024},
    };
    for (int i = 0; i < MAX_ATTRIBUTE; i++) attribute[device][i] = -1;
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) attribute[device][numbers[i][0]] = numbers[i][1];
    attribute[device][33] += device;
    snprintf(device_name[device], 128, "NVIDIA H100 80GB HBM3");
    total_bytes[device] = 85 * 1000ull * 1000 * 1000;
    primary[device].device = device;
    primary[device].id = (unsigned)device + 1;
}

__attribute__((constructor)) static void configure(void) {
    const char *text;
    for (int device = 0; device < MAX_DEVICES; device++) set_defaults(device);
    if ((text = getenv("FAKE_CUDA_DEVICES"))) device_count = atoi(text);
    if ((text = getenv("FAKE_CUDA_CAPABILITY")))
        for (int device = 0; device < MAX_DEVICES; device++) attribute[device][75] = atoi(text);
    if ((text = getenv("FAKE_CUDA_ORDER")))
        for (device_count = 0; text[device_count] && device_count < MAX_DEVICES; device_count++)
            order[device_count] = text[device_count] - '0';
    if ((text = getenv("FAKE_CUDA_VERSION"))) version = atoi(text);
    if ((text = getenv("FAKE_CUDA_LIVE"))) live = atoi(text);
    if ((text = getenv("FAKE_CUDA_MIG"))) mig = atoi(text);
    if ((text = getenv("FAKE_CUDA_FAIL"))) {
        char copy[1024], *rest = copy, *part;
        snprintf(copy, sizeof copy, "%s", text);
        while ((part = strsep(&rest, ","))) {
            char *equals = strchr(part, '=');
            if (!equals) continue;
            *equals++ = 0;
            fake_cuda_fail(part, strcmp(equals, "abort") == 0 ? ABORT : atoi(equals));
        }
    }
}

/* ---- helpers ---------------------------------------------------------------------------------------------------- */

static int enter(const char *name) {
    pthread_mutex_lock(&lock);
    int index = find_name(name), code = function_table[index].code;
    function_table[index].calls++;
    if (call_count < MAX_LOG) call_log[call_count] = function_table[index].name;
    call_count++;
    pthread_mutex_unlock(&lock);
    if (code == ABORT) {
        fprintf(stderr, "fake libcuda: %s was called\n", name);
        abort();
    }
    return code;
}

#define ENTER(name) do { int code_ = enter(#name); if (code_) return code_; } while (0)
#define NEED(condition, code) do { if (!(condition)) return (code); } while (0)
#define ENTER_LIVE(name) do { ENTER(name); NEED(live, NOT_INITIALIZED); } while (0)
#define ENTER_CONTEXT(name) do { ENTER_LIVE(name); NEED(current(), INVALID_CONTEXT); } while (0)
#define DEVICE(number) NEED((number) >= 0 && (number) < device_count, INVALID_DEVICE)

static context_t *current(void) { return depth ? stack[depth - 1] : NULL; }

/* By the clock of the streams; 0: they have no times of their own. */
static uint64_t clock_ns(void) {
    struct timespec now;
    if (!real_time) return now_ns;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The clock of the streams, after a look at it: it goes on by that where it has been set. */
uint64_t fake_cuda_look(void) {
    now_ns += look_ns;
    return clock_ns();
}

int fake_cuda_clock_gettime(clockid_t id, struct timespec *time) {
    (void)id;
    uint64_t now = fake_cuda_look();
    time->tv_sec = now / 1000000000u, time->tv_nsec = now % 1000000000u;
    return 0;
}

/* The stream of a handle: 0 and 1 are the legacy one, 2 is that of the thread. */
static stream_t *stream_of(stream_t *handle) {
    if ((uintptr_t)handle == 2) return &per_thread;
    return (uintptr_t)handle > 2 ? handle : &legacy[current() ? current()->device : 0];
}

/* A call that must not be made while streams are captured. */
static void unsafe(void) {
    if (capturing && capture_mode != 2) __sync_add_and_fetch(&capture_breaks, 1);
}

void fake_cuda_work(stream_t *handle, uint64_t ns) {
    stream_t *stream = stream_of(handle);
    stream->busy_until = (stream->busy_until > clock_ns() ? stream->busy_until : clock_ns()) + ns;
}

void fake_cuda_set_capturing(stream_t *handle, int value) {
    capturing += value - stream_of(handle)->capturing;
    stream_of(handle)->capturing = value;
}

static header_t *header_of(uint64_t pointer) {
    header_t *header = (header_t *)(uintptr_t)(pointer - PADDING);
    return pointer && header->magic == MAGIC ? header : NULL;
}

static int is_pinned(const void *pointer) {
    for (int i = 0; i < MAX_PINNED; i++)
        if (pinned[i] && (const unsigned char *)pointer >= pinned[i] && (const unsigned char *)pointer < pinned[i] + pinned_size[i])
            return 1;
    return 0;
}

static uint64_t wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One piece of device work: moves the virtual clock, is remembered, and told to the observer. */
static void happened(struct fake_cuda_event event, const char *name, stream_t *stream, uint64_t duration) {
    pthread_mutex_lock(&lock);
    virtual_ns += duration;
    event.correlation = next_correlation(); /* calls that are no work count without the lock */
    event.device = (unsigned)current()->device;
    event.context = current()->id;
    event.stream = stream ? stream->id : 7;
    event.start_ns = wall_ns();
    event.end_ns = stuck && event.what == FAKE_KERNEL ? 0 : event.start_ns + duration;
    last_event = event;
    snprintf(last_name, sizeof last_name, "%s", name);
    pthread_mutex_unlock(&lock);
    if (observer) observer(event.what, name, event.correlation, &event);
}

static void copied(int what, uint64_t bytes, int host_pinned, stream_t *stream) {
    struct fake_cuda_event event = {.what = what, .bytes = bytes, .pinned = host_pinned};
    happened(event, "", stream, 1000 + bytes / 10);
}

/* One kernel on any device and stream, without the ceremony of a module. */
unsigned fake_cuda_launch(const char *name, unsigned device, unsigned stream, uint64_t duration) {
    struct fake_cuda_event event = {
        .what = FAKE_KERNEL, .device = device, .context = primary[device].id, .stream = stream, .grid = {1, 1, 1},
        .block = {32, 1, 1}, .registers = registers_per_thread,
    };
    event.correlation = next_correlation();
    event.start_ns = wall_ns();
    event.end_ns = event.start_ns + duration;
    if (observer) observer(event.what, name, event.correlation, &event);
    return event.correlation;
}

static volatile unsigned pace;

static void *paced(void *unused) {
    static const char *const names[] = {"gemm_128x128", "elementwise_add", "layer_norm_fwd", "softmax_bwd", "fill"};
    const struct timespec millisecond = {0, 1000000};
    uint64_t begun = wall_ns(), done = 0;
    (void)unused;
    while (pace) {
        for (uint64_t due = (wall_ns() - begun) * pace / 1000000000; done < due; done++)
            fake_cuda_launch(names[done / 3 % 5], 0, 7, 3000 + done % 41 * 50);
        nanosleep(&millisecond, NULL);
    }
    return NULL;
}

/* A thread of its own that launches so many kernels a second, until told 0. */
void fake_cuda_pace(unsigned per_second) {
    pthread_t thread;
    int running = pace != 0;
    pace = per_second;
    if (per_second && !running && pthread_create(&thread, NULL, paced, NULL) == 0) pthread_detach(thread);
}

/* ---- device facts ----------------------------------------------------------------------------------------------- */

/* As the driver does once in a process, before CUDA is live. */
static void inject(void) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (begin) begin();
}

int cuInit(unsigned flags) {
    static pthread_mutex_t initialising = PTHREAD_MUTEX_INITIALIZER;
    static int injected;
    ENTER(cuInit);
    NEED(flags == 0, INVALID_VALUE);
    NEED(device_count > 0, NO_DEVICE);
    pthread_mutex_lock(&initialising);
    if (!live && !injected) {
        injected = 1;
        inject();
    }
    live = 1;
    pthread_mutex_unlock(&initialising);
    return OK;
}

int cuDriverGetVersion(int *value) {
    ENTER(cuDriverGetVersion);
    *value = version;
    if (observer && tell_calls) {
        struct fake_cuda_event event = {.what = FAKE_CALL, .value = 2, .correlation = next_correlation()};
        event.start_ns = event.end_ns = wall_ns();
        observer(FAKE_CALL, "cuDriverGetVersion", event.correlation, &event);
    }
    return OK;
}

int cuDeviceGetCount(int *count) {
    ENTER_LIVE(cuDeviceGetCount);
    *count = device_count;
    return OK;
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER_LIVE(cuDeviceGet);
    DEVICE(ordinal);
    *device = ordinal;
    return OK;
}

int cuDeviceGetName(char *name, int length, int device) {
    ENTER_LIVE(cuDeviceGetName);
    DEVICE(device);
    snprintf(name, (size_t)length, "%s", device_name[device]);
    return OK;
}

static void uuid(unsigned char *bytes, int device, int first) {
    for (int i = 0; i < 15; i++) bytes[i] = (unsigned char)(first + i);
    bytes[15] = (unsigned char)device;
}

int cuDeviceGetUuid(unsigned char *bytes, int device) {
    ENTER_LIVE(cuDeviceGetUuid);
    DEVICE(device);
    uuid(bytes, order[device], 0);
    return OK;
}

#ifndef WITHOUT_LATER
int cuDeviceGetUuid_v2(unsigned char *bytes, int device) {
    ENTER_LIVE(cuDeviceGetUuid_v2);
    DEVICE(device);
    uuid(bytes, order[device], mig ? 0xa0 : 0);
    return OK;
}
#endif

int cuDeviceGetPCIBusId(char *text, int length, int device) {
    ENTER_LIVE(cuDeviceGetPCIBusId);
    DEVICE(device);
    snprintf(text, (size_t)length, "%04X:%02X:%02X.0", attribute[device][50], attribute[order[device]][33],
             attribute[device][34]);
    return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER_LIVE(cuDeviceTotalMem_v2);
    DEVICE(device);
    *bytes = total_bytes[device];
    return OK;
}

int cuDeviceGetAttribute(int *value, int number, int device) {
    ENTER_LIVE(cuDeviceGetAttribute);
    DEVICE(device);
    NEED(number > 0 && number < MAX_ATTRIBUTE && attribute[device][number] >= 0, INVALID_VALUE);
    *value = attribute[device][number];
    return OK;
}

static const struct { int code; const char *name, *text; } errors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
};

int cuGetErrorName(int code, const char **name) {
    ENTER(cuGetErrorName);
    *name = NULL;
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *name = errors[i].name;
    return *name ? OK : INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text) {
    ENTER(cuGetErrorString);
    *text = NULL;
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *text = errors[i].text;
    return *text ? OK : INVALID_VALUE;
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */

int cuDevicePrimaryCtxRetain(context_t **context, int device) {
    ENTER_LIVE(cuDevicePrimaryCtxRetain);
    DEVICE(device);
    pthread_mutex_lock(&lock);
    primary[device].retained++;
    pthread_mutex_unlock(&lock);
    *context = &primary[device];
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER_LIVE(cuDevicePrimaryCtxRelease_v2);
    DEVICE(device);
    pthread_mutex_lock(&lock);
    int code = primary[device].retained > 0 ? OK : INVALID_CONTEXT;
    if (code == OK) primary[device].retained--;
    pthread_mutex_unlock(&lock);
    return code;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER_LIVE(cuDevicePrimaryCtxGetState);
    DEVICE(device);
    *flags = 0;
    *active = primary[device].retained > 0;
    return OK;
}

int cuCtxGetCurrent(context_t **context) {
    ENTER_LIVE(cuCtxGetCurrent);
    *context = current();
    return OK;
}

int cuCtxPushCurrent_v2(context_t *context) {
    ENTER_LIVE(cuCtxPushCurrent_v2);
    NEED(context && context->retained > 0, INVALID_CONTEXT);
    NEED(depth < MAX_STACK, OUT_OF_MEMORY);
    stack[depth++] = context;
    return OK;
}

int cuCtxPopCurrent_v2(context_t **context) {
    ENTER_CONTEXT(cuCtxPopCurrent_v2);
    context_t *top = stack[--depth];
    if (context) *context = top;
    return OK;
}

#ifndef WITHOUT_LATER
int cuCtxGetId(context_t *context, unsigned long long *id) {
    ENTER(cuCtxGetId);
    *id = (context ? context : current())->id;
    return OK;
}
#endif

/* As after cudaDeviceReset and the next call: the same handle, and nothing that was made in it before. */
void fake_cuda_reset_device(int device) {
    primary[device].id += 100;
    legacy[device] = (stream_t){0};
}

int cuCtxGetDevice(int *device) {
    ENTER_CONTEXT(cuCtxGetDevice);
    *device = current()->device;
    return OK;
}

int cuCtxSynchronize(void) {
    ENTER_CONTEXT(cuCtxSynchronize);
    while (stuck) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return OK;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER_LIVE(cuThreadExchangeStreamCaptureMode);
    NEED(*mode >= 0 && *mode <= 2, INVALID_VALUE);
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER_CONTEXT(cuMemGetInfo_v2);
    int device = current()->device;
    *total = total_bytes[device];
    *free_bytes = total_bytes[device] - used_bytes[device];
    return OK;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    ENTER_CONTEXT(cuMemAlloc_v2);
    NEED(bytes > 0, INVALID_VALUE);
    int device = current()->device;
    NEED(bytes <= total_bytes[device] - used_bytes[device], OUT_OF_MEMORY);
    unsigned char *memory = calloc(1, bytes + PADDING);
    NEED(memory, OUT_OF_MEMORY);
    *(header_t *)memory = (header_t){bytes, device, MAGIC};
    pthread_mutex_lock(&lock);
    used_bytes[device] += bytes;
    pthread_mutex_unlock(&lock);
    *pointer = (uint64_t)(uintptr_t)(memory + PADDING);
    return OK;
}

int cuMemFree_v2(uint64_t pointer) {
    ENTER_CONTEXT(cuMemFree_v2);
    header_t *header = header_of(pointer);
    NEED(header, INVALID_VALUE);
    pthread_mutex_lock(&lock);
    used_bytes[header->device] -= header->size;
    pthread_mutex_unlock(&lock);
    header->magic = 0;
    free(header);
    return OK;
}

int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER_CONTEXT(cuMemHostAlloc);
    (void)flags;
    NEED(bytes > 0, INVALID_VALUE);
    for (int i = 0; i < MAX_PINNED; i++)
        if (!pinned[i]) {
            *pointer = pinned[i] = calloc(1, bytes);
            if (!pinned[i]) return OUT_OF_MEMORY;
            pinned_size[i] = bytes;
            return OK;
        }
    return OUT_OF_MEMORY;
}

int cuMemFreeHost(void *pointer) {
    ENTER_CONTEXT(cuMemFreeHost);
    for (int i = 0; i < MAX_PINNED; i++)
        if (pinned[i] && pinned[i] == pointer) {
            free(pointer);
            pinned[i] = NULL;
            return OK;
        }
    return INVALID_VALUE;
}

static int to_device(uint64_t target, const void *source, size_t bytes, stream_t *stream) {
    memcpy((void *)(uintptr_t)target, source, bytes);
    copied(FAKE_HTOD, bytes, is_pinned(source), stream);
    return OK;
}

static int to_host(void *target, uint64_t source, size_t bytes, stream_t *stream) {
    memcpy(target, (void *)(uintptr_t)source, bytes);
    copied(FAKE_DTOH, bytes, is_pinned(target), stream);
    return OK;
}

static int on_device(uint64_t target, uint64_t source, size_t bytes, stream_t *stream) {
    memmove((void *)(uintptr_t)target, (void *)(uintptr_t)source, bytes);
    copied(FAKE_DTOD, bytes, 0, stream);
    return OK;
}

static int set_bytes(uint64_t target, unsigned char value, size_t count, stream_t *stream) {
    memset((void *)(uintptr_t)target, value, count);
    struct fake_cuda_event event = {.what = FAKE_MEMSET, .bytes = count, .value = value};
    happened(event, "", stream, 1000);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t bytes) {
    ENTER_CONTEXT(cuMemcpyHtoD_v2);
    return to_device(target, source, bytes, NULL);
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes) {
    ENTER_CONTEXT(cuMemcpyDtoH_v2);
    return to_host(target, source, bytes, NULL);
}

int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t bytes) {
    ENTER_CONTEXT(cuMemcpyDtoD_v2);
    return on_device(target, source, bytes, NULL);
}

int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, stream_t *stream) {
    ENTER(cuMemsetD32Async);
    (void)address, (void)count;
    struct fake_cuda_event event = {.what = FAKE_MEMSET, .value = value, .bytes = 4 * count};
    event.context = stream->context->id, event.device = (unsigned)stream->context->device, event.stream = stream->id;
    event.correlation = next_correlation();
    event.start_ns = wall_ns(), event.end_ns = event.start_ns + 1000;
    if (observer && tell_calls) observer(FAKE_MEMSET, "", event.correlation, &event);
    return OK;
}

int cuMemsetD8_v2(uint64_t target, unsigned char value, size_t count) {
    ENTER_CONTEXT(cuMemsetD8_v2);
    return set_bytes(target, value, count, NULL);
}

int cuMemsetD8Async(uint64_t target, unsigned char value, size_t count, stream_t *stream) {
    ENTER_CONTEXT(cuMemsetD8Async);
    return set_bytes(target, value, count, stream);
}

/* ---- modules: as much of PTX as names its entries and their parameters -------------------------------------------- */

static size_t size_of_type(const char *type) {
    static const struct { const char *name; size_t size; } sizes[] = {
        {".b8", 1}, {".u8", 1}, {".s8", 1}, {".b16", 2}, {".u16", 2}, {".s16", 2}, {".b32", 4}, {".u32", 4},
        {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8},
    };
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strncmp(type, sizes[i].name, strlen(sizes[i].name)) == 0) return sizes[i].size;
    return 0;
}

static void parse_entry(function_t *function, const char *text) {
    const char *end = strchr(text, ')'), *param = text;
    sscanf(text, " %255[A-Za-z0-9_$]", function->name);
    while (end && (param = strstr(param, ".param")) && param < end && function->params < 32) {
        param += strlen(".param");
        function->size[function->params++] = size_of_type(param + strspn(param, " \t\n"));
    }
}

static int refuse(const char *why, unsigned count, const int *options, void **values) {
    char *log = NULL;
    size_t room = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == 5) log = values[i];
        if (options[i] == 6) room = (size_t)(uintptr_t)values[i];
    }
    if (log && room) snprintf(log, room, "%s", why);
    return INVALID_PTX;
}

int cuModuleLoadDataEx(module_t **module, const char *image, unsigned count, int *options, void **values) {
    ENTER_CONTEXT(cuModuleLoadDataEx);
    if (!strstr(image, ".version"))
        return refuse("ptxas application ptx input, line 1; fatal   : Missing .version directive", count, options, values);
    module_t *made = calloc(1, sizeof *made);
    NEED(made, OUT_OF_MEMORY);
    for (const char *at = image; (at = strstr(at, ".entry")) && made->functions < 32;) {
        at += strlen(".entry");
        parse_entry(&made->function[made->functions++], at);
    }
    *module = made;
    return OK;
}

int cuModuleUnload(module_t *module) {
    ENTER_CONTEXT(cuModuleUnload);
    NEED(module, INVALID_HANDLE);
    free(module);
    return OK;
}

int cuModuleGetFunction(function_t **function, module_t *module, const char *name) {
    ENTER_CONTEXT(cuModuleGetFunction);
    NEED(module, INVALID_HANDLE);
    for (int i = 0; i < module->functions; i++)
        if (strcmp(module->function[i].name, name) == 0) {
            *function = &module->function[i];
            return OK;
        }
    return NOT_FOUND;
}

int cuFuncGetAttribute(int *value, int number, function_t *function) {
    ENTER_LIVE(cuFuncGetAttribute);
    NEED(function, INVALID_HANDLE);
    const int values[10] = {1024, (int)static_shared, 0, 0, (int)registers_per_thread, 50, 90, 0, 49152, -1};
    NEED(number >= 0 && number < 10, INVALID_VALUE);
    *value = values[number];
    return OK;
}

int cuFuncSetAttribute(function_t *function, int number, int value) {
    ENTER_LIVE(cuFuncSetAttribute);
    NEED(function && number == 8, INVALID_VALUE);
    NEED(value >= 0 && value <= attribute[0][97], INVALID_VALUE);
    return OK;
}

int cuLaunchKernel(function_t *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, stream_t *stream, void **arguments, void **extra) {
    ENTER_CONTEXT(cuLaunchKernel);
    NEED(function && !extra, INVALID_HANDLE);
    NEED(gx && gy && gz && bx && by && bz && (uint64_t)bx * by * bz <= 1024, INVALID_VALUE);
    for (int i = 0, at = 0; i < function->params; at += 8, i++) memcpy(last_arguments + at, arguments[i], function->size[i]);
    launches++;
    struct fake_cuda_event event = {
        .what = FAKE_KERNEL, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .static_shared = static_shared,
        .dynamic_shared = shared, .registers = registers_per_thread,
    };
    happened(event, function->name, stream, kernel_ns);
    return OK;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, function_t *function, int threads, size_t shared) {
    ENTER_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    NEED(function && threads > 0, INVALID_VALUE);
    int warps = (threads + 31) / 32, by_warps = attribute[0][39] / 32 / warps;
    int by_shared = shared ? (int)((size_t)attribute[0][81] / (shared + 1024)) : by_warps;
    *blocks = by_warps < by_shared ? by_warps : by_shared;
    return OK;
}

/* ---- streams and events ----------------------------------------------------------------------------------------- */

int cuStreamCreate(stream_t **stream, unsigned flags) {
    ENTER_CONTEXT(cuStreamCreate);
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    NEED(*stream, OUT_OF_MEMORY);
    (*stream)->context = current();
    (*stream)->id = ++stream_ids;
    return OK;
}

int cuStreamDestroy_v2(stream_t *stream) {
    ENTER_CONTEXT(cuStreamDestroy_v2);
    NEED(stream, INVALID_HANDLE);
    free(stream);
    return OK;
}

int cuStreamQuery(stream_t *stream) {
    ENTER(cuStreamQuery);
    unsafe();
    return stream_of(stream)->busy_until > clock_ns() ? NOT_READY : OK;
}

int cuStreamIsCapturing(stream_t *stream, int *state) {
    ENTER_CONTEXT(cuStreamIsCapturing);
    *state = stream_of(stream)->capturing;
    return !*state && (uintptr_t)stream < 2 && capturing ? IMPLICIT : OK;
}

int cuStreamWaitEvent(stream_t *stream, event_t *event, unsigned flags) {
    ENTER_CONTEXT(cuStreamWaitEvent);
    NEED(event && event->recorded && !flags, INVALID_HANDLE);
    stream_t *on = stream_of(stream);
    if (clock_ns() && on->busy_until < event->time_ns) on->busy_until = event->time_ns;
    return OK;
}

int cuStreamSynchronize(stream_t *stream) {
    ENTER_CONTEXT(cuStreamSynchronize);
    (void)stream;
    return OK;
}

int cuEventCreate(event_t **event, unsigned flags) {
    ENTER_CONTEXT(cuEventCreate);
    (void)flags;
    *event = calloc(1, sizeof **event);
    NEED(*event, OUT_OF_MEMORY);
    (*event)->context = current()->id;
    return OK;
}

int cuEventRecord(event_t *event, stream_t *stream) {
    ENTER_CONTEXT(cuEventRecord);
    NEED(event && event->context == current()->id, INVALID_HANDLE);
    stream_t *on = stream_of(stream);
    if (on->capturing || ((uintptr_t)stream < 2 && capturing)) __sync_add_and_fetch(&capture_breaks, 1);
    uint64_t now = clock_ns();
    event->time_ns = virtual_ns;
    if (now && on->busy_until + mark_ns > now + latency_ns) {
        event->time_ns = on->busy_until + mark_ns;
        on->busy_until = event->time_ns + mark_ns;
    } else if (now) {
        event->time_ns = now + latency_ns;
    }
    event->recorded = 1;
    return OK;
}

int cuEventQuery(event_t *event) {
    ENTER_CONTEXT(cuEventQuery);
    NEED(event && event->context == current()->id, INVALID_HANDLE);
    unsafe();
    return clock_ns() && event->recorded && event->time_ns > clock_ns() ? NOT_READY : OK;
}

int cuEventSynchronize(event_t *event) {
    ENTER_CONTEXT(cuEventSynchronize);
    NEED(event, INVALID_HANDLE);
    return OK;
}

int cuEventElapsedTime(float *milliseconds, event_t *start, event_t *end) {
    ENTER_CONTEXT(cuEventElapsedTime);
    NEED(start && end && start->recorded && end->recorded, INVALID_HANDLE);
    NEED(!clock_ns() || (start->time_ns <= clock_ns() && end->time_ns <= clock_ns()), NOT_READY);
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return OK;
}

int cuEventDestroy_v2(event_t *event) {
    ENTER_CONTEXT(cuEventDestroy_v2);
    NEED(event, INVALID_HANDLE);
    free(event);
    return OK;
}
