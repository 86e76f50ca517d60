/* A STAND-IN for libcuda.so.1 with a real clock and without a GPU: no figure of it is one of a GPU.
 *
 * Streams are threads. A kernel is a handle that is its time in tenths of a microsecond. Operations
 * of a stream follow each other on a clock of the stream: what its thread does late, because the
 * machine is busy, takes no longer thereby; only waits are looked at when the thread gets to them.
 * Waits, writes and events take the microsecond that the library assumes of a GPU. Kernels of
 * different streams and processes do not slow each other.
 *
 * STAND_IN_LOG names a file for what happened: kind, begin and end on the stream's clock, and when its
 * thread really got there (of a wait: when it first looked).
 * With STAND_IN_WATCH, a thread that has written a word looks until all gates of the memory are open.
 * Threads spin while a kernel runs, or with STAND_IN_SLEEPS sleep, and are then late. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define OPERATION_S 1e-6
#define QUEUE 1024
#define STREAMS 8
#define MOST 4000000
#define PAGE 65536 /* of the memory that is shared with the scheduler: process.h */

typedef uintptr_t W;
enum kind { KERNEL, WAIT, WRITE, EVENT, NOTE, OPENED };
struct entry {
    double kind, since, until, real;
};
struct stream {
    pthread_mutex_t lock;
    W key;
    atomic_ulong in, out;
    struct operation {
        enum kind kind;
        W at;
        uint32_t value;
        double put;
    } queue[QUEUE];
};
static struct stream streams[STREAMS];
static struct entry *entries;
static atomic_ulong entries_used;
static double events[4096];
static atomic_uint events_used;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int watches, sleeps;
static char *shared;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void note(enum kind kind, double since, double until, double real) {
    unsigned long at = entries_used++;
    if (at < MOST) entries[at] = (struct entry){kind, since, until, real};
}

static void nap(double seconds) {
    struct timespec t = {.tv_nsec = (long)(1e9 * seconds)};
    nanosleep(&t, NULL);
}

static void await(double until) {
    if (sleeps && until > now()) nap(until - now());
    while (now() < until) {}
}

/* Find the memory that is shared with the scheduler: its header comes first. */
static char *find_shared(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long begin = 0;
    while (maps && !begin && fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:dovetail")) sscanf(line, "%lx", &begin);
    if (maps) fclose(maps);
    return (char *)begin;
}

/* Look until the gates of all best-effort processes are open. */
static void watch_gates(double since) {
    if (!watches) return;
    if (!shared) shared = find_shared();
    if (!shared) return;
    uint64_t joined = *(_Atomic uint64_t *)(shared + 8);
    for (; joined && now() < since + 5e-3; joined &= joined - 1)
        while (!*(atomic_uint *)(shared + PAGE * (65 + __builtin_ctzll(joined))) && now() < since + 5e-3) {}
    note(OPENED, since, now(), now());
}

__attribute__((constructor)) static void begin(void) {
    entries = malloc(MOST * sizeof *entries);
    watches = getenv("STAND_IN_WATCH") != NULL, sleeps = getenv("STAND_IN_SLEEPS") != NULL;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("STAND_IN_LOG");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fwrite(entries, sizeof *entries, entries_used < MOST ? entries_used : MOST, file);
    fclose(file);
}

static void *run(void *given) {
    struct stream *s = given;
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (double idle = now(), clock = 0;;) {
        if (s->out == s->in) {
            nap(now() - idle > 5e-3 ? 200e-6 : sleeps ? 30e-6 : 5e-6);
            continue;
        }
        const struct operation *o = &s->queue[s->out % QUEUE];
        double since = clock > o->put ? clock : o->put;
        clock = since + (o->kind == KERNEL ? 1e-7 * (double)o->at : OPERATION_S);
        await(clock);
        double real = now();
        if (o->kind == WAIT)
            while ((int32_t)(*(atomic_uint *)o->at - o->value) < 0) clock = now();
        if (o->kind == WRITE) {
            *(atomic_uint *)o->at = o->value;
            if (s->in - s->out == 1) watch_gates(now());
        }
        if (o->kind == EVENT) events[o->at] = clock;
        note(o->kind, since, clock, real);
        idle = now();
        s->out++;
    }
    return NULL;
}

static int put(W key, enum kind kind, W at, uint32_t value) {
    struct stream *s = NULL;
    for (int k = 0; k < STREAMS && !s; k++)
        if (streams[k].key == key + 1) s = &streams[k];
    if (!s) {
        pthread_mutex_lock(&starting);
        for (int k = 0; k < STREAMS && !s; k++)
            if (streams[k].key == key + 1 || !streams[k].key) s = &streams[k];
        if (s && !s->key) {
            pthread_t thread;
            pthread_mutex_init(&s->lock, NULL);
            s->key = key + 1;
            pthread_create(&thread, NULL, run, s);
        }
        pthread_mutex_unlock(&starting);
        if (!s) return 2;
    }
    pthread_mutex_lock(&s->lock);
    while (s->in - s->out == QUEUE) nap(20e-6);
    s->queue[s->in % QUEUE] = (struct operation){kind, at, value, now()};
    s->in++;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* What a program calls beside the driver's functions. */
void stand_in_note(double since) { note(NOTE, since, now(), now()); }

static int busy(W key) {
    for (int k = 0; k < STREAMS; k++)
        if (streams[k].key == key + 1) return streams[k].in != streams[k].out;
    return 0;
}

/* The driver's functions; the others are not supported. */
static int unsupported(void) { return 801; }
static int nothing(void) { return 0; }
static int context(W *to) { return *to = 0x1000, 0; }
static int zero(int *to) { return *to = 0, 0; }
static int attribute(int *to, int which) { return *to = which == 16 ? 132 : 65536, 0; }
static int same(W *to, W at) { return *to = at, 0; }
static int memory(W *to, size_t size) { return *to = (W)calloc(1, size), 0; }
static int new_stream(W *to) { static atomic_uint used = 100; return *to = used++, 0; }
static int new_event(W *to) { return *to = events_used++ % 4096, 0; }
static int record(W event, W stream) { return events[event] = 0, put(stream, EVENT, event, 0); }
static int event_query(W event) { return events[event] ? 0 : 600; }
static int elapsed(float *to, W since, W until) { return *to = (float)(1e3 * (events[until] - events[since])), 0; }
static int writes(W stream, W at, uint32_t value) { return put(stream, WRITE, at, value); }
static int waits(W stream, W at, uint32_t value) { return put(stream, WAIT, at, value); }
static int query(W stream) { return busy(stream) ? 600 : 0; }
static int capturing(W stream, int *to) { return *to = 0, 0; }
int cuLaunchKernel(W f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, W stream) {
    return put(stream, KERNEL, f, 0);
}
int cuStreamSynchronize(W stream) {
    while (busy(stream)) nap(50e-6);
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    static const struct {
        const char *name;
        void *call;
    } known[] = {{"cuInit", nothing}, {"cuCtxGetCurrent", context}, {"cuCtxSetCurrent", nothing}, {"cuCtxGetDevice", zero},
                 {"cuDeviceGetAttribute", attribute}, {"cuMemAlloc", memory}, {"cuMemHostRegister", nothing},
                 {"cuMemHostGetDevicePointer", same}, {"cuStreamCreate", new_stream}, {"cuEventCreate", new_event},
                 {"cuEventRecord", record}, {"cuEventQuery", event_query}, {"cuEventElapsedTime", elapsed},
                 {"cuStreamWriteValue32", writes}, {"cuStreamWaitValue32", waits}, {"cuStreamQuery", query},
                 {"cuStreamIsCapturing", capturing}, {"cuThreadExchangeStreamCaptureMode", nothing},
                 {"cuLaunchKernel", cuLaunchKernel}, {"cuGetProcAddress", cuGetProcAddress_v2}};
    *found = unsupported;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (!strcmp(known[k].name, name)) *found = known[k].call;
    if (status) *status = 0;
    return 0;
}
