/* Runs the machine code that notes the lines of calls against a stand-in for CPython: calls CODE ROUNDS
 *
 * First one call of each shape, then many threads that call while one reads the ring. Exits 1, and says why, at the first
 * row that is not as it must be. The control block is laid out as documented in gpusense/backends/cupti/sync_lines/code.py, written
 * here anew. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 4, DEPTH = 40, ROW = 1 + 2 * DEPTH, NUMBERS = 1024, MORE = 65536 };

typedef struct frame {
    uint64_t code;
    int line;
    struct frame *back;
    long references;
} frame_t;

typedef struct {
    uint64_t armed, inside, last, foreign, lost, noted, head, tail, room;
    uint64_t *ring;
    uint64_t interpreter;
    void *functions[12];
    uint64_t stops[256];
} control_t;

typedef struct { uint32_t site; const char *name; void *rest[5]; uint64_t *shared; uint32_t correlation; } call_t;
typedef void (*note_t)(control_t *, uint32_t, uint32_t, const call_t *);

static note_t note;
static control_t *control;
static uint64_t ring[MORE];
static pthread_mutex_t gil = PTHREAD_MUTEX_INITIALIZER;
static int collecting = 1;
static long code_references, running = 1;
static __thread int depth, has_state;
static __thread uint64_t interpreter;
static __thread frame_t *top;

static void fail(const char *what) { fprintf(stderr, "%s\n", what); exit(1); }
static void with_gil(void) { if (!depth) fail("CPython was called without the GIL"); }

static void *thread_state(void) { return has_state ? &interpreter : NULL; }
static uint64_t interpreter_of(uint64_t *state) { return *state; }
static int take(void) {
    if (!control->inside) fail("a thread waits for the GIL and is not counted");
    if (depth++ == 0) pthread_mutex_lock(&gil);
    return depth > 1 ? 0 : 1;
}
static void give(int state) {
    if (state != (depth > 1 ? 0 : 1)) fail("the GIL is given back in another state than it was taken in");
    if (--depth == 0) pthread_mutex_unlock(&gil);
}
static int collect_not(void) { with_gil(); int before = collecting; collecting = 0; return before; }
static int collect(void) { with_gil(); collecting = 1; return 0; }
static frame_t *frame(void) { with_gil(); if (collecting) fail("the collector is on"); return top; }
static frame_t *back(frame_t *of) { with_gil(); if (of->back) of->back->references++; return of->back; }
static uint64_t code(frame_t *of) { with_gil(); code_references++; return of->code; }
static int line(frame_t *of) { with_gil(); return of->line; }
static void increase(frame_t *of) { with_gil(); of->references++; }
static void decrease(frame_t *of) { with_gil(); of->references--; }

static void call(uint32_t site, uint32_t correlation) {
    call_t facts = {.site = site, .name = "cudaStreamSynchronize", .correlation = correlation};
    note(control, 2, 131, &facts);
}

/* A chain of ``count`` frames whose codes and lines are numbers from ``first`` on. */
static frame_t *chain(int count, uint64_t first) {
    frame_t *frames = calloc((size_t)count + 1, sizeof *frames);
    for (int i = 0; i < count; i++)
        frames[i] = (frame_t){.code = (first + (uint64_t)i) << 5, .line = (int)first + i,
                              .back = i + 1 < count ? frames + i + 1 : NULL, .references = 1};
    return count ? frames : NULL;
}

static uint64_t at(uint64_t place) { return ring[place & (control->room - 1)]; }

/* The row at the tail has ``count`` frames from ``first`` on; it is taken out. */
static void expect(uint32_t correlation, int count, uint64_t first) {
    uint64_t tail = control->tail;
    if (control->head - tail < 1 + 2 * (uint64_t)count) fail("no whole row");
    if (at(tail) != ((uint64_t)count << 32 | correlation)) fail("wrong head of a row");
    for (int i = 0; i < count; i++)
        if (at(tail + 1 + 2 * i) != (first + (uint64_t)i) << 5 || at(tail + 2 + 2 * i) != first + (uint64_t)i)
            fail("wrong frame");
    code_references -= count;
    control->tail = tail + 1 + 2 * (uint64_t)count;
}

static void nothing(const char *when) {
    if (control->head != control->tail) fail(when);
}

static void shapes(void) {
    has_state = 1, interpreter = 7;
    top = chain(3, 100);
    call(0, 1), nothing("noted while not armed");
    control->armed = 1;
    call(1, 2), nothing("noted a call that returns");
    call(0, 3), expect(3, 3, 100), nothing("more than one row");
    call(0, 3), nothing("noted the driver's part of a runtime call");
    call(0, 4), expect(4, 3, 100);
    depth = 1, pthread_mutex_lock(&gil);
    call(0, 5), expect(5, 3, 100);
    if (depth != 1) fail("the GIL was taken from its owner");
    depth = 0, pthread_mutex_unlock(&gil);
    for (frame_t *one = top; one; one = one->back)
        if (one->references != 1) fail("references of frames are not balanced");
    collecting = 0;
    call(0, 6), expect(6, 3, 100);
    if (collecting) fail("the collector was switched on");
    collecting = 1;
    call(0, 0xffffffffu), expect(0xffffffffu, 3, 100);

    top = NULL;
    call(0, 7), expect(7, 0, 0);
    top = chain(DEPTH, 200);
    call(0, 8), expect(8, DEPTH, 200);
    top = chain(DEPTH + 9, 300);
    call(0, 9), expect(9, DEPTH, 300);
    for (frame_t *one = top; one; one = one->back)
        if (one->references != 1) fail("references of deep frames are not balanced");
    control->stops[302 & 255] = 302 << 5;
    call(0, 10), expect(10, 3, 300);
    control->stops[302 & 255] = 558 << 5; /* another code object at the same place */
    call(0, 11), expect(11, DEPTH, 300);

    has_state = 0;
    call(0, 12), nothing("noted a thread without Python");
    has_state = 1, interpreter = 8;
    call(0, 13), nothing("noted a thread of another interpreter");
    interpreter = 7;
    if (control->foreign != 2) fail("foreign threads are miscounted");
    top = chain(DEPTH, 400);
    int fit = 0;
    for (uint32_t i = 0; i < 40; i++) call(0, 1000 + i);
    while (control->head != control->tail) expect(1000 + (uint32_t)fit++, DEPTH, 400);
    if (fit != (NUMBERS - ROW) / ROW + 1 || control->lost != 40 - (uint64_t)fit) fail("a full ring is miscounted");
    call(0, 2000), expect(2000, DEPTH, 400);
    if (control->inside) fail("a thread is still inside");
    if (code_references) fail("references of code objects are not balanced");
    if (control->noted != 11 + (uint64_t)fit) fail("calls are miscounted");
}

static unsigned long rounds;
static uint64_t sent;

static void *work(void *argument) {
    uint64_t number = (uint64_t)(uintptr_t)argument;
    has_state = 1, interpreter = 7;
    int count = 1 + (int)number * 5;
    top = chain(count, number * 1000);
    for (unsigned long i = 0; i < rounds; i++) {
        call(0, (uint32_t)(number << 24 | i));
        if (i % 32 == 0) sched_yield();
    }
    __atomic_add_fetch(&sent, rounds, __ATOMIC_RELAXED);
    for (frame_t *one = top; one; one = one->back)
        if (one->references != 1) fail("references of frames are not balanced");
    return NULL;
}

static uint64_t seen;

static void read_all(void) {
    pthread_mutex_lock(&gil);
    while (control->head != control->tail) {
        uint64_t head = at(control->tail), number = (head & 0xffffffff) >> 24;
        if (number < 1 || number > THREADS) fail("a torn row");
        expect((uint32_t)head, 1 + (int)number * 5, number * 1000);
        seen++;
    }
    pthread_mutex_unlock(&gil);
}

static void *reader(void *unused) {
    (void)unused;
    while (__atomic_load_n(&running, __ATOMIC_RELAXED)) read_all(), sched_yield();
    return NULL;
}

int main(int count, char **argument) {
    if (count != 3) fail("arguments: CODE ROUNDS");
    rounds = strtoul(argument[2], 0, 0);
    FILE *file = fopen(argument[1], "rb");
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!file || page == MAP_FAILED || !fread(page, 1, 4096, file)) fail("no code");
    if (mprotect(page, 4096, PROT_READ | PROT_EXEC)) fail("no executable memory");
    __builtin___clear_cache((char *)page, (char *)page + 4096);
    memcpy(&note, &page, sizeof note);
    control_t block = {
        .room = NUMBERS, .ring = ring, .interpreter = 7,
        .functions = {thread_state, interpreter_of, take, give, collect_not, collect, frame, back, code, line, increase,
                      decrease},
    };
    control = &block;
    shapes();
    control->lost = control->noted = 0, control->room = MORE;
    pthread_t threads[THREADS], reading;
    pthread_create(&reading, NULL, reader, NULL);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(threads + i, NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    __atomic_store_n(&running, 0, __ATOMIC_RELAXED);
    pthread_join(reading, NULL);
    read_all();
    if (seen + control->lost != sent || seen != control->noted) fail("calls of many threads are miscounted");
    if (control->inside || code_references) fail("something is left over");
    printf("seen %lu lost %lu\n", (unsigned long)seen, (unsigned long)control->lost);
    return 0;
}
