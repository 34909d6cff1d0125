/* Nothing but launches: calls cuLaunchKernel for a kernel of one integer parameter, one block of 32 threads. */
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

void storm(launch_t launch, void *function, int count) {
    int value = 0;
    void *arguments[] = {&value};
    for (int i = 0; i < count; i++) launch(function, 1, 1, 1, 32, 1, 1, 0, 0, arguments, 0);
}
