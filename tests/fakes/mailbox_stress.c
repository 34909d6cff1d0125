/* Runs the mailbox's machine code with many threads: stress CODE REQUESTED COMPLETED TAKE GIVE THREAD PRODUCERS ROUNDS
 *
 * Producers request a buffer, fill it with a pattern that only they know, and complete it; one reader takes it, checks
 * every word and gives it back. Prints what it counted; exits 1 on the first torn, lost or doubled buffer. The control
 * block is laid out as documented in gpusense/_capi/machine/mailbox_layout.py, written here anew. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS = 8, SCRAP = 2, SHIFT = 12, SIZE = 1 << SHIFT, CAP = 1024 };

typedef struct {
    uint64_t slots, total, shift, size, arena, arena_bytes, pad[2];
    uint64_t requested, completed, missed, foreign, pad_2[20];
    uint64_t state[CAP], thread[CAP], valid[CAP], cursor[CAP], kinds[64];
} control_t;

typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef int (*take_t)(uint64_t *);
typedef int (*give_t)(uint8_t *);
typedef uint64_t (*thread_t)(void);

static requested_t requested;
static completed_t completed;
static take_t take;
static give_t give;
static thread_t thread;
static control_t *control;
static unsigned long rounds;
static uint64_t sent, taken, refused;
static int running;

static void fail(const char *what) { fprintf(stderr, "%s\n", what); exit(1); }

static void *produce(void *argument) {
    uint64_t number = (uint64_t)(uintptr_t)argument << 32;
    uint8_t foreign[64];
    for (unsigned long round = 0; round < rounds; round++) {
        uint8_t *buffer = foreign;
        size_t size = 1, records = 1;
        requested(&buffer, &size, &records);
        if (records != 0) fail("max_records is not 0");
        if (!buffer) {
            if (size) fail("a size without a buffer");
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
            sched_yield();
            continue;
        }
        uint64_t slot = ((uintptr_t)buffer - control->arena) >> SHIFT;
        if (size != SIZE) fail("wrong size");
        size_t words = 2 + round % (SIZE / 8 - 2);
        ((uint64_t *)buffer)[0] = thread();
        for (size_t i = 1; i < words; i++) ((uint64_t *)buffer)[i] = number + round + i;
        if (slot < SLOTS) __atomic_fetch_add(&sent, 1, __ATOMIC_RELAXED);
        if (round % 64 == 0) completed(0, 0, foreign, 64, 64);
        completed(0, 7, buffer, SIZE, words * 8);
    }
    return 0;
}

static int read_one(void) {
    uint64_t out[3];
    if (!take(out)) return 0;
    uint64_t *words = (uint64_t *)(uintptr_t)out[0];
    if (out[1] < 16 || out[1] > SIZE) fail("impossible length");
    if (out[2] != words[0]) fail("not the thread that asked");
    for (size_t i = 2; i < out[1] / 8; i++)
        if (words[i] != words[1] + i - 1) fail("torn buffer");
    memset(words, 0xee, SIZE);
    if (!give((uint8_t *)words)) fail("a taken buffer was not taken back");
    if (give((uint8_t *)words)) fail("a buffer was taken back twice");
    taken++;
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
    if (count != 10) fail("arguments");
    unsigned long at[5], producers = strtoul(argument[7], 0, 0), scrap = strtoul(argument[9], 0, 0) ? SCRAP : 0;
    rounds = strtoul(argument[8], 0, 0);
    for (int i = 0; i < 5; i++) at[i] = strtoul(argument[2 + i], 0, 0);
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *arena = mmap(0, (SLOTS + SCRAP) * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *file = fopen(argument[1], "rb");
    if (!file || fread(code, 1, 4096, file) < 64) fail("no code");
    memcpy(code, &control, 8);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC)) fail("mprotect");
    __builtin___clear_cache((char *)code, (char *)code + 4096);
    requested = (requested_t)(code + at[0]), completed = (completed_t)(code + at[1]);
    take = (take_t)(code + at[2]), give = (give_t)(code + at[3]), thread = (thread_t)(code + at[4]);

    /* As in a forked child: all zeros. */
    uint8_t *buffer = code;
    size_t size = 1, records = 1;
    uint64_t out[3];
    requested(&buffer, &size, &records);
    if (buffer || size || records) fail("a wiped control block lent a buffer");
    completed(0, 0, arena, SIZE, 64);
    if (take(out) || give(arena) || control->foreign != 1) fail("a wiped control block took a buffer");
    memset(control, 0, sizeof *control);

    control->shift = SHIFT, control->size = SIZE, control->arena = (uintptr_t)arena;
    control->arena_bytes = (SLOTS + scrap) * SIZE;
    for (unsigned long i = 0; i < SLOTS + scrap; i++) control->state[i] = 1;
    control->total = SLOTS + scrap, control->slots = SLOTS, running = 1;
    pthread_t reader, threads[64];
    pthread_create(&reader, 0, consume, 0);
    for (unsigned long i = 0; i < producers; i++) pthread_create(threads + i, 0, produce, (void *)(i + 1));
    for (unsigned long i = 0; i < producers; i++) pthread_join(threads[i], 0);
    __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
    pthread_join(reader, 0);
    if (taken != sent) fail("lost or doubled buffers");
    if (control->requested != producers * rounds) fail("requests miscounted");
    if (!scrap && control->missed != refused) fail("misses miscounted");
    if (scrap && refused) fail("refused in spite of scrap buffers");
    for (int i = 0; i < SLOTS; i++)
        if (control->state[i] != 1) fail("a buffer is not free at the end");
    printf("sent %lu missed %lu foreign %lu\n", (unsigned long)sent, (unsigned long)control->missed,
           (unsigned long)control->foreign);
    return 0;
}
