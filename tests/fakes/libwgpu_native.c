/* A wgpu-native whose version is VERSION and whose behaviour FAKE_WGPU scripts:
   "abort" panics as Rust does, "hang" never answers, "crash" dereferences NULL, "none" has no adapter,
   "null" gives no instance, "noise" prints a line before it answers. Structures are those of family C. */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 0x1D000101u
#endif

typedef struct { const char *data; size_t length; } view;
typedef struct {
    void *next;
    view vendor, architecture, device, description;
    uint32_t backend, type, vendor_id, device_id, subgroup_min, subgroup_max;
} info;

static int is(const char *what) {
    const char *script = getenv("FAKE_WGPU");
    return script && strcmp(script, what) == 0;
}

uint32_t wgpuGetVersion(void) { return VERSION; }

void *wgpuCreateInstance(const void *descriptor) {
    (void)descriptor;
    if (is("abort")) {
        fprintf(stderr, "\nthread '<unnamed>' panicked at src/lib.rs:605:5:\nError in wgpuQueueSubmit\n");
        fprintf(stderr, "note: run with `RUST_BACKTRACE=1`\n");
        abort();
    }
    if (is("crash"))
        raise(SIGSEGV);
    if (is("hang"))
        sleep(600);
    if (is("noise"))
        printf("a layer says hello\n");
    return is("null") ? NULL : (void *)1;
}

size_t wgpuInstanceEnumerateAdapters(void *instance, const void *options, void **out) {
    (void)instance, (void)options;
    size_t count = is("none") ? 0 : 2;
    for (size_t i = 0; out && i < count; i++)
        out[i] = (void *)(i + 1);
    return count;
}

static view text(const char *value) { return (view){value, strlen(value)}; }

uint32_t wgpuAdapterGetInfo(void *adapter, info *out) {
    memset(out, 0, sizeof *out);
    out->vendor = text("driver");
    out->device = text("Fake Card");
    out->description = text("1.2.3");
    out->backend = adapter == (void *)1 ? 7 : 6; /* OpenGL first, then Vulkan */
    out->type = 1;
    out->vendor_id = 0x10DE;
    out->device_id = adapter == (void *)1 ? 0 : 0x2330;
    return 1;
}

void wgpuAdapterInfoFreeMembers(info members) { (void)members; }
uint32_t wgpuAdapterHasFeature(void *adapter, uint32_t feature) { return adapter == (void *)2 && feature == 9; }
void wgpuAdapterRelease(void *adapter) { (void)adapter; }
void wgpuInstanceRelease(void *instance) { (void)instance; }
