/* Looks for the newest id while buffers go round: newest CODE REQUESTED COMPLETED TAKE GIVE NEWEST PRODUCERS ROUNDS
 *
 * Producers take an id from a counter and write a record with it, as a launch does, then now and then ask for the newest
 * id: it must not be older than their own, nor younger than the counter. Buffers are completed by whoever finds them
 * full, or by a thread that completes them at any moment, as a flush does. One lock stands for the GIL: around take, give
 * and newest. Ids begin shortly before they wrap. The control block is laid out as documented in
 * gpusense/_capi/machine/mailbox_layout.py, written here anew. Prints what it counted; exits 1 on the first wrong answer. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS = 16, SHIFT = 12, SIZE = 1 << SHIFT, CAP = 1024, MOST = 64 };

typedef struct {
    uint64_t slots, total, shift, size, arena, arena_bytes, pad[2];
    uint64_t requested, completed, missed, foreign, high, newest, blind, pad_2[17];
    uint64_t state[CAP], thread[CAP], valid[CAP], cursor[CAP], kinds[64];
} control_t;

typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef int (*take_t)(uint64_t *);
typedef int (*give_t)(uint8_t *);
typedef uint64_t (*newest_t)(void);

static requested_t requested;
static completed_t completed;
static take_t take;
static give_t give;
static newest_t newest;
static control_t *control;
static pthread_mutex_t gil = PTHREAD_MUTEX_INITIALIZER;
static unsigned long rounds;
static uint64_t written, read_back, asked;
static uint32_t counter = 0xffffff00u;
static int running, writing;

static struct { pthread_mutex_t lock; uint8_t *data; size_t used; } own[MOST]; /* one lock a producer: a flush takes it */

static void fail(const char *what) { fprintf(stderr, "%s\n", what); exit(1); }

static uint32_t next(void) {
    uint32_t id = __atomic_add_fetch(&counter, 1, __ATOMIC_SEQ_CST);
    return id ? id : __atomic_add_fetch(&counter, 1, __ATOMIC_SEQ_CST);
}

static void finish(int number) {
    if (own[number].data) completed(0, 0, own[number].data, SIZE, own[number].used);
    own[number].data = 0;
}

static void *produce(void *argument) {
    int number = (int)(intptr_t)argument;
    unsigned seed = (unsigned)number;
    for (unsigned long round = 0; round < rounds; round++) {
        /* 1: 96 bytes, id at 44. 10: 216 bytes, id at 100. 17: 56 bytes, no id. */
        unsigned kind = rand_r(&seed) % 3, bytes = kind == 0 ? 96 : kind == 1 ? 216 : 56, place = kind == 0 ? 44 : 100;
        pthread_mutex_lock(&own[number].lock);
        uint32_t id = next();
        if (own[number].data && own[number].used + bytes > SIZE) finish(number);
        if (!own[number].data) {
            size_t size = 1, records = 1;
            requested(&own[number].data, &size, &records);
            own[number].used = 0;
            for (size_t i = 0; own[number].data && i < SIZE / 8; i++)
                if (((uint64_t *)own[number].data)[i]) fail("a buffer is not clean");
        }
        int there = own[number].data != 0;
        if (there) {
            uint8_t *at = own[number].data + own[number].used;
            own[number].used += bytes;
            memset(at + 8, 0x77, place == 100 || kind == 2 ? 24 : 16);
            *(volatile uint32_t *)at = (kind == 0 ? 1u : kind == 1 ? 10u : 17u) | 0x80000000u;
            if (kind != 2) *(volatile uint32_t *)(at + place) = id;
            __atomic_fetch_add(&written, 1, __ATOMIC_RELAXED);
        } else {
            sched_yield();
        }
        pthread_mutex_unlock(&own[number].lock);
        if (rand_r(&seed) % 4 == 0) {
            pthread_mutex_lock(&gil);
            uint64_t found = newest();
            pthread_mutex_unlock(&gil);
            uint32_t latest = __atomic_load_n(&counter, __ATOMIC_SEQ_CST);
            if (found >> 32) fail("blind");
            if (there && kind != 2 && (int32_t)((uint32_t)found - id) < 0) fail("an id was missed");
            if (found && (int32_t)(latest - (uint32_t)found) < 0) fail("an id that was never given");
            __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED);
        }
    }
    return 0;
}

static void *flush(void *count) {
    while (__atomic_load_n(&writing, __ATOMIC_ACQUIRE))
        for (int i = 0; i < (int)(intptr_t)count; i++) {
            pthread_mutex_lock(&own[i].lock);
            finish(i);
            pthread_mutex_unlock(&own[i].lock);
            sched_yield();
        }
    return 0;
}

static int read_one(void) {
    uint64_t out[3];
    pthread_mutex_lock(&gil);
    int found = take(out);
    pthread_mutex_unlock(&gil);
    if (!found) return 0;
    for (size_t at = 0; at < out[1];) {
        uint32_t kind = *(uint32_t *)(uintptr_t)(out[0] + at) & 0x7fffffff;
        if (kind != 1 && kind != 10 && kind != 17) fail("torn buffer");
        at += kind == 1 ? 96 : kind == 10 ? 216 : 56;
        read_back++;
    }
    pthread_mutex_lock(&gil);
    if (!give((uint8_t *)(uintptr_t)out[0])) fail("a taken buffer was not taken back");
    if (give((uint8_t *)(uintptr_t)out[0])) fail("a buffer was taken back twice");
    pthread_mutex_unlock(&gil);
    return 1;
}

static void *consume(void *unused) {
    (void)unused;
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE))
        if (!read_one()) sched_yield();
    while (read_one()) {}
    return 0;
}

int main(int count, char **argument) {
    if (count != 9) fail("arguments");
    unsigned long at[5];
    int producers = atoi(argument[7]);
    rounds = strtoul(argument[8], 0, 0);
    for (int i = 0; i < 5; i++) at[i] = strtoul(argument[2 + i], 0, 0);
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *arena = mmap(0, SLOTS * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *file = fopen(argument[1], "rb");
    if (!file || fread(code, 1, 4096, file) < 64) fail("no code");
    memcpy(code, &control, 8);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC)) fail("mprotect");
    requested = (requested_t)(code + at[0]), completed = (completed_t)(code + at[1]);
    take = (take_t)(code + at[2]), give = (give_t)(code + at[3]), newest = (newest_t)(code + at[4]);

    if (newest()) fail("a wiped control block knows an id"); /* as in a forked child */
    control->shift = SHIFT, control->size = SIZE, control->arena = (uintptr_t)arena, control->arena_bytes = SLOTS * SIZE;
    control->newest = 1ull << 63;
    control->kinds[1] = 44ull << 32 | 96, control->kinds[10] = 100ull << 32 | 216, control->kinds[17] = 56;
    for (int i = 0; i < SLOTS; i++) control->state[i] = 1;
    control->total = control->slots = SLOTS, running = writing = 1;
    if (newest()) fail("an id before the first");
    pthread_t reader, flusher, threads[MOST];
    for (int i = 0; i < producers; i++) pthread_mutex_init(&own[i].lock, 0);
    pthread_create(&reader, 0, consume, 0);
    for (long i = 0; i < producers; i++) pthread_create(threads + i, 0, produce, (void *)i);
    pthread_create(&flusher, 0, flush, (void *)(long)producers);
    for (int i = 0; i < producers; i++) pthread_join(threads[i], 0);
    __atomic_store_n(&writing, 0, __ATOMIC_RELEASE);
    pthread_join(flusher, 0);
    for (int i = 0; i < producers; i++) finish(i);
    __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
    pthread_join(reader, 0);
    if (written != read_back) fail("lost or doubled records");
    printf("written %lu asked %lu\n", (unsigned long)written, (unsigned long)asked);
    return 0;
}
