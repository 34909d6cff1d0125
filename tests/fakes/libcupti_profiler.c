/* CUPTI's profiler for one scripted device: sets of metrics and PM sampling, with NVIDIA's structures and no counters.
 *
 * By the environment, in the whole process, or with FAKE_PM_IN=child or =parent only in a child that tries the sampler:
 *   FAKE_PM_REFUSE=function:code,…     the function answers so
 *   FAKE_PM_CRASH=function             the process dies in it by SIGSEGV
 *   FAKE_PM_HANG=function              it never returns
 *   FAKE_PM_AFTER=n                    these three only from the n-th call on
 *   FAKE_PM_OFFSET=ns                  the sampler's clock is so far behind CLOCK_MONOTONIC
 *   FAKE_PM_LATENCY=ns                 from the end of a sample until it can be read
 *   FAKE_PM_HARDWARE=n                 samples that wait to be read; what comes beyond is lost
 *   FAKE_PM_SILENT=1                   there are no samples any more, until the device is disabled and enabled
 *   FAKE_PM_MOST=n                     metrics that fit one pass
 *   FAKE_PM_CHIP=name, FAKE_PM_SPIN=ns that evaluating a sample takes
 * Every metric whose name holds "nothing" is unknown. Of sample n (from 0), metric m: see value().
 */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEAD size_t size; void *private
#define MAX_METRICS 32
struct host { int count; char names[MAX_METRICS][96]; };
struct row { uint64_t start, end, number; };
struct image { uint32_t magic, most; uint64_t count; struct row rows[]; };
struct sampler { int used, running, configured, silent; uint64_t interval, began, next; int overflow; };

static struct sampler samplers[8];
static int initialized;
static struct { const char *name; unsigned count; } calls[64];

static uint64_t number(const char *name, uint64_t usual) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : usual;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int here(void) {
    const char *where = getenv("FAKE_PM_IN"), *off = getenv("GPUSENSE");
    int child = off && strcmp(off, "off") == 0;
    return !where || (strcmp(where, "child") == 0) == child;
}

static int named(const char *list, const char *name, int *code) {
    size_t length = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ':' || at[length] == ',' || !at[length])) {
            if (at[length] == ':') *code = atoi(at + length + 1);
            return 1;
        }
    return 0;
}

static int called(const char *name) {
    unsigned place = 0, count;
    int code = 0;
    while (place < 63 && calls[place].name && strcmp(calls[place].name, name)) place++;
    calls[place].name = name;
    count = ++calls[place].count;
    if (!here() || count < number("FAKE_PM_AFTER", 1)) return 0;
    if (named(getenv("FAKE_PM_CRASH"), name, &code)) raise(SIGSEGV);
    while (named(getenv("FAKE_PM_HANG"), name, &code)) usleep(10000); // until the test takes it back
    named(getenv("FAKE_PM_REFUSE"), name, &code);
    return code;
}

unsigned fake_profiler_calls(const char *name) {
    for (unsigned place = 0; place < 64 && calls[place].name; place++)
        if (strcmp(calls[place].name, name) == 0) return calls[place].count;
    return 0;
}

#define CALL(name, ...) \
    struct name##_parameters { HEAD; __VA_ARGS__ }; \
    int name(struct name##_parameters *p); \
    static int name##_does(struct name##_parameters *p); \
    int name(struct name##_parameters *p) { \
        int code = called(#name); \
        if (code) return code; \
        if (!p || p->size < 16 || p->size > sizeof *p || p->private) return 10; \
        return name##_does(p); \
    } \
    static int name##_does(struct name##_parameters *p)

CALL(cuptiProfilerInitialize, ) { (void)p; initialized++; return 0; }
CALL(cuptiDeviceGetChipName, size_t device; const char *chip;) {
    if (p->device >= 8) return 2;
    p->chip = getenv("FAKE_PM_CHIP") ? getenv("FAKE_PM_CHIP") : "GH100";
    if (fake_profiler_calls("cuptiDeviceGetChipName") <= number("FAKE_PM_UNKNOWN", 0)) p->chip = "Unknown";
    return 0;
}
CALL(cuptiProfilerHostGetSupportedChips, size_t count; const char *const *chips;) {
    static const char *const chips[] = {"GH100"};
    p->count = 1, p->chips = chips;
    return 0;
}
CALL(cuptiProfilerHostInitialize, int type; const char *chip; const uint8_t *availability; struct host *host;) {
    if (strncmp(p->chip, "GX", 2) == 0) return 46;
    p->host = calloc(1, sizeof *p->host);
    return 0;
}
CALL(cuptiProfilerHostDeinitialize, struct host *host;) { free(p->host); return 0; }
CALL(cuptiProfilerHostConfigAddMetrics, struct host *host; const char **names; size_t count;) {
    for (size_t i = 0; i < p->count; i++) {
        if (strstr(p->names[i], "nothing") || p->host->count == MAX_METRICS) return 1;
        snprintf(p->host->names[p->host->count++], 96, "%s", p->names[i]);
    }
    return 0;
}
CALL(cuptiProfilerHostGetConfigImageSize, struct host *host; size_t bytes;) { p->bytes = 64; return 0; }
CALL(cuptiProfilerHostGetConfigImage, struct host *host; size_t bytes; uint8_t *image;) {
    memset(p->image, 0, p->bytes);
    p->image[0] = (uint8_t)p->host->count;
    for (int i = 0; i < p->host->count; i++) /* which they are */
        for (const char *at = p->host->names[i]; *at; at++) p->image[1] = (uint8_t)(p->image[1] * 31 + *at);
    return 0;
}
CALL(cuptiProfilerHostGetNumOfPasses, size_t bytes; uint8_t *image; size_t passes;) {
    p->passes = 1 + (p->image[0] > number("FAKE_PM_MOST", MAX_METRICS));
    return 0;
}
CALL(cuptiPmSamplingGetCounterAvailability, size_t device; size_t bytes; uint8_t *image;) {
    p->bytes = 32;
    if (p->image) memset(p->image, 1, 32);
    return initialized ? 0 : 15;
}
CALL(cuptiPmSamplingEnable, size_t device; struct sampler *sampler;) {
    if (!initialized) return 15;
    if (samplers[p->device].used) return 26;
    p->sampler = &samplers[p->device];
    memset(p->sampler, 0, sizeof *p->sampler);
    p->sampler->used = 1;
    return 0;
}
CALL(cuptiPmSamplingDisable, struct sampler *sampler;) { p->sampler->used = p->sampler->running = 0; return 0; }
CALL(cuptiPmSamplingSetConfig, struct sampler *sampler; size_t size_of; const uint8_t *config; size_t hardware;
     uint64_t interval; int trigger; int mode;) {
    if (p->sampler->running || p->config[0] == 0) return 7;
    p->sampler->interval = p->interval, p->sampler->configured = 1;
    return 0;
}
CALL(cuptiPmSamplingStart, struct sampler *sampler;) {
    struct sampler *s = p->sampler;
    if (!s->configured || s->running) return 7;
    s->running = 1, s->began = now() - number("FAKE_PM_OFFSET", 0), s->next = 0, s->overflow = 0;
    return 0;
}
CALL(cuptiPmSamplingStop, struct sampler *sampler;) { p->sampler->running = 0; return 0; }
CALL(cuptiPmSamplingGetCounterDataSize, struct sampler *sampler; const char **names; size_t count; uint32_t most;
     size_t bytes;) {
    p->bytes = sizeof(struct image) + sizeof(struct row) * p->most;
    return 0;
}
CALL(cuptiPmSamplingCounterDataImageInitialize, struct sampler *sampler; size_t bytes; struct image *image;) {
    p->image->magic = 0x1a6e, p->image->count = 0;
    p->image->most = (uint32_t)((p->bytes - sizeof(struct image)) / sizeof(struct row));
    return 0;
}
CALL(cuptiPmSamplingDecodeData, struct sampler *sampler; struct image *image; size_t bytes; int reason; uint8_t overflow;) {
    struct sampler *s = p->sampler;
    uint64_t clock = now() - number("FAKE_PM_OFFSET", 0) - number("FAKE_PM_LATENCY", 0);
    uint64_t there = clock > s->began ? (clock - s->began) / s->interval : 0;
    uint64_t most = number("FAKE_PM_HARDWARE", 1 << 20);
    if (p->image->magic != 0x1a6e) return 1;
    if (number("FAKE_PM_SILENT", 0)) s->silent = 1;
    if (s->silent) s->next = there;
    if (!s->running) there = s->next;
    if (there > s->next + most) s->overflow = 1, s->next = there;
    p->overflow = (uint8_t)s->overflow, p->reason = 2;
    while (s->next < there) {
        if (p->image->count == p->image->most) { p->reason = 1, s->next = there; break; } /* the rest is lost */
        struct row *row = &p->image->rows[p->image->count++];
        row->number = s->next++;
        row->start = s->began + row->number * s->interval, row->end = row->start + s->interval;
        if (row->number == 0) row->start -= 2300000000u; /* as the first one of a session */
    }
    return 0;
}
CALL(cuptiPmSamplingGetCounterDataInfo, const struct image *image; size_t bytes; size_t total; size_t populated;
     size_t completed;) {
    p->total = p->image->most, p->populated = p->completed = p->image->count;
    return 0;
}
CALL(cuptiPmSamplingCounterDataGetSampleInfo, struct sampler *sampler; const struct image *image; size_t bytes;
     size_t index; uint64_t start; uint64_t end;) {
    if (p->index >= p->image->count) return 1;
    p->start = p->image->rows[p->index].start, p->end = p->image->rows[p->index].end;
    return 0;
}

#include "range_profiler.h"

static double value(const char *name, uint64_t sample) {
    double amount;
    if (by_script(name, &amount)) return amount;
    if (strstr(name, "sm__cycles_active")) return 80;
    if (strstr(name, "tensor")) return (double)(sample % 100);
    if (strstr(name, "dram__bytes_read")) return 3e6;
    if (strstr(name, "dram__bytes_write")) return 1e6;
    if (strstr(name, "dispatch")) return 2;
    if (strstr(name, "per_second")) return 1.98e9;
    if (strstr(name, "nvl")) return 0.0 / 0.0;
    return 1;
}
CALL(cuptiProfilerHostEvaluateToGpuValues, struct host *host; const struct image *image; size_t bytes; size_t index;
     const char **names; size_t count; double *values;) {
    uint64_t until = number("FAKE_PM_SPIN", 0);
    if (p->index >= p->image->count) return 1;
    if (until) for (until += now(); now() < until;) {}
    for (size_t i = 0; i < p->count; i++) {
        p->values[i] = value(p->names[i], p->image->rows[p->index].number);
        if (p->image->rows[p->index].end == OF_ANOTHER_SET && !strstr(p->names[i], "time_duration"))
            p->values[i] = 0.0 / 0.0;
    }
    return 0;
}

/* The library that evaluates, as libnvperf_host.so beside it. FAKE_NVPERF_WRONG=1: other values than CUPTI's. */
CALL(NVPW_InitializeHost, ) { (void)p; return 0; }
CALL(NVPW_Device_MetricsEvaluator_CalculateScratchBufferSize, const char *chip; size_t bytes;) {
    p->bytes = 128;
    return strncmp(p->chip, "GX", 2) == 0;
}
CALL(NVPW_Device_MetricsEvaluator_Initialize, uint8_t *scratch; size_t scratch_bytes; const char *chip;
     const uint8_t *image; size_t bytes; void *evaluator;) {
    p->evaluator = p->scratch;
    return 0;
}
struct request { const char *name; uint8_t type, rollup; uint16_t submetric; };
CALL(NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest, void *evaluator; const char *name;
     struct request *request; size_t bytes;) {
    if (p->bytes != 12) return 1;
    p->request->name = strdup(p->name);
    return 0;
}
static const void *attributes;
CALL(NVPW_MetricsEvaluator_SetDeviceAttributes, void *evaluator; const void *image; size_t bytes;) {
    attributes = p->image;
    return 0;
}
CALL(NVPW_MetricsEvaluator_EvaluateToGpuValues, void *evaluator; const struct request *requests; size_t count;
     size_t request_bytes; size_t stride; const struct image *image; size_t bytes; size_t index; uint8_t isolated;
     double *values;) {
    if (p->stride != sizeof *p->requests || attributes != p->image || p->index >= p->image->count) return 1;
    for (size_t i = 0; i < p->count; i++)
        p->values[i] = value(p->requests[i].name, p->image->rows[p->index].number) + number("FAKE_NVPERF_WRONG", 0);
    return 0;
}
