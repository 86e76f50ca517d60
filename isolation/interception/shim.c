/* Interception of a job's kernel launches: loaded by LD_PRELOAD into the processes of a job.
 *
 * Calls of the CUDA driver are found by dlsym and cuGetProcAddress, or are linked; all three lead
 * here. A process joins the scheduler of its GPU by a socket and shares memory with it.
 *
 * - A latency-critical process counts each launch in the memory and closes the gates of all
 *   best-effort processes; the GPU itself writes when the launch has ended (cuStreamWriteValue32).
 *   It never waits (streams.h).
 * - A best-effort process puts its launches into their streams at once. Before them, the GPU waits
 *   for the process's gate, a word in the memory (cuStreamWaitValue32), so that order, events and
 *   copies are the driver's own (parts.h). A thread, the guard, opens the gate when no
 *   latency-critical launch is there (guard.h). Kernels with PTX may run in slices, or with workers
 *   that a flag stops (flag.h): the scheduler prepares these forms (modules.h), and each is first
 *   tried on copies of its memory (copies.h). What is in flight when the gate closes is bounded by
 *   times that events have measured (times.h).
 *
 * While no latency-critical process has joined, all launches go on as they are.
 *
 * It fails open: whatever is unknown, refused or broken is launched whole, and counted in the
 * memory. The gate never stays closed: when the scheduler ends or hangs, it is opened for good.
 *
 * Layout and messages are those of server.py.
 */
#define _GNU_SOURCE
#include "parts.h"
#include <fcntl.h>

#define EXPORT __attribute__((visibility("default")))

/* A launch, and the loading of a module, use what is shared with the scheduler while they hold this. */
static pthread_rwlock_t using = PTHREAD_RWLOCK_INITIALIZER;

/* A forked process begins anew, as a client of its own. */
static void begin_anew(void) {
    if (self.socket >= 0) close(self.socket);
    if (self.area) munmap(self.memory, sizeof *self.memory);
    memset(&self, 0, sizeof self);
    memset(&own, 0, sizeof own);
    memset(pairs, 0, sizeof pairs);
    self.socket = -1;
    pairs_used = 0;
    functions = modules = (struct map){0};
    kept.lane = -1;
    joining = talking = tables = shaping = timing = checking = raising = starting = finding =
        (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    using = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, begin_anew); }

/* The forms of kernels are known by numbers of the scheduler that made them: from now on they are launched whole. */
static void forget_forms(void) {
    pthread_mutex_lock(&tables);
    pthread_mutex_lock(&shaping);
    for (size_t m = 0; m < modules.size; m++) {
        struct module *module = modules.entries[m].value;
        for (uint32_t k = 0; module && k < module->count; k++) module->kernels[k].forms = 0;
    }
    pthread_mutex_unlock(&shaping);
    pthread_mutex_unlock(&tables);
}

/* Join the scheduler in place of one that has ended, if there is one. What the last one shared stays
 * as it is, as the GPU may still wait for words of it, or write there. */
static void join_again(void) {
    if (now() < self.looked_s + ANOTHER_S || pthread_rwlock_trywrlock(&using)) return;
    pthread_mutex_lock(&talking);
    if (self.joined == -2 && now() >= self.looked_s + ANOTHER_S) {
        self.looked_s = now();
        close(self.socket);
        const char *path = getenv("DOVETAIL_ISOLATION_SOCKET");
        self.socket = -1;
        if (path && hello(path, (uint32_t)self.critical, ANOTHER_REPLY_S)) {
            drop_samples(NULL);
            forget_forms();
            kept.lane = -1;
            /* Workers may still count in the words of their old lanes. */
            own.words = 0;
            own.guarded = self.ready = 0;
            self.joined = 1;
            fprintf(stderr, "dovetail: kernels of process %d are isolated again\n", (int)getpid());
        }
    }
    pthread_mutex_unlock(&talking);
    pthread_rwlock_unlock(&using);
}

/* A latency-critical process asks nothing of its scheduler, and so has to look whether it has ended. */
static void look_for_scheduler(void) {
    double t = now();
    if (t < self.looked_s + ANOTHER_S) return;
    self.looked_s = t;
    alive();
}

static CUresult governed_launch(const struct launch *l) {
    int capturing = 0;
    if (!governed()) {
        if (self.area) count(ALONE);
        return original(l);
    }
    if (self.critical) look_for_scheduler();
    if (!on_gpu()) return original(l);
    if (driver.cuStreamIsCapturing(l->c.stream, &capturing) || capturing) return count(CAPTURED), original(l);
    return self.critical ? announced(l) : best_effort(l);
}

static CUresult launch(const struct launch *l) {
    need_driver();
    if (self.joined == -2) join_again();
    pthread_rwlock_rdlock(&using);
    CUresult result = governed_launch(l);
    pthread_rwlock_unlock(&using);
    return result;
}

/* What callers get instead of the driver's functions. Those with _ptsz take the per-thread default
 * stream for 0. */

#define BOTH(name, parameters, stream, ...)                                                        \
    EXPORT CUresult name parameters { Handle on = stream; return launch(&(struct launch)__VA_ARGS__); } \
    EXPORT CUresult name##_ptsz parameters {                                                       \
        Handle on = stream ? stream : (Handle)2;                                                   \
        return launch(&(struct launch)__VA_ARGS__);                                                \
    }

#define SIZES unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared
BOTH(cuLaunchKernel, (Handle f, SIZES, Handle stream, void **arguments, void **extra), stream,
     {PLAIN, f, {{x, y, z}, {bx, by, bz}, shared, on, NULL, 0}, arguments, extra})
BOTH(cuLaunchCooperativeKernel, (Handle f, SIZES, Handle stream, void **arguments), stream,
     {TOGETHER, f, {{x, y, z}, {bx, by, bz}, shared, on, NULL, 0}, arguments, NULL})
BOTH(cuGraphLaunch, (Handle graph, Handle stream), stream, {OF_GRAPH, graph, {.stream = on}, NULL, NULL})
BOTH(cuLaunchKernelEx, (const struct config *c, Handle f, void **arguments, void **extra), c->stream,
     {EXTENDED, f, {{c->grid[0], c->grid[1], c->grid[2]}, {c->block[0], c->block[1], c->block[2]}, c->shared, on,
      c->attributes, c->count}, arguments, extra})

#define AFTER(name, parameters, arguments, action)                                                 \
    EXPORT CUresult name parameters {                                                              \
        need_driver();                                                                             \
        CUresult result = driver.name arguments;                                                   \
        if (!result) action;                                                                       \
        return result;                                                                             \
    }

static void has_loaded(Handle handle, const void *image) {
    pthread_rwlock_rdlock(&using);
    loaded(handle, image);
    pthread_rwlock_unlock(&using);
}

static void loaded_from(Handle handle, const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    char *image = size > 15 ? calloc(1, (size_t)size + 1) : NULL;
    if (image && pread(file, image, (size_t)size, 0) == size) has_loaded(handle, image);
    free(image);
    if (file >= 0) close(file);
}

/* A module or library is to be unloaded: forget its kernels, whose handles others may be given. */
static void forget(Handle handle) {
    struct module *module = get(&modules, handle);
    if (module) drop_samples(module);
    pthread_mutex_lock(&tables);
    for (size_t k = 0; k < functions.size; k++) {
        struct kernel *of = functions.entries[k].value;
        if (of && (module ? of->module == module : of->owner == handle)) functions.entries[k].value = NULL;
    }
    for (size_t k = 0; module && k < modules.size; k++)
        if (modules.entries[k].value == module) modules.entries[k].value = NULL;
    pthread_mutex_unlock(&tables);
    if (!module) return;
    driver.cuLibraryUnload(module->forms);
    for (uint32_t k = 0; k < module->count; k++) {
        for (struct shape *s = module->kernels[k].shapes, *next; s; s = next) next = s->next, free(s);
        free(module->kernels[k].name);
    }
    free(module->kernels);
    free(module);
}

/* Once it is unloaded, another thread may be given its handle. */
#define BEFORE(name, handle)                                                                       \
    EXPORT CUresult name(Handle handle) {                                                          \
        need_driver();                                                                             \
        forget(handle);                                                                            \
        return driver.name(handle);                                                                \
    }

static void context_gone(void) {
    Handle handle;
    do {
        handle = NULL;
        pthread_mutex_lock(&tables);
        for (size_t k = 0; k < modules.size && !handle; k++)
            if (modules.entries[k].value) handle = modules.entries[k].key;
        pthread_mutex_unlock(&tables);
        if (handle) forget(handle);
    } while (handle);
    drop_samples(NULL);
    kept.lane = -1;
    own.words = 0, own.stream = NULL;
    /* Nothing runs any more that would say that it has ended. */
    for (unsigned k = 0; self.area && k < self.area->lanes_used; k++)
        self.area->lanes[k].ended = (unsigned)self.area->lanes[k].launched;
    self.ready = 0;
}

static int is_active(int device) {
    unsigned flags;
    int active = 0;
    return !driver.cuDevicePrimaryCtxGetState(device, &flags, &active) && active;
}

/* When the context of the launches ends, so does all that the library has in it. */
#define ENDS(name, parameters, given, ended)                                                       \
    EXPORT CUresult name parameters {                                                              \
        need_driver();                                                                             \
        pthread_mutex_lock(&raising);                                                              \
        CUresult result = driver.name(given);                                                      \
        if (!result && self.ready && (ended)) context_gone();                                      \
        pthread_mutex_unlock(&raising);                                                            \
        return result;                                                                             \
    }

#define LIBRARY int *a, void **b, unsigned n, int *c, void **d, unsigned m
AFTER(cuModuleLoad, (Handle *module, const char *path), (module, path), loaded_from(*module, path))
AFTER(cuModuleLoadData, (Handle *module, const void *image), (module, image), has_loaded(*module, image))
AFTER(cuModuleLoadDataEx, (Handle *module, const void *image, unsigned n, int *a, void **b), (module, image, n, a, b),
      has_loaded(*module, image))
AFTER(cuModuleLoadFatBinary, (Handle *module, const void *image), (module, image), has_loaded(*module, image))
BEFORE(cuModuleUnload, module)
AFTER(cuModuleGetFunction, (Handle *f, Handle module, const char *name), (f, module, name), got(*f, module, name))
AFTER(cuLibraryLoadData, (Handle *library, const void *image, LIBRARY), (library, image, a, b, n, c, d, m),
      has_loaded(*library, image))
AFTER(cuLibraryLoadFromFile, (Handle *library, const char *path, LIBRARY), (library, path, a, b, n, c, d, m),
      loaded_from(*library, path))
BEFORE(cuLibraryUnload, library)
AFTER(cuLibraryGetKernel, (Handle *f, Handle library, const char *name), (f, library, name), got(*f, library, name))
AFTER(cuLibraryGetModule, (Handle *module, Handle library), (module, library),
      put(&modules, *module, get(&modules, library)))
AFTER(cuKernelGetFunction, (Handle *f, Handle kernel), (f, kernel), put(&functions, *f, get(&functions, kernel)))
ENDS(cuCtxDestroy, (Handle context), context, context == self.context)
ENDS(cuDevicePrimaryCtxReset, (int device), device, device == self.device)
ENDS(cuDevicePrimaryCtxRelease, (int device), device, device == self.device && !is_active(device))

/* How callers find functions. */

EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);

static void *ours(const char *name, int per_thread) {
    static const struct {
        const char *name;
        void *plain, *per_thread;
    } all[] = {
#define LAUNCH(name) {#name, name, name##_ptsz}, {#name "_ptsz", name##_ptsz, name##_ptsz}
#define OTHER(name) {#name, name, name}
        LAUNCH(cuLaunchKernel), LAUNCH(cuLaunchKernelEx), LAUNCH(cuLaunchCooperativeKernel), LAUNCH(cuGraphLaunch),
        OTHER(cuModuleLoad), OTHER(cuModuleLoadData), OTHER(cuModuleLoadDataEx), OTHER(cuModuleLoadFatBinary),
        OTHER(cuModuleUnload), OTHER(cuModuleGetFunction), OTHER(cuLibraryLoadData), OTHER(cuLibraryLoadFromFile),
        OTHER(cuLibraryUnload), OTHER(cuLibraryGetKernel), OTHER(cuLibraryGetModule), OTHER(cuKernelGetFunction),
        OTHER(cuCtxDestroy), {"cuCtxDestroy_v2", cuCtxDestroy, cuCtxDestroy}, OTHER(cuDevicePrimaryCtxReset),
        {"cuDevicePrimaryCtxReset_v2", cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset},
        OTHER(cuDevicePrimaryCtxRelease),
        {"cuDevicePrimaryCtxRelease_v2", cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease}, OTHER(cuGetProcAddress),
        OTHER(cuGetProcAddress_v2)};
    if (name[0] != 'c' || name[1] != 'u' || !getenv("DOVETAIL_ISOLATION_SOCKET")) return NULL;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (!strcmp(all[k].name, name)) return per_thread ? all[k].per_thread : all[k].plain;
    return NULL;
}

static void exchange(const char *name, void **found, int version, uint64_t flags) {
    if (!strcmp(name, "cuGetProcAddress") && version >= 12000) name = "cuGetProcAddress_v2";
    void *instead = found && *found ? ours(name, (flags & 2) != 0) : NULL;
    if (instead) *found = instead;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    need_driver();
    CUresult result = driver_get ? driver_get(name, found, version, flags) : 500;
    if (!result) exchange(name, found, version, flags);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    need_driver();
    CUresult result = driver_get_2 ? driver_get_2(name, found, version, flags, status) : 500;
    if (!result) exchange(name, found, version, flags);
    return result;
}

static void *found_by(void *handle, const char *name) {
    void *instead = ours(name, 0);
    return instead && real_dlsym(handle, name) ? instead : NULL;
}

/* The last call has to be a jump: RTLD_NEXT asks where it was called from. */
EXPORT void *dlsym(void *handle, const char *name) {
    if (!real_dlsym) find_dlsym();
    if (handle != RTLD_NEXT && name[0] == 'c' && name[1] == 'u') {
        void *instead = found_by(handle, name);
        if (instead) return instead;
    }
    return real_dlsym(handle, name);
}
