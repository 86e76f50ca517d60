/* A program that launches kernels of given times by the stand-in driver, for `launches.py`.
 *
 * client SECONDS PAUSE_US KERNEL_US ...: launches all kernels again and again; with a pause above 0, it
 * waits for their end and then pauses for random times with that mean, so that each round is a request. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **given) {
    int (*launch)(uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **, void **);
    int (*synchronize)(uintptr_t);
    void (*note)(double);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    *(void **)&launch = dlsym(library, "cuLaunchKernel");
    *(void **)&synchronize = dlsym(library, "cuStreamSynchronize");
    *(void **)&note = dlsym(library, "stand_in_note");
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    srand48(1);
    double until = now() + atof(given[1]), pause_s = 1e-6 * atof(given[2]);
    while (now() < until) {
        double since = now();
        for (int k = 3; k < count; k++)
            if (launch((uintptr_t)(10 * atof(given[k]) + 0.5), 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL)) return 1;
        if (!pause_s) continue;
        synchronize(0);
        note(since);
        double pause = -pause_s * log(1 - drand48());
        struct timespec t = {.tv_sec = (time_t)pause, .tv_nsec = (long)(1e9 * (pause - (double)(time_t)pause))};
        nanosleep(&t, NULL);
    }
    synchronize(0);
    return 0;
}
