/* A librocm_smi64 that behaves as the test says. -DVERSION_6 gives it the structs and functions of ROCm 6,
 * -DNO_FAN_RPMS takes a function away.
 *
 * FAKE_RSMI is "what:function[=code],...": abort:NAME dies in NAME, hang:NAME never returns from it, code:NAME=N makes
 * it answer N. FAKE_RSMI_CALLS names a file that gets a line for every call. Two devices: 0000:0a:00.0 is listed first,
 * 0000:03:00.0 second, as no order is promised.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int enter(const char *name)
{
    const char *log = getenv("FAKE_RSMI_CALLS"), *script = getenv("FAKE_RSMI");
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) {
            fprintf(file, "%s\n", name);
            fclose(file);
        }
    }
    size_t length = strlen(name);
    for (const char *at = script; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const char *target = strchr(at, ':');
        if (!target || strncmp(target + 1, name, length))
            continue;
        char end = target[1 + length];
        if (end != '=' && end != ',' && end)
            continue;
        if (!strncmp(at, "abort", 5))
            abort();
        if (!strncmp(at, "hang", 4))
            for (;;)
                sleep(60);
        return end == '=' ? atoi(target + 2 + length) : 1;
    }
    return 0;
}

#define ENTER                      \
    do {                           \
        int code = enter(__func__); \
        if (code)                  \
            return code;           \
    } while (0)

int rsmi_init(uint64_t flags) { ENTER; return (int)flags; }

/* Always 1.0.0, as most builds. */
int rsmi_version_get(uint32_t *version) { ENTER; version[0] = 1; version[1] = version[2] = 0; return 0; }

int rsmi_num_monitor_devices(uint32_t *count)
{
    ENTER;
    *count = getenv("FAKE_RSMI_NONE") ? 0 : 2;
    return 0;
}

int rsmi_dev_pci_id_get(uint32_t device, uint64_t *bdf) { ENTER; *bdf = device ? 0x300 : 0xa00; return 0; }
int rsmi_dev_id_get(uint32_t device, uint16_t *id) { ENTER; *id = device ? 0x740f : 0x73bf; return 0; }
int rsmi_dev_unique_id_get(uint32_t device, uint64_t *id) { ENTER; *id = device; return 0; }

int rsmi_dev_name_get(uint32_t device, char *name, size_t length)
{
    ENTER;
    snprintf(name, length, device ? "Instinct \xff Made Up" : "0x73bf");
    return 0;
}

int rsmi_dev_busy_percent_get(uint32_t device, uint32_t *percent)
{
    ENTER;
    *percent = device ? 31 : 0xFFFFFFFFu;
    return 0;
}

int rsmi_dev_memory_busy_percent_get(uint32_t device, uint32_t *percent) { ENTER; *percent = 12 + device; return 0; }

int rsmi_dev_memory_total_get(uint32_t device, int kind, uint64_t *bytes)
{
    ENTER;
    *bytes = kind == 0 ? 1000 + device : 2000;
    return 0;
}

int rsmi_dev_memory_usage_get(uint32_t device, int kind, uint64_t *bytes)
{
    ENTER;
    *bytes = kind == 0 ? 400 : 50;
    return 0;
}

int rsmi_dev_temp_metric_get(uint32_t device, uint32_t sensor, int metric, int64_t *milli)
{
    ENTER;
    if (sensor == 2)
        *milli = 0; /* no such sensor, and no error either */
    else
        *milli = (metric == 0 ? 50000 : metric == 5 ? 100000 : 105000) + 1000 * sensor;
    return 0;
}

int rsmi_dev_power_ave_get(uint32_t device, uint32_t sensor, uint64_t *micro) { ENTER; *micro = 150500000; return 0; }
int rsmi_dev_power_cap_get(uint32_t device, uint32_t sensor, uint64_t *micro) { ENTER; *micro = 300000000; return 0; }

int rsmi_dev_energy_count_get(uint32_t device, uint64_t *count, float *resolution, uint64_t *stamp)
{
    ENTER;
    *count = 5 << 16;
    *resolution = 15.3f;
    *stamp = 18446744073709551606ull;
    return 0;
}

#ifndef NO_FAN_RPMS
int rsmi_dev_fan_rpms_get(uint32_t device, uint32_t sensor, int64_t *rpm) { ENTER; *rpm = 1200; return 0; }
#endif
int rsmi_dev_fan_speed_get(uint32_t device, uint32_t sensor, int64_t *speed) { ENTER; *speed = 51; return 0; }
int rsmi_dev_fan_speed_max_get(uint32_t device, uint32_t sensor, uint64_t *speed) { ENTER; *speed = 255; return 0; }

struct frequencies {
#ifdef VERSION_6
    uint8_t deep_sleep;
    uint32_t count, current;
    uint64_t hertz[33];
#else
    uint32_t count, current;
    uint64_t hertz[32];
#endif
};

int rsmi_dev_gpu_clk_freq_get(uint32_t device, int kind, struct frequencies *table)
{
    ENTER;
    memset(table, 0, sizeof *table);
    table->count = 2;
    table->current = kind == 4 && getenv("FAKE_RSMI_NO_LEVEL") ? 0xFFFFFFFFu : 1;
    table->hertz[0] = 500000000;
    table->hertz[1] = kind == 0 ? 1700000000 : 900000000;
    return 0;
}

struct bandwidth {
    struct frequencies rate;
    uint32_t lanes[33];
};

int rsmi_dev_pci_bandwidth_get(uint32_t device, struct bandwidth *table)
{
    ENTER;
    memset(table, 0, sizeof *table);
    table->rate.count = 2;
    table->rate.current = 1;
    table->rate.hertz[0] = 2500000000;
    table->rate.hertz[1] = 16000000000;
    table->lanes[0] = 1;
    table->lanes[1] = 16;
    return 0;
}

int rsmi_dev_pci_throughput_get(uint32_t device, uint64_t *sent, uint64_t *received, uint64_t *largest)
{
    ENTER;
    *sent = 10;
    *received = 20;
    *largest = getenv("FAKE_RSMI_NO_PACKETS") ? 0 : 256;
    return 0;
}

int rsmi_dev_pci_replay_counter_get(uint32_t device, uint64_t *count) { ENTER; *count = 4; return 0; }

#ifdef VERSION_6
int rsmi_dev_power_get(uint32_t device, uint64_t *micro, int *kind)
{
    ENTER;
    *micro = 160250000;
    *kind = 1;
    return 0;
}
#endif
