/* The range profiler of one scripted device, for libcupti_profiler.c: user ranges, one pass, one range an image.
 *
 * What a range counts is what the test said with fake_profiler_count(part of a metric's name, value); else see value().
 * Ranges are refused out of order, as CUPTI refuses them, and counters that PM sampling has are busy. As with CUPTI 13.0
 * the first configuration after enabling stays: ranges of another one count no more than their time. */
#define OF_ANOTHER_SET 0xa507 /* end of a range that was configured behind another set: it counts the time alone */
struct ranger { int used, configured, running, depth, done, first, another; struct image *image; };
static struct ranger ranger;
static struct { char part[64]; double value; } scripted[32];
static unsigned scripts;

void fake_profiler_count(const char *part, double amount) {
    for (unsigned i = 0; i < scripts; i++)
        if (strcmp(scripted[i].part, part) == 0) { scripted[i].value = amount; return; }
    snprintf(scripted[scripts].part, 64, "%s", part);
    scripted[scripts++].value = amount;
}

/* As another profiler that takes CUPTI out of the process. */
void fake_profiler_forget(void) { memset(&ranger, 0, sizeof ranger); }

static int by_script(const char *name, double *amount) {
    for (unsigned i = 0; i < scripts; i++)
        if (strstr(name, scripted[i].part)) { *amount = scripted[i].value; return 1; }
    return 0;
}

static int sampling(void) {
    for (unsigned i = 0; i < 8; i++)
        if (samplers[i].used) return 1;
    return 0;
}

CALL(cuptiRangeProfilerEnable, void *context; struct ranger *ranger;) {
    if (!initialized) return 15;
    if (!p->context) return 3;
    if (ranger.used || sampling()) return 26;
    ranger.used = 1, ranger.configured = ranger.running = ranger.depth = 0, ranger.first = -1, p->ranger = &ranger;
    return 0;
}
CALL(cuptiRangeProfilerDisable, struct ranger *ranger;) { p->ranger->used = 0; return 0; }
CALL(cuptiRangeProfilerSetConfig, struct ranger *ranger; size_t size_of; const uint8_t *config; size_t bytes;
     struct image *image; int range; int replay; size_t ranges; uint16_t levels; uint16_t least; size_t pass;
     uint16_t target;) {
    if (p->ranger->running) return 7;
    if (!p->config[0] || p->range != 2 || p->replay != 3 || p->ranges != 1 || p->levels != 1) return 1;
    if (p->image->magic != 0x1a6e) return 1;
    if (p->ranger->first < 0) p->ranger->first = p->config[1];
    p->ranger->another = p->ranger->first != p->config[1];
    p->ranger->image = p->image, p->ranger->configured = 1;
    return 0;
}
CALL(cuptiRangeProfilerStart, struct ranger *ranger;) {
    if (!p->ranger->configured || p->ranger->running) return 7;
    p->ranger->running = 1, p->ranger->depth = p->ranger->done = 0;
    return 0;
}
CALL(cuptiRangeProfilerStop, struct ranger *ranger; size_t pass; size_t target; uint8_t all;) {
    if (!p->ranger->running || p->ranger->depth) return 7;
    p->ranger->running = 0, p->all = 1;
    return 0;
}
CALL(cuptiRangeProfilerPushRange, struct ranger *ranger; const char *name;) {
    if (!p->ranger->running || p->ranger->depth) return 7;
    p->ranger->depth = 1;
    return 0;
}
CALL(cuptiRangeProfilerPopRange, struct ranger *ranger;) {
    if (!p->ranger->depth) return 7;
    p->ranger->depth = 0, p->ranger->done++;
    return 0;
}
CALL(cuptiRangeProfilerDecodeData, struct ranger *ranger; size_t dropped;) {
    struct image *image = p->ranger->image;
    if (p->ranger->running) return 7;
    for (; p->ranger->done; p->ranger->done--) {
        if (image->count == image->most) { p->dropped++; continue; }
        image->rows[image->count].number = 0;
        image->rows[image->count++].end = p->ranger->another ? OF_ANOTHER_SET : 0;
    }
    return 0;
}
CALL(cuptiRangeProfilerGetCounterDataSize, struct ranger *ranger; const char **names; size_t count; size_t ranges;
     uint32_t nodes; size_t bytes;) {
    if (p->nodes < p->ranges) return 1;
    p->bytes = sizeof(struct image) + sizeof(struct row) * p->ranges;
    return 0;
}
CALL(cuptiRangeProfilerCounterDataImageInitialize, struct ranger *ranger; size_t bytes; struct image *image;) {
    p->image->magic = 0x1a6e, p->image->count = 0;
    p->image->most = (uint32_t)((p->bytes - sizeof(struct image)) / sizeof(struct row));
    return 0;
}
CALL(cuptiRangeProfilerGetCounterDataInfo, const struct image *image; size_t bytes; size_t ranges;) {
    p->ranges = p->image->count;
    return 0;
}
CALL(cuptiRangeProfilerCounterDataGetRangeInfo, const struct image *image; size_t bytes; size_t index;
     const char *delimiter; const char *name;) {
    p->name = "block";
    return 0;
}
