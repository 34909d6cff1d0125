/* A scripted libnvidia-ml for tests: any function may answer any code, from any call on, slowly or never.

   Tests in the same process use the fake_* functions; tests in a child set FAKE_NVML, a list of commands separated by
   spaces: devices=2  code=FUNCTION:DEVICE:AFTER:CODE  value=FUNCTION:DEVICE:VALUE  slow=FUNCTION:MILLISECONDS
   DEVICE -1 means every device; AFTER counts calls that still succeed; FUNCTION may carry an argument: "field/186".
   A NULL or foreign handle ends the process (abort).
*/
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { int index; } device;
typedef struct { char name[64]; int device; long after; u64 value; } rule;

#define MOST 4096
static rule codes[MOST], values[MOST], delays[MOST], counts[MOST];
static int n_codes, n_values, n_delays, n_counts;
static device devices[32], migs[32][8];
static int n_devices = 1, references, flags_seen = -1, waited_ms;
static char names[32][96], uuids[32][96];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static rule *find(rule *rules, int n, const char *name, int device_) {
    for (int i = n - 1; i >= 0; i--)
        if (!strcmp(rules[i].name, name) && (rules[i].device == device_ || rules[i].device == -1)) return &rules[i];
    return NULL;
}
static void add(rule *rules, int *n, const char *name, int device_, long after, u64 value) {
    if (*n == MOST) abort();
    rule *r = &rules[(*n)++];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->device = device_; r->after = after; r->value = value;
}

void fake_code(const char *name, int device_, long after, int code) { add(codes, &n_codes, name, device_, after, (u64)code); }
/* Replaces the last rule of that name where it is for the same device: a script may change a value for hours. */
void fake_value(const char *name, int device_, u64 value) {
    rule *last = NULL;
    for (int i = 0; i < n_values; i++)
        if (!strcmp(values[i].name, name) && (values[i].device == device_ || values[i].device == -1 || device_ == -1)) last = &values[i];
    if (last && last->device == device_) last->value = value;
    else add(values, &n_values, name, device_, 0, value);
}
void fake_slow(const char *name, int ms) { add(delays, &n_delays, name, -1, 0, (u64)ms); }
void fake_devices(int n) { n_devices = n; }
void fake_name(int device_, const char *raw, int n) { memset(names[device_], 'x', 96); memcpy(names[device_], raw, (size_t)n); }
void fake_uuid(int device_, const char *text) { snprintf(uuids[device_], 96, "%s", text); }
long fake_calls(const char *name) { rule *r = find(counts, n_counts, name, -1); return r ? r->after : 0; }
long fake_all_calls(void) { long sum = 0; for (int i = 0; i < n_counts; i++) sum += counts[i].after; return sum; }
int fake_references(void) { return references; }
int fake_flags(void) { return flags_seen; }
int fake_waited_ms(void) { return waited_ms; }
void fake_reset(void) {
    n_codes = n_values = n_delays = n_counts = references = 0;
    n_devices = 1; flags_seen = -1;
    for (int i = 0; i < 32; i++) {
        memset(names[i], 0, 96); strcpy(names[i], "NVIDIA H100 80GB HBM3");
        snprintf(uuids[i], 96, "GPU-%08x-1111-2222-3333-444444444444", 0xab000000u + (u32)i);
        devices[i].index = i;
        for (int k = 0; k < 8; k++) migs[i][k].index = i * 8 + k;
    }
}

__attribute__((constructor)) static void load(void) {
    fake_reset();
    const char *script = getenv("FAKE_NVML");
    char *copy = script ? strdup(script) : NULL, *save = NULL, name[64];
    for (char *word = copy ? strtok_r(copy, " ", &save) : NULL; word; word = strtok_r(NULL, " ", &save)) {
        int d; long after; u64 value;
        if (sscanf(word, "devices=%d", &d) == 1) n_devices = d;
        else if (sscanf(word, "code=%63[^:]:%d:%ld:%llu", name, &d, &after, &value) == 4) fake_code(name, d, after, (int)value);
        else if (sscanf(word, "value=%63[^:]:%d:%llu", name, &d, &value) == 3) fake_value(name, d, value);
        else if (sscanf(word, "slow=%63[^:]:%d", name, &d) == 2) fake_slow(name, d);
        else { fprintf(stderr, "FAKE_NVML: %s\n", word); abort(); }
    }
    free(copy);
}

/* Counts the call, waits if told to, and gives the code to answer with. */
static int enter(const char *name, int device_) {
    pthread_mutex_lock(&lock);
    rule *count = find(counts, n_counts, name, -1);
    if (!count) { add(counts, &n_counts, name, -1, 0, 0); count = &counts[n_counts - 1]; }
    count->after++;
    rule *delay = find(delays, n_delays, name, -1), *code = find(codes, n_codes, name, device_);
    int answer = 0;
    if (code && code->after-- <= 0) { code->after = 0; answer = (int)code->value; }
    u64 ms = delay ? delay->value : 0;
    pthread_mutex_unlock(&lock);
    if (ms) { struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}; nanosleep(&t, NULL); }
    return answer;
}
static u64 value(const char *name, int device_, u64 otherwise) {
    rule *r = find(values, n_values, name, device_);
    return r ? r->value : otherwise;
}
static int index_of(device *d) {
    if (d >= devices && d < devices + 32) return d->index;
    if (d >= &migs[0][0] && d < &migs[32][0]) return 100 + d->index;
    fprintf(stderr, "a handle that NVML never gave: %p\n", (void *)d);
    abort();
}
static int ask(const char *name, device *d) {
    int i = index_of(d);
    if (!references) { enter(name, i); return 1; }
    int all = find(codes, n_codes, "*", i) ? enter("*", i) : 0;
    int code = enter(name, i);
    return code ? code : all;
}
#define ASK(name) int code_ = ask(name, d); if (code_) return code_; int i = index_of(d); (void)i
#define U32(name, type_, otherwise) int name(device *d, type_ *out) { ASK(#name); *out = (type_)value(#name, i, otherwise); return 0; }
#define U32_ARG(name, otherwise) int name(device *d, u32 arg, u32 *out) { char key[64]; snprintf(key, 64, #name "/%u", arg); \
    ASK(#name); if ((code_ = enter(key, i))) return code_; *out = (u32)value(key, i, value(#name, i, otherwise)); return 0; }
#define PERCENT(name) int name(device *d, u32 *out, u32 *period) { ASK(#name); *out = (u32)value(#name, i, 0); *period = 167000; return 0; }

static int init(const char *name) { int code = enter(name, -1); if (!code) references++; return code; }
int nvmlInit_v2(void) { return init("nvmlInit_v2"); }
int nvmlInitWithFlags(u32 flags) { flags_seen = (int)flags; return init("nvmlInitWithFlags"); }
int nvmlShutdown(void) { int code = enter("nvmlShutdown", -1); if (!references) return 1; references--; return code; }
int nvmlSystemGetDriverVersion(char *text, u32 n) { int c = enter("nvmlSystemGetDriverVersion", -1); if (!c) snprintf(text, n, "580.159.04"); return c; }
int nvmlSystemGetNVMLVersion(char *text, u32 n) { int c = enter("nvmlSystemGetNVMLVersion", -1); if (!c) snprintf(text, n, "13.580.159.04"); return c; }
int nvmlDeviceGetCount_v2(u32 *n) { int c = enter("nvmlDeviceGetCount_v2", -1); if (!references) return 1; if (!c) *n = (u32)n_devices; return c; }

static int give(const char *name, int i, device **out) {
    int code = enter(name, i);
    if (!references) return 1;
    if (code) return code;
    if (i < 0 || i >= n_devices) return 6;
    *out = &devices[i];
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(u32 i, device **out) { return give("nvmlDeviceGetHandleByIndex_v2", (int)i, out); }
int nvmlDeviceGetHandleByUUID(const char *uuid, device **out) {
    int found = -1;
    for (int i = 0; i < n_devices; i++) if (!strcmp(uuids[i], uuid)) found = i;
    return give("nvmlDeviceGetHandleByUUID", found, out);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **out) {
    u32 domain = 0, number = 0;
    if (sscanf(bus, "%x:%x:", &domain, &number) != 2) return 2;
    return give("nvmlDeviceGetHandleByPciBusId_v2", (int)number - 0x1b, out);
}
U32(nvmlDeviceGetIndex, u32, (u64)i)
int nvmlDeviceGetName(device *d, char *text, u32 n) { ASK("nvmlDeviceGetName"); memcpy(text, i < 100 ? names[i] : "NVIDIA H100 MIG 1g.10gb", n < 24 ? n : i < 100 ? n : 24); return 0; }
int nvmlDeviceGetUUID(device *d, char *text, u32 n) {
    ASK("nvmlDeviceGetUUID");
    if (i < 100) snprintf(text, n, "%s", uuids[i]); else snprintf(text, n, "MIG-%08x-5555-6666-7777-888888888888", (u32)i);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(device *d, void *out) {
    ASK("nvmlDeviceGetPciInfo_v3");
    memset(out, 0, 68);
    snprintf((char *)out + 36, 32, "00000000:%02X:00.0", 0x1b + i);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) { ASK("nvmlDeviceGetCudaComputeCapability"); u64 both = value("capability", i, 90); *major = (int)(both / 10); *minor = (int)(both % 10); return 0; }
U32(nvmlDeviceGetMemoryBusWidth, u32, 5120)
U32(nvmlDeviceGetVirtualizationMode, u32, 0)
U32_ARG(nvmlDeviceGetMaxClockInfo, 1980)

int nvmlDeviceGetMemoryInfo(device *d, void *out) {
    ASK("nvmlDeviceGetMemoryInfo");
    u64 total = value("memory/total", i, 85520809984ull), used = value("memory/used", i, 1000000000ull);
    u64 memory[3] = {total, total - used, used};
    memcpy(out, memory, 24);
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, void *out) {
    ASK("nvmlDeviceGetMemoryInfo_v2");
    if (*(u32 *)out != (u32)value("version/memory", -1, 0x02000028)) return 25;
    u64 total = value("memory/total", i, 85520809984ull), used = value("memory/used", i, 1000000000ull), reserved = 300000000ull;
    u64 memory[4] = {total, reserved, total - used, used - reserved};
    if (used == ~0ull) memory[3] = used;
    memcpy((char *)out + 8, memory, 32);
    return 0;
}
int nvmlDeviceGetUtilizationRates(device *d, u32 *out) { ASK("nvmlDeviceGetUtilizationRates"); out[0] = (u32)value("utilization/gpu", i, 87); out[1] = (u32)value("utilization/memory", i, 42); return 0; }
PERCENT(nvmlDeviceGetEncoderUtilization)
PERCENT(nvmlDeviceGetDecoderUtilization)
PERCENT(nvmlDeviceGetJpgUtilization)
PERCENT(nvmlDeviceGetOfaUtilization)
U32_ARG(nvmlDeviceGetTemperature, 51)
int nvmlDeviceGetTemperatureV(device *d, u32 *out) {
    ASK("nvmlDeviceGetTemperatureV");
    if (out[0] != 0x0100000C) return 25;
    out[2] = (u32)value("nvmlDeviceGetTemperatureV", i, 52);
    return 0;
}
int nvmlDeviceGetTemperatureThreshold(device *d, u32 which, u32 *out) {
    char key[32]; snprintf(key, 32, "threshold/%u", which);
    ASK("nvmlDeviceGetTemperatureThreshold");
    static const u32 degrees[8] = {92, 89, 95, 87, 0, 0, 0, 0};
    *out = (u32)value(key, i, degrees[which & 7]);
    return 0;
}
int nvmlDeviceGetMarginTemperature(device *d, u32 *out) { ASK("nvmlDeviceGetMarginTemperature"); if (out[0] != 0x01000008) return 25; out[1] = 35; return 0; }
U32(nvmlDeviceGetNumFans, u32, 0)
U32(nvmlDeviceGetFanSpeed, u32, 30)
U32_ARG(nvmlDeviceGetFanSpeed_v2, 30)
int nvmlDeviceGetFanSpeedRPM(device *d, u32 *out) { ASK("nvmlDeviceGetFanSpeedRPM"); if (out[0] != 0x0100000C) return 25; out[2] = (u32)value("fan/rpm", i, 1500); return 0; }
U32(nvmlDeviceGetPowerUsage, u32, 340000)
U32(nvmlDeviceGetTotalEnergyConsumption, u64, 123456789)
U32(nvmlDeviceGetEnforcedPowerLimit, u32, 700000)
U32_ARG(nvmlDeviceGetClockInfo, 1755)
U32(nvmlDeviceGetPerformanceState, u32, 0)
U32(nvmlDeviceGetCurrentClocksEventReasons, u64, 4)
U32(nvmlDeviceGetCurrentClocksThrottleReasons, u64, 8)
U32_ARG(nvmlDeviceGetPcieThroughput, 1000)
U32(nvmlDeviceGetCurrPcieLinkGeneration, u32, 5)
U32(nvmlDeviceGetCurrPcieLinkWidth, u32, 16)
U32(nvmlDeviceGetMaxPcieLinkGeneration, u32, 5)
U32(nvmlDeviceGetMaxPcieLinkWidth, u32, 16)
U32(nvmlDeviceGetPcieReplayCounter, u32, 3)

int nvmlDeviceGetFieldValues(device *d, int n, char *out) {
    ASK("nvmlDeviceGetFieldValues");
    for (int k = 0; k < n; k++, out += 40) {
        u32 id = *(u32 *)out;
        char key[32]; snprintf(key, 32, "field/%u", id);
        int code = enter(key, i);
        u64 otherwise = id == 186 ? 345678 : id == 185 ? 340000 : id == 82 ? 60 : 0;
        if (id == 138 || id == 139) code = find(values, n_values, key, i) ? code : 3;
        if (code == -1) continue; /* left untouched */
        u64 v = value(key, i, otherwise);
        snprintf(key, 32, "type/%u", id);
        *(long long *)(out + 8) = (long long)value("stamp", i, 1700000000000000ull);
        *(long long *)(out + 16) = 2;
        *(u32 *)(out + 24) = (u32)value(key, i, 1);
        *(int *)(out + 28) = code;
        memcpy(out + 32, &v, 8);
    }
    return 0;
}

static int processes(const char *name, device *d, u32 *n, char *out, u64 stride) {
    ASK(name);
    char key[64]; snprintf(key, 64, "%s/rows", name);
    u32 rows = (u32)value(key, i, value("process/rows", i, 0));
    stride = value("process/stride", i, stride);
    if (*n < rows) { *n = rows; return 7; }
    *n = rows;
    for (u32 k = 0; k < rows; k++) {
        char *row = out + k * stride;
        *(u32 *)row = (u32)(value("process/pid", i, 4000) + k);
        *(u64 *)(row + 8) = value("process/memory", i, 1ull << 30);
        if (stride >= 24) memset(row + 16, 0xff, 8);
        if (stride == 32) memset(row + 24, 0, 8);
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetComputeRunningProcesses_v3", d, n, out, 24); }
int nvmlDeviceGetComputeRunningProcesses_v2(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetComputeRunningProcesses_v2", d, n, out, 24); }
int nvmlDeviceGetComputeRunningProcesses(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetComputeRunningProcesses", d, n, out, 16); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetGraphicsRunningProcesses_v3", d, n, out, 24); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetGraphicsRunningProcesses_v2", d, n, out, 24); }
int nvmlDeviceGetGraphicsRunningProcesses(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetGraphicsRunningProcesses", d, n, out, 16); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *d, u32 *n, void *out) { return processes("nvmlDeviceGetMPSComputeRunningProcesses_v3", d, n, out, 24); }
int nvmlDeviceGetProcessUtilization(device *d, char *out, u32 *n, u64 since) {
    ASK("nvmlDeviceGetProcessUtilization");
    u32 rows = (u32)value("process/rows", i, 0);
    if (!rows || since >= 1000000) return 6;
    if (*n < rows) { *n = rows; return 7; }
    *n = rows;
    for (u32 k = 0; k < rows; k++, out += 32) {
        memset(out, 0, 32);
        *(u32 *)out = (u32)(value("process/pid", i, 4000) + k);
        *(u64 *)(out + 8) = 1000000;
        *(u32 *)(out + 16) = 55;
    }
    return 0;
}

int nvmlDeviceGetMigMode(device *d, u32 *now, u32 *then) { ASK("nvmlDeviceGetMigMode"); *now = *then = (u32)value("mig/mode", i, 0); return 0; }
U32(nvmlDeviceGetMaxMigDeviceCount, u32, 7)
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, u32 place, device **out) {
    ASK("nvmlDeviceGetMigDeviceHandleByIndex");
    if (place % 2 || place >= value("mig/places", i, 4)) return 6; /* the numbering has holes */
    *out = &migs[i][place];
    return 0;
}
U32(nvmlDeviceGetGpuInstanceId, u32, (u64)i - 100)
U32(nvmlDeviceGetComputeInstanceId, u32, 0)
int nvmlDeviceGetAttributes_v2(device *d, void *out) { ASK("nvmlDeviceGetAttributes_v2"); memset(out, 0, 40); *(u32 *)out = 16; return 0; }
int nvmlDeviceGetNvLinkState(device *d, u32 link, u32 *up) {
    ASK("nvmlDeviceGetNvLinkState");
    u32 links = (u32)value("nvlink/total", i, 0);
    if (link >= links) return links ? 2 : 3;
    *up = link < value("nvlink/up", i, links);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(device *d, u32 kind, u32 counter, u64 *out) {
    char key[32]; snprintf(key, 32, "ecc/%u/%u", kind, counter);
    ASK("nvmlDeviceGetTotalEccErrors");
    *out = value(key, i, 0);
    return 0;
}
int nvmlDeviceGetRetiredPages_v2(device *d, u32 cause, u32 *n, u64 *pages, u64 *stamps) {
    ASK("nvmlDeviceGetRetiredPages_v2"); (void)cause; (void)pages; (void)stamps;
    u32 room = *n;
    *n = (u32)value("retired", i, 0);
    return *n > room ? 7 : 0;
}
int nvmlDeviceGetRemappedRows(device *d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    ASK("nvmlDeviceGetRemappedRows");
    *corrected = (u32)value("remapped", i, 2); *uncorrected = 1; *pending = 0; *failed = 0;
    return 0;
}

int nvmlGpmQueryDeviceSupport(device *d, u32 *out) { ASK("nvmlGpmQueryDeviceSupport"); if (out[0] != 1) return 25; out[1] = (u32)value("gpm", i, 1); return 0; }
int nvmlGpmSampleAlloc(void **out) { int c = enter("nvmlGpmSampleAlloc", -1); if (!c) *out = calloc(1, 64); return c; }
int nvmlGpmSampleFree(void *sample) { enter("nvmlGpmSampleFree", -1); free(sample); return 0; }
int nvmlGpmSampleGet(device *d, u64 *sample) { ASK("nvmlGpmSampleGet"); sample[0] = (u64)fake_calls("nvmlGpmSampleGet"); return 0; }
int nvmlGpmMigSampleGet(device *d, u32 instance, u64 *sample) { ASK("nvmlGpmMigSampleGet"); (void)instance; sample[0] = (u64)fake_calls("nvmlGpmMigSampleGet"); return 0; }
int nvmlGpmMetricsGet(char *out) {
    int c = enter("nvmlGpmMetricsGet", -1);
    if (c) return c;
    u64 *first = *(u64 **)(out + 8), *second = *(u64 **)(out + 16);
    if (*(u32 *)out != 1 || first[0] >= second[0]) return 2;
    for (u32 k = 0; k < *(u32 *)(out + 4); k++) {
        char *metric = out + 24 + 40 * k, key[32];
        snprintf(key, 32, "gpm/%u", *(u32 *)metric);
        rule *r = find(values, n_values, key, -1);
        double number = r ? (double)r->value : 10.0 + *(u32 *)metric;
        *(int *)(metric + 4) = 0;
        memcpy(metric + 8, &number, 8);
    }
    return 0;
}

int nvmlEventSetCreate(void **out) { int c = enter("nvmlEventSetCreate", -1); *out = &references; return c; }
int nvmlEventSetFree(void *set) { (void)set; return enter("nvmlEventSetFree", -1); }
int nvmlDeviceGetSupportedEventTypes(device *d, u64 *out) { ASK("nvmlDeviceGetSupportedEventTypes"); *out = value("events", i, 8); return 0; }
int nvmlDeviceRegisterEvents(device *d, u64 kinds, void *set) { (void)kinds; (void)set; ASK("nvmlDeviceRegisterEvents"); return 0; }
int nvmlEventSetWait_v2(void *set, char *out, u32 ms) {
    (void)set;
    int c = enter("nvmlEventSetWait_v2", -1);
    waited_ms = (int)ms;
    if (c) return c;
    if (fake_calls("nvmlEventSetWait_v2") > (long)value("xid/events", -1, 0)) {
        struct timespec t = {0, (long)(ms < 20 ? ms : 20) * 1000000};
        nanosleep(&t, NULL);
        return 10;
    }
    device *d = &devices[0];
    memset(out, 0, 32);
    memcpy(out, &d, 8);
    *(u64 *)(out + 8) = 8;
    *(u64 *)(out + 16) = value("xid", -1, 79);
    return 0;
}
