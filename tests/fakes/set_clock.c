/* Preloaded: the wall clock of this process, which set_clock() moves by so many nanoseconds. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long moved;

void set_clock(long long by_ns) { __atomic_add_fetch(&moved, by_ns, __ATOMIC_SEQ_CST); }

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (syscall(SYS_clock_gettime, clock, time)) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        long long ns = time->tv_sec * 1000000000LL + time->tv_nsec + __atomic_load_n(&moved, __ATOMIC_SEQ_CST);
        time->tv_sec = ns / 1000000000LL;
        time->tv_nsec = ns % 1000000000LL;
    }
    return 0;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
