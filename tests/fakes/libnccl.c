/* What NCCL does with a profiler, and no more: it looks for one by version, tells it of communicators, and of collectives,
 * sends and receives with their channels, from the calling thread and from one of its own. The structures are written
 * down here by the order of their members in the interface, so that the offsets come from the compiler. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { COLLECTIVE = 2, POINT_TO_POINT = 4, CHANNEL = 64, GROUP = 1, CHANNEL_STOP = 22 };

#define HEAD(width) width type; void *parent; int rank;
struct event2 {
    HEAD(uint8_t)
    union {
        struct { const char *name; uint64_t id, sequence; const char *function; const void *from; void *to; size_t count; int root;
                 const char *type; size_t traffic; uint8_t channels, warps; const char *algorithm, *protocol; } collective;
        struct { const char *name; uint64_t id; const char *function; void *buffer; const char *type; size_t count; int peer; } p2p;
    };
};
struct event3 {
    HEAD(uint8_t)
    union {
        struct { const char *name; uint64_t id, sequence; const char *function; const void *from; void *to; size_t count; int root;
                 const char *type; uint8_t channels, warps; const char *algorithm, *protocol; } collective;
        struct { const char *name; uint64_t id; const char *function; void *buffer; const char *type; size_t count; int peer; } p2p;
        struct { uint8_t number; } channel;
    };
};
#define LATER(extra)                                                                                                       \
    union {                                                                                                                \
        struct { uint64_t sequence; const char *function; const void *from; void *to; size_t count; int root;              \
                 const char *type; uint8_t channels, warps; const char *algorithm, *protocol; extra } collective;           \
        struct { const char *function; void *buffer; const char *type; size_t count; int peer; uint8_t channels; extra } p2p; \
        struct { uint8_t number; uint64_t timer; } channel;                                                                \
    };
struct event4 { HEAD(uint8_t) LATER() };
struct event5 { HEAD(uint64_t) LATER(void *group;) };
union state { size_t size; uint64_t timer; };

struct profiler {
    const char *name;
    void *init;
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, union state *);
    int (*finalize)(void *);
};

struct communicator { struct profiler *profiler; int version; void *context; uint64_t id; int ranks, rank; const char *name; };
static int mask;
int64_t fake_timer_ahead = 123456789000; /* the device's timer minus CLOCK_MONOTONIC */

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

struct communicator *fake_init(int newest, uint64_t id, const char *name, int nodes, int ranks, int rank) {
    const char *chosen = getenv("NCCL_PROFILER_PLUGIN");
    struct communicator *made = calloc(1, sizeof *made);
    *made = (struct communicator){0, 0, 0, id, ranks, rank, name};
    if (!chosen || strcmp(chosen, "STATIC_PLUGIN")) return made;
    void *process = dlopen(NULL, RTLD_NOW);
    for (int version = newest; version >= 2 && !made->profiler; version--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
        made->profiler = dlsym(process, symbol);
        made->version = version;
    }
    if (!made->profiler) return made;
    void *init = made->profiler->init;
    if (made->version >= 5)
        ((int (*)(void **, uint64_t, int *, const char *, int, int, int, void *))init)(&made->context, id, &mask, name, nodes, ranks, rank, 0);
    else if (made->version == 4)
        ((int (*)(void **, int *, const char *, uint64_t, int, int, int, void *))init)(&made->context, &mask, name, id, nodes, ranks, rank, 0);
    else
        ((int (*)(void **, int *))init)(&made->context, &mask);
    return made;
}

const char *fake_profiler(struct communicator *c) { return c->profiler ? c->profiler->name : 0; }
int fake_mask(void) { return mask; }
void fake_finalize(struct communicator *c) { if (c->profiler) c->profiler->finalize(c->context); }

#define FILL(e, v)                                                                                                         \
    e.type = p2p ? POINT_TO_POINT : COLLECTIVE; e.rank = c->rank;                                                          \
    if (p2p) { e.p2p.function = function; e.p2p.type = type; e.p2p.count = count; e.p2p.peer = root; }                      \
    else { e.collective.sequence = sequence; e.collective.function = function; e.collective.type = type;                    \
           e.collective.count = count; e.collective.root = root; e.collective.channels = channels;                          \
           e.collective.algorithm = "RING"; e.collective.protocol = "LL128"; }

/* The host launches one; its handle. */
void *fake_launch(struct communicator *c, int p2p, const char *function, uint64_t sequence, const char *type, size_t count, int root, int channels) {
    void *handle = 0, *group = 0;
    if (!c->profiler || !(mask & (p2p ? POINT_TO_POINT : COLLECTIVE))) return 0;
    struct event5 outer = {.type = GROUP};
    c->profiler->start(c->context, &group, &outer);
    if (c->version == 2) { struct event2 e = {0}; FILL(e, 2) if (p2p) e.p2p.name = c->name, e.p2p.id = c->id; else e.collective.name = c->name, e.collective.id = c->id; c->profiler->start(c->context, &handle, &e); }
    else if (c->version == 3) { struct event3 e = {0}; FILL(e, 3) if (p2p) e.p2p.name = c->name, e.p2p.id = c->id; else e.collective.name = c->name, e.collective.id = c->id; c->profiler->start(c->context, &handle, &e); }
    else if (c->version == 4) { struct event4 e = {0}; FILL(e, 4) if (p2p) e.p2p.channels = channels; c->profiler->start(c->context, &handle, &e); }
    else { struct event5 e = {0}; FILL(e, 5) if (p2p) e.p2p.channels = channels; c->profiler->start(c->context, &handle, &e); }
    if (handle) c->profiler->stop(handle);
    if (group) c->profiler->stop(group);
    return handle;
}

/* The device runs one channel of it: the proxy's thread tells when it has begun and when it has ended. */
void *fake_channel_begins(struct communicator *c, void *of, int number, uint64_t timer) {
    void *handle = 0;
    if (!c->profiler || !(mask & CHANNEL) || c->version < 3) return 0;
    if (c->version == 3) { struct event3 e = {.type = CHANNEL, .parent = of}; e.channel.number = number; c->profiler->start(c->context, &handle, &e); }
    else if (c->version == 4) { struct event4 e = {.type = CHANNEL, .parent = of}; e.channel.number = number; e.channel.timer = timer; c->profiler->start(c->context, &handle, &e); }
    else { struct event5 e = {.type = CHANNEL, .parent = of}; e.channel.number = number; e.channel.timer = timer; c->profiler->start(c->context, &handle, &e); }
    return handle;
}
void fake_channel_ends(struct communicator *c, void *handle, uint64_t timer) {
    if (!handle) return;
    union state what = {.timer = timer};
    if (c->version >= 4) c->profiler->state(handle, CHANNEL_STOP, &what);
    c->profiler->stop(handle);
}
uint64_t fake_timer(void) { return now() + fake_timer_ahead; }

/* Many threads, each with a communicator: `count` collectives of four channels. */
struct job { struct communicator *c; int count, pause; };
static void *work(void *given) {
    struct job *job = given;
    for (int i = 0; i < job->count; i++) {
        void *channels[4], *one = fake_launch(job->c, 0, "AllReduce", i, "ncclFloat32", 1024 + i, 0, 4);
        for (int n = 0; n < 4; n++) channels[n] = fake_channel_begins(job->c, one, n, fake_timer());
        for (int n = 0; n < 4; n++) fake_channel_ends(job->c, channels[n], fake_timer());
        if (job->pause) usleep(job->pause);
    }
    return 0;
}
void fake_storm(struct communicator **all, int threads, int count, int pause) {
    pthread_t ids[threads];
    struct job jobs[threads];
    for (int n = 0; n < threads; n++) {
        jobs[n] = (struct job){all[n], count, pause};
        pthread_create(&ids[n], 0, work, &jobs[n]);
    }
    for (int n = 0; n < threads; n++) pthread_join(ids[n], 0);
}
