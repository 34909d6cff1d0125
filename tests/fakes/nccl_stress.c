/* Runs the machine code of NCCL's profiler with many threads: stress CODE INIT START STOP STATE FINALIZE THREADS ROUNDS
 *
 * Each thread has a communicator and launches collectives of four channels; one reader checks every field of what has
 * ended and frees its slot. Then a channel comes late, once as its slot is given up and once as it is another's. Exits 1
 * on the first mixed, torn or lost one that was not counted. What lies where is as in gpusense/_capi/machine/nccl_code.py,
 * written here anew. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SLOTS = 2048, SLOT = 2048, ROWS = 512, ROW = 128, MOST = 8, CHANNELS = 4 };
struct slot {
    uint64_t state, ticket, row, begun[2], ended[2];
    uint32_t channels_begun, channels_ended;
    uint64_t thread, first, first_seen[2], last_seen[2], pad[2], event[16], more[96], channels[64][2];
};
_Static_assert(sizeof(struct slot) == SLOT && offsetof(struct slot, event) == 0x80 && offsetof(struct slot, channels) == 0x400, "layout");

static int (*init)(void **, uint64_t, int *, const char *, int, int, int, void *);
static int (*start)(void *, void **, void *), (*stop)(void *), (*state)(void *, int, void *), (*finalize)(void *);
static uint64_t control[11];
static struct slot *slots;
static long rounds;
static int threads, running, mask;
static uint8_t *seen[MOST];

static void fail(const char *what) { fprintf(stderr, "%s\n", what); exit(1); }

static void *launch(void *context, uint64_t rank, uint64_t number) {
    uint64_t event[16] = {2, 0, rank, number, 0, 0, 0, 1024 + number};
    void *handle = 0;
    start(context, &handle, event);
    stop(handle);
    return handle;
}

static void *begin(void *context, void *of, uint64_t channel, uint64_t timer) {
    uint64_t event[16] = {64, (uintptr_t)of, 0, channel, timer};
    void *handle = 0;
    start(context, &handle, event);
    return handle;
}

static void end(void *channel, uint64_t timer) {
    state(channel, 22, &timer);
    stop(channel);
}

static void *work(void *given) {
    uint64_t rank = (uintptr_t)given;
    void *context = 0;
    init(&context, 100 + rank, &mask, "stress", 1, threads, (int)rank, 0);
    for (long n = 0; n < rounds; n++) {
        void *channels[CHANNELS], *one = launch(context, rank, n);
        for (int c = 0; c < CHANNELS; c++) channels[c] = begin(context, one, c, 16 * n + c + 1);
        for (int c = 0; c < CHANNELS; c++) end(channels[c], 16 * n + c + 1000);
    }
    finalize(context);
    return 0;
}

static void check(struct slot *one, uint64_t number) {
    uint64_t rank = one->event[2], n = one->event[3];
    if (one->ticket % SLOTS != number) fail("a slot of another ticket");
    if (rank >= (uint64_t)threads || n >= (uint64_t)rounds || one->event[7] != 1024 + n) fail("a torn event");
    if (*(uint32_t *)(one->row + 28) != rank || *(uint64_t *)(one->row + 8) != 100 + rank) fail("another's communicator");
    if (!one->thread || !one->begun[0] || !one->ended[0] || !one->first_seen[0] || !one->last_seen[0]) fail("no time");
    if (one->first < 16 * n + 1 || one->first > 16 * n + CHANNELS) fail("another's first channel");
    for (int c = 0; c < CHANNELS; c++)
        if (one->channels[c][0] != 16 * n + c + 1 || one->channels[c][1] != 16 * n + c + 1000) fail("another's channel");
    if (seen[rank][n]++) fail("one that came twice");
}

static void release(struct slot *one) {
    memset((char *)one + 8, 0, SLOT - 8);
    __atomic_store_n(&one->state, 0, __ATOMIC_RELEASE);
}

static void *read_all(void *unused) {
    (void)unused;
    for (int more = 1, last = 0; more || !last;) {
        last = !__atomic_load_n(&running, __ATOMIC_ACQUIRE);
        more = 0;
        for (int n = 0; n < SLOTS; n++) {
            struct slot *one = slots + n;
            if (__atomic_load_n(&one->state, __ATOMIC_ACQUIRE) != 2) continue;
            if (__atomic_load_n(&one->channels_ended, __ATOMIC_ACQUIRE) != CHANNELS) continue;
            check(one, n);
            release(one);
            more = 1;
        }
        sched_yield();
    }
    return 0;
}

static void late(void) {
    void *context = 0, *first, *others[SLOTS];
    init(&context, 9, &mask, 0, 1, 1, 0, 0);
    first = launch(context, 0, 1);
    struct slot *one = (struct slot *)((uintptr_t)first & -(uintptr_t)SLOT);
    __atomic_store_n(&one->state, 3, __ATOMIC_RELEASE);
    if (begin(context, first, 0, 7) != (void *)2 || control[10] != 1) fail("a channel began in what was given up");
    release(one);
    if (begin(context, first, 0, 7) != (void *)2 || control[10] != 2) fail("a channel began in a free slot");
    for (int n = 0; n < SLOTS; n++) others[n] = launch(context, 0, 2 + n);
    if (one->event[3] == 1 || !one->state) fail("the slot was not taken again");
    if (begin(context, first, 0, 7) != (void *)2 || control[10] != 3 || one->channels_begun) fail("a channel began in another's slot");
    uint64_t lost = control[3];
    if (launch(context, 0, 0) != (void *)2 || control[3] != lost + 1) fail("a slot in use was taken");
    for (int n = 0; n < SLOTS; n++)
        if (!begin(context, others[n], 63, 7)) fail("no channel");
    if (one->channels[63][0] != 7) fail("not the last channel");
}

int main(int count, char **words) {
    (void)count;
    static uint8_t code[4096];
    FILE *file = fopen(words[1], "rb");
    size_t size = fread(code, 1, sizeof code, file);
    void *here = control;
    memcpy(code + size - 8, &here, 8);
    uint8_t *base = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(base, code, size);
    __builtin___clear_cache((char *)base, (char *)base + size);
    init = (void *)(base + atoi(words[2])), start = (void *)(base + atoi(words[3])), stop = (void *)(base + atoi(words[4]));
    state = (void *)(base + atoi(words[5])), finalize = (void *)(base + atoi(words[6]));
    threads = atoi(words[7]), rounds = atol(words[8]);
    slots = mmap(0, SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control[0] = SLOTS, control[1] = (uintptr_t)slots, control[2] = SLOTS - 1, control[4] = 70;
    control[6] = (uintptr_t)mmap(0, ROWS * ROW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control[7] = ROWS, control[8] = (uintptr_t)clock_gettime;
    pthread_t ids[MOST], reader;
    running = 1;
    pthread_create(&reader, 0, read_all, 0);
    for (int t = 0; t < threads; t++) {
        seen[t] = calloc(rounds, 1);
        pthread_create(&ids[t], 0, work, (void *)(uintptr_t)t);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], 0);
    __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
    pthread_join(reader, 0);
    long came = 0, lost = control[3];
    for (int t = 0; t < threads; t++)
        for (long n = 0; n < rounds; n++) came += seen[t][n];
    if (came + lost != threads * rounds) fail("lost and not counted");
    if (mask != 70) fail("no mask");
    late();
    printf("came %ld lost %ld\n", came, lost);
    return 0;
}
