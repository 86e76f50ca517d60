/* The guard of the gate: a thread of each best-effort process.
 *
 * A latency-critical process counts its launch and then closes all gates; the guard opens its gate
 * and then looks whether a launch is there. All of this is sequentially consistent: either the guard
 * sees the launch, or the launch closes the gate after it was opened. The guard never calls the
 * driver, in which another thread may wait for the gate to open. When the process leaves the
 * scheduler it keeps the gate open for good. */
#pragma once
#include "levels.h"
#include "process.h"
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define SPIN_S 20e-6     /* so long an open gate is looked at before the guard sleeps */
#define CLOSED_S 1e-3    /* after so long a closed gate is looked at less often */
#define LOOK_S 1e-3      /* between looks for the scheduler while the gate is closed */
#define DOZE_S 1.0       /* ... while it is open */
#define HUNG_S 20.0      /* a scheduler that is well ignores a launch that does not end sooner */
#define STARVED_S 1.0    /* at least so often all kernels are let in, whatever the gaps were */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void nap(double seconds) {
    struct timespec t = {.tv_nsec = (long)(1e9 * seconds)};
    nanosleep(&t, NULL);
}

/* Sleep while the gate is at a level, at most for a time. */
static void doze(struct gate *gate, unsigned level, double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    gate->sleepers++;
    syscall(SYS_futex, &gate->level, FUTEX_WAIT, level, &t, NULL, 0);
    gate->sleepers--;
}

static void wake(struct gate *gate) {
    if (gate->sleepers) syscall(SYS_futex, &gate->level, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Close the gates of all best-effort processes. The caller has counted its launch. */
static void close_gates(void) {
    for (uint64_t left = self.memory->header.best_effort; left; left &= left - 1) {
        struct gate *gate = &self.memory->gates[__builtin_ctzll(left)];
        if (gate->level && atomic_exchange(&gate->level, 0)) wake(gate);
    }
}

/* Return whether a latency-critical launch is there, and how many began and ended so far. */
static int critical_runs(unsigned *progress) {
    int runs = 0;
    *progress = 0;
    for (uint64_t left = self.memory->header.critical; left; left &= left - 1) {
        const struct area *area = &self.memory->areas[__builtin_ctzll(left)];
        for (unsigned k = 0; k < area->lanes_used && k < LANES; k++) {
            unsigned launched = area->lanes[k].launched, ended = area->lanes[k].ended;
            runs |= launched != ended && launched != area->lanes[k].ignored;
            *progress += launched + ended;
        }
    }
    return runs;
}

/* A thread of the library takes no signals of the job, and wakes on time. */
static void begin_thread(const char *name) {
    prctl(PR_SET_NAME, name, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}

static int start_thread(void *(*work)(void *)) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = !pthread_create(&thread, NULL, work, NULL) && !pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void raise_level(struct gate *gate, unsigned level) {
    if (gate->level == level) return;
    gate->level = level;
}

/* Whether the gate is the one that is shared with the scheduler now. */
static int guarded(const struct gate *gate) { return self.joined > 0 && self.gate == gate; }

/* Wait until the gate is no longer at a level, or a time has come. */
static void await_level(struct gate *gate, unsigned level, double until) {
    double since = now();
    for (double t = since; t < until && gate->level == level && guarded(gate); t = now())
        if (t - since < SPIN_S)
            relax();
        else
            doze(gate, level, until - t < DOZE_S ? until - t : DOZE_S);
}

static void *guard(void *nothing) {
    struct gate *gate = self.gate;
    struct gaps gaps;
    double idle_since = 0, closed_since = now(), looked = 0, changed = now(), full = now(), changes_us;
    unsigned progress, before = 0;
    begin_thread("dovetail-guard");
    forget_gaps(&gaps);
    while (guarded(gate)) {
        int runs = critical_runs(&progress);
        double t = now();
        if (progress != before || !runs) changed = t, before = progress;
        if (idle_since && (runs || !gate->level)) {
            add_gap(&gaps, 1e6 * (t - idle_since));
            idle_since = 0, closed_since = t;
        }
        if (t - looked > LOOK_S) {
            looked = t;
            if (!alive()) break;
            if (t - changed > HUNG_S) lose("the scheduler hangs");
        }
        if (!runs) {
            if (!idle_since) idle_since = t;
            unsigned level = level_after(&gaps, 1e6 * (t - idle_since), &changes_us);
            if (t - full > STARVED_S) level = TOP, changes_us = 0;
            raise_level(gate, level);
            if (!critical_runs(&progress)) {
                wake(gate);
                if (renew_levels(&gaps)) continue;
                await_level(gate, level, changes_us > 0 ? idle_since + 1e-6 * changes_us : t + DOZE_S);
                if (level == TOP) full = now();
                continue;
            }
        }
        if (gate->level) gate->level = 0;
        if (t - closed_since < CLOSED_S)
            relax();
        else
            nap(5e-6);
    }
    for (;; doze(gate, TOP, DOZE_S)) raise_level(gate, TOP), wake(gate);
    return nothing;
}
