/* Interception of a job's kernel launches: loaded by LD_PRELOAD into the processes of a job.
 *
 * Calls of the CUDA driver are found by dlsym and cuGetProcAddress, or are linked; all three lead
 * here. A process joins the scheduler of its GPU by a socket and shares a page of memory with it.
 *
 * - A latency-critical process announces each launch in the page, and the GPU itself writes there
 *   when it has ended (cuStreamWriteValue32). It never waits.
 * - A best-effort process sends the PTX of its modules to the scheduler, which returns it with the
 *   slices and workers of its kernels; they are loaded beside the original. A launch runs in the
 *   calling thread, in parts, each begun only while no latency-critical launch is announced. Workers
 *   read the word `stop` of the page, which an announcement raises.
 *   Before the first use of a form, it and the whole kernel run on copies of their memory.
 *
 * While no latency-critical process has joined, all launches go on as they are.
 *
 * It fails open: whatever is unknown, refused or broken is launched as it is, and counted in the
 * page. No wait is without end: when the scheduler dies, or a launch does not end for PATIENCE_S,
 * what is left of a kernel is launched at once, behind what was launched.
 *
 * Layout and messages are those of server.py.
 */
#define _GNU_SOURCE
#include "modules.h"
#include <fcntl.h>

#define PATIENCE_S 2.0
#define MOST_SHAPES 256
#define MOST_LATE 3
#define STORAGE_BYTES 16
#define MOST_COPIED (512u << 20)
#define COMPARED (4u << 20)
#define EXPORT __attribute__((visibility("default")))

/* Make the page and the counters known to the GPU, at the first launch. */
static int on_gpu(void) {
    Handle context = NULL;
    if (driver.cuCtxGetCurrent(&context) || !context) return 0;
    if (self.ready) return context == self.context || (count(CONTEXT), 0);
    pthread_mutex_lock(&joining);
    if (!self.ready && self.joined > 0) {
        int mode = relaxed(2);
        CUresult held = driver.cuMemHostRegister(self.page, sizeof *self.page, 3);
        if ((held && held != 712) || driver.cuMemHostGetDevicePointer(&self.at, self.page, 0) ||
            driver.cuCtxGetDevice(&self.device) || driver.cuDeviceGetAttribute(&self.sms, 16, self.device) ||
            driver.cuDeviceGetAttribute(&self.most_shared, 97, self.device) ||
            (!self.critical && driver.cuMemAlloc(&self.counters, LANES * 4)))
            leave("the GPU cannot see the page that is shared with the scheduler");
        self.context = context;
        self.ready = self.joined > 0;
        relaxed(mode);
    }
    pthread_mutex_unlock(&joining);
    return self.ready;
}

/* Lanes: one a stream. Launched and ended are numbers of launches; equal when none is there. */

static struct slot {
    pthread_mutex_t lock;
    Handle stream;
} slots[LANES];
static __thread char own_stream;

static int idle(const struct lane *lane) { return lane->launched == lane->ended; }

/* Return the lane of a stream, locked; -1 if all are busy with others. */
static int lane_of(Handle stream) {
    Handle key = stream == (Handle)2 ? &own_stream : stream ? stream : (Handle)1;
    for (;;) {
        int found = -1;
        pthread_mutex_lock(&tables);
        int used = (int)self.area->lanes_used;
        for (int k = 0; k < used && found < 0; k++)
            if (slots[k].stream == key) found = k;
        if (found < 0 && used < LANES) {
            slots[used] = (struct slot){PTHREAD_MUTEX_INITIALIZER, key};
            found = used;
            self.area->lanes_used++;
        }
        for (int k = 0; k < used && found < 0; k++)
            if (!pthread_mutex_trylock(&slots[k].lock)) {
                if (idle(&self.area->lanes[k])) slots[k].stream = key, found = k;
                pthread_mutex_unlock(&slots[k].lock);
            }
        pthread_mutex_unlock(&tables);
        if (found < 0) return -1;
        pthread_mutex_lock(&slots[found].lock);
        if (slots[found].stream == key) return found;
        pthread_mutex_unlock(&slots[found].lock);
    }
}

/* Have the GPU write that all launches of a lane have ended, when the stream gets there. */
static CUresult mark(int lane, Handle stream) {
    Address place = self.at + (Address)((char *)&self.area->lanes[lane].ended - (char *)self.page);
    return driver.cuStreamWriteValue32(stream, place, self.area->lanes[lane].launched, 0);
}

/* Launches. */

struct launch {
    enum { PLAIN, EXTENDED, TOGETHER, OF_GRAPH } call;
    Handle f;
    struct config c;
    void **arguments, **extra;
};

static CUresult original(const struct launch *l) {
    const struct config *c = &l->c;
    switch (l->call) {
    case EXTENDED: return driver.cuLaunchKernelEx(c, l->f, l->arguments, l->extra);
    case OF_GRAPH: return driver.cuGraphLaunch(l->f, c->stream);
    case TOGETHER:
        return driver.cuLaunchCooperativeKernel(l->f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                                                c->block[2], c->shared, c->stream, l->arguments);
    default:
        return driver.cuLaunchKernel(l->f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                                     c->shared, c->stream, l->arguments, l->extra);
    }
}

static CUresult announced(const struct launch *l) {
    int lane = lane_of(l->c.stream);
    if (lane < 0) return count(UNANNOUNCED), original(l);
    struct lane *of = &self.area->lanes[lane];
    of->launched++;
    self.page->stop = 1;
    CUresult result = original(l);
    if (result || mark(lane, l->c.stream)) {
        of->launched--;
        if (!result) leave("the GPU does not write to the page");
    } else
        count(ANNOUNCED);
    pthread_mutex_unlock(&slots[lane].lock);
    return result;
}

static int critical_waits(void) {
    for (uint64_t left = self.page->critical; left; left &= left - 1) {
        const struct area *area = &self.page->areas[__builtin_ctzll(left)];
        for (unsigned k = 0; k < area->lanes_used && k < LANES; k++) {
            unsigned launched = area->lanes[k].launched;
            if (launched != area->lanes[k].ended && launched != area->lanes[k].ignored) return 1;
        }
    }
    return 0;
}

static void pause_a_little(int turns) {
    struct timespec t = {.tv_nsec = turns < 2000 ? 20000 : 500000};
    if (turns > 200) nanosleep(&t, NULL);
}

/* Wait until no latency-critical launch is announced; return whether launches still wait at all.
 *
 * An announcement counts its launch before it raises `stop`; here `stop` is taken down before the
 * launches are looked at again. So either the launch is seen, or `stop` is up afterwards. */
static int gate(void) {
    for (int turns = 0;; turns++) {
        if (self.joined < 1 || (turns > 200 && !alive())) return 0;
        if (!critical_waits()) {
            self.page->stop = 0;
            if (!critical_waits()) return 1;
            self.page->stop = 1;
        }
        pause_a_little(turns);
    }
}

/* Wait for the end of what was launched; return 0 if it is late, failed, or no longer of interest. */
static int await_end(int lane, Handle stream) {
    double until = now() + PATIENCE_S;
    for (int turns = 0; !idle(&self.area->lanes[lane]); turns++) {
        if (turns > 200 && turns % 16 == 0) {
            int mode = relaxed(2);
            CUresult result = driver.cuStreamQuery(stream);
            relaxed(mode);
            if ((result && result != 600) || now() > until || !alive()) return idle(&self.area->lanes[lane]);
        }
        pause_a_little(turns);
    }
    return 1;
}

/* Wait until what precedes in a stream has ended, so that a measurement begins with the launch. */
static void await_stream(Handle stream) {
    double until = now() + PATIENCE_S;
    int mode = relaxed(2);
    for (int turns = 0; driver.cuStreamQuery(stream) == 600 && now() < until; turns++) pause_a_little(turns);
    relaxed(mode);
}

static int is_idle(Handle stream) {
    await_stream(stream);
    int mode = relaxed(2);
    CUresult result = driver.cuStreamQuery(stream);
    relaxed(mode);
    return !result;
}

/* Best-effort launches: one at a time, whole or in parts. */

static struct kernel *kernel_of(Handle f) {
    struct kernel *found = get(&functions, f);
    if (!found && (found = calloc(1, sizeof *found))) put(&functions, f, found);
    return found;
}

static void await_last(void) {
    if (last.lane < 0 || last.kernel->late >= MOST_LATE) return;
    if (!await_end(last.lane, last.stream) && self.joined > 0) count(LATE), last.kernel->late++;
    last.lane = -1;
}

static uint32_t blocks_of(const struct config *c) {
    uint64_t blocks = (uint64_t)c->grid[0] * c->grid[1] * c->grid[2];
    return blocks > INT32_MAX ? 0 : (uint32_t)blocks;
}

/* Return how a kernel is launched: as the scheduler has said, or says now. */
static struct shape *shape_of(struct kernel *k, const struct config *c) {
    struct shape *s = k->shapes;
    while (s && (memcmp(s->grid, c->grid, sizeof s->grid + sizeof s->block) || s->shared != c->shared)) s = s->next;
    if (s && s->final) return s;
    uint32_t head[12] = {k->module->id, k->number, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                         c->block[2], c->shared, (uint32_t)self.most_shared, (uint32_t)self.sms, 0}, size;
    char *reply;
    if (!s && (k->shapes_known == MOST_SHAPES || !(s = calloc(1, sizeof *s)))) return NULL;
    if (!s->grid[0]) {
        memcpy(s->grid, c->grid, sizeof s->grid + sizeof s->block);
        s->shared = c->shared;
        s->next = k->shapes, k->shapes = s, k->shapes_known++;
    }
    if (!ask(FORM, head, sizeof head, NULL, 0, &reply, &size, REPLY_S)) return NULL;
    const char *at = reply;
    s->kind = word(&at), s->size = word(&at), s->chunk = word(&at), s->final = word(&at);
    free(reply);
    return s;
}

static void measured(const struct kernel *k, const struct shape *s, double seconds) {
    struct __attribute__((packed)) {
        uint32_t module, kernel, blocks, threads, kind, size, chunk;
        double seconds;
    } m = {k->module->id, k->number, s->grid[0] * s->grid[1] * s->grid[2], s->block[0] * s->block[1] * s->block[2],
           s->kind, s->size, s->chunk, seconds};
    ask(MEASURED, &m, sizeof m, NULL, 0, NULL, NULL, 0);
}

static CUresult whole(struct kernel *k, const struct launch *l, const struct shape *s) {
    await_last();
    if (s && !s->final) await_stream(l->c.stream);
    gate();
    double since = now();
    CUresult result = original(l);
    int lane = !result && self.joined > 0 ? lane_of(l->c.stream) : -1;
    if (lane < 0) return result;
    self.area->lanes[lane].launched++;
    if (mark(lane, l->c.stream))
        self.area->lanes[lane].launched--;
    else {
        last.lane = lane, last.stream = l->c.stream, last.kernel = k;
        if (s && !s->final && await_end(lane, l->c.stream)) measured(k, s, now() - since);
    }
    pthread_mutex_unlock(&slots[lane].lock);
    return result;
}

/* Return the kernel of a form, ready for a launch; NULL if it cannot be had. */
static Handle form_of(struct kernel *k, uint32_t kind, unsigned shared) {
    if (!k->of_form[kind]) {
        char name[strlen(k->name) + 32];
        sprintf(name, "%s__dovetail_%s", k->name, kind == 1 ? "slices" : "workers");
        if (driver.cuLibraryGetKernel(&k->of_form[kind], k->module->forms, name)) return k->of_form[kind] = NULL;
    }
    if (shared > k->shared[kind]) {
        if (driver.cuKernelSetAttribute(8, (int)shared, k->of_form[kind], self.device)) return NULL;
        k->shared[kind] = shared;
    }
    return k->of_form[kind];
}

/* The first use of a form: it and the whole kernel run on copies of the memory that the arguments
 * point to, and have to leave the same bytes there. */

enum check { SAME, NOT_COPIED, TOO_LARGE, CHANGES, DIFFERS, FAILS };

struct copies {
    unsigned count;
    size_t bytes;
    struct region {
        Address from;
        size_t size, at;
    } regions[64];
};

/* Copies that their stream may still use: their address and lane, -1 if there are none. */
static struct {
    Address at;
    int lane;
} kept = {.lane = -1};

static int are_copies_freed(void) {
    if (kept.lane >= 0 && idle(&self.area->lanes[kept.lane])) driver.cuMemFree(kept.at), kept.lane = -1;
    return kept.lane < 0;
}

static void free_copies(Address at, Handle stream) {
    if (!driver.cuStreamQuery(stream)) {
        driver.cuMemFree(at);
        return;
    }
    int lane = lane_of(stream);
    if (lane < 0) return;
    self.area->lanes[lane].launched++;
    if (mark(lane, stream))
        self.area->lanes[lane].launched--;
    else
        kept.at = at, kept.lane = lane;
    pthread_mutex_unlock(&slots[lane].lock);
}

/* Whether a value that the driver does not know may still be an address: one before or behind the
 * memory that it leads to, or of the host. Sizes are smaller; most other numbers are larger. */
static int may_be_address(Address value) { return value >> 32 && !(value >> 57); }

/* Whether the memory at an address was mapped in pieces: the driver knows the size of one only. */
static int is_in_pieces(Address value) {
    uint64_t piece;
    return !driver.cuMemRetainAllocationHandle(&piece, value) && (driver.cuMemRelease(piece), 1);
}

static enum check find_regions(const struct kernel *k, const struct launch *l, struct copies *all) {
    for (uint64_t left = k->pointers; left; left &= left - 1) {
        Address value, from;
        size_t size;
        unsigned kind, r = 0;
        memcpy(&value, l->arguments[__builtin_ctzll(left)], sizeof value);
        if (driver.cuPointerGetAttribute(&kind, 2, value)) {
            if (may_be_address(value)) return NOT_COPIED;
            continue; /* a number */
        }
        if (kind != 2 || is_in_pieces(value) || driver.cuMemGetAddressRange(&from, &size, value)) return NOT_COPIED;
        while (r < all->count && all->regions[r].from != from) r++;
        if (r < all->count) continue;
        all->regions[all->count++] = (struct region){from, size, all->bytes};
        all->bytes += (size + 255) / 256 * 256;
        if (all->bytes > MOST_COPIED) return TOO_LARGE;
    }
    return SAME;
}

/* Put arguments in place that point to the copies at an address. */
static void rebased(const struct kernel *k, const struct launch *l, const struct copies *all, Address to,
                    Address *values, void **arguments) {
    for (uint32_t p = 0; p < k->parameters; p++) {
        arguments[p] = l->arguments[p];
        if (!(k->pointers >> p & 1)) continue;
        memcpy(&values[p], l->arguments[p], sizeof *values);
        for (unsigned r = 0; r < all->count; r++)
            if (values[p] - all->regions[r].from < all->regions[r].size) {
                values[p] += to + all->regions[r].at - all->regions[r].from;
                arguments[p] = &values[p];
                break;
            }
    }
}

static CUresult launched(Handle f, const struct config *c, const uint32_t *grid, unsigned shared, void **arguments) {
    return driver.cuLaunchKernel(f, grid[0], grid[1], grid[2], c->block[0], c->block[1], c->block[2], shared, c->stream,
                                 arguments, NULL);
}

/* Return whether two copies are the same. */
static enum check compared(Address a, Address b, size_t bytes, Handle stream) {
    char *held = malloc(2 * COMPARED);
    enum check found = held ? SAME : FAILS;
    for (size_t at = 0; at < bytes && found == SAME; at += COMPARED) {
        size_t part = bytes - at < COMPARED ? bytes - at : COMPARED;
        if (driver.cuMemcpyDtoHAsync(held, a + at, part, stream) ||
            driver.cuMemcpyDtoHAsync(held + COMPARED, b + at, part, stream))
            found = FAILS;
        if (found == SAME && !is_idle(stream)) return FAILS; /* it may still write to what is held */
        if (found == SAME && memcmp(held, held + COMPARED, part)) found = DIFFERS;
    }
    free(held);
    return found;
}

static enum check on_copies(const struct kernel *k, const struct launch *l, const struct shape *s, Handle form,
                            uint32_t own, unsigned shared) {
    const struct config *c = &l->c;
    struct copies all = {0};
    enum check found = find_regions(k, l, &all);
    if (found || !all.count) return found ? found : NOT_COPIED;
    uint32_t blocks = blocks_of(c), first = 0, grid[3];
    Address held = 0, values[64], counter, never = self.at + (Address)((char *)&self.page->never - (char *)self.page);
    void *arguments[k->parameters + 7];
    memcpy(grid, c->grid, sizeof grid);
    /* Others on the GPU may need memory in the meantime. */
    size_t needed = 2 * all.bytes + 256, unused, total;
    if (driver.cuMemGetInfo(&unused, &total) || needed > unused / 2 || driver.cuMemAlloc(&held, needed)) return TOO_LARGE;
    Address other = held + all.bytes;
    counter = other + all.bytes;
    /* After an error nothing follows: a kernel on memory without contents may end the context. */
    CUresult result = driver.cuMemsetD32Async(counter, 0, 1, c->stream);
#define THEN(call) (result = result ? result : (call))
    for (int turn = 0; turn < 2; turn++) {
        /* The second turn runs the whole kernel twice: does it always do the same? */
        for (unsigned r = 0; r < all.count; r++)
            THEN(driver.cuMemcpyDtoDAsync(held + all.regions[r].at, all.regions[r].from, all.regions[r].size, c->stream));
        THEN(driver.cuMemcpyDtoDAsync(other, held, all.bytes, c->stream));
        rebased(k, l, &all, held, values, arguments);
        THEN(launched(l->f, c, c->grid, c->shared, arguments));
        rebased(k, l, &all, other, values, arguments);
        for (int axis = 0; axis < 3; axis++) arguments[k->parameters + axis] = &grid[axis];
        arguments[k->parameters + 3] = s->kind == 2 ? (void *)&counter : (void *)&first;
        arguments[k->parameters + 4] = &never;
        arguments[k->parameters + 5] = &own;
        arguments[k->parameters + 6] = (void *)&s->chunk;
        if (turn)
            THEN(launched(l->f, c, c->grid, c->shared, arguments));
        else if (s->kind == 2)
            THEN(launched(form, c, (uint32_t[]){s->size < blocks ? s->size : blocks, 1, 1}, shared, arguments));
        else
            for (uint32_t part = (blocks + 2) / 3; first < blocks; first += part)
                THEN(launched(form, c, (uint32_t[]){part < blocks - first ? part : blocks - first, 1, 1}, shared, arguments));
        enum check one = result || !is_idle(c->stream) ? FAILS : compared(held, other, all.bytes, c->stream);
        if (one == FAILS || (!turn && one == SAME)) {
            found = one;
            break;
        }
        found = turn && one == DIFFERS ? CHANGES : DIFFERS;
    }
#undef THEN
    free_copies(held, c->stream);
    return found;
}

/* Return whether a form may be used; the first time, try it. */
static int is_checked(struct kernel *k, const struct launch *l, const struct shape *s, Handle form, uint32_t own,
                      unsigned shared) {
    uint32_t bit = 1u << (s->kind - 1);
    if (k->checked & bit) return 1;
    if (!(k->forms & bit)) return 0;
    if (!are_copies_freed()) return 0;
    if (!is_idle(l->c.stream)) {
        /* What precedes may wait for this very thread: the form can be tried another time. */
        count(LATE), k->late++;
        return 0;
    }
    gate();
    int mode = relaxed(2);
    enum check found = on_copies(k, l, s, form, own, shared);
    relaxed(mode);
    if (found == SAME) {
        k->checked |= bit;
        return 1;
    }
    uint32_t report[4] = {k->module->id, k->number, s->kind, found};
    k->forms &= ~bit;
    ask(FAILED, report, sizeof report, NULL, 0, NULL, NULL, 0);
    return 0;
}

/* Run a kernel in parts; return -1 if it has to be launched whole, as nothing has begun. */
static CUresult in_parts(struct kernel *k, const struct launch *l, struct shape *s) {
    const struct config *c = &l->c;
    uint32_t blocks = blocks_of(c), first = 0, workers = s->kind == 2, grid[3];
    /* The number that workers have taken lies behind the kernel's own dynamic shared memory. */
    uint32_t own = (c->shared + STORAGE_BYTES - 1) / STORAGE_BYTES * STORAGE_BYTES;
    unsigned shared = workers ? own + STORAGE_BYTES : c->shared;
    Handle f = form_of(k, s->kind, shared);
    if (!f) return -1;
    await_last();
    if (!is_checked(k, l, s, f, own, shared)) return s->final = 0, count(REFUSED), -1;
    int lane = lane_of(c->stream);
    if (lane < 0) return -1;
    struct lane *of = &self.area->lanes[lane];
    Address counter = self.counters + 4 * (Address)lane, stop;
    void *arguments[k->parameters + 7];
    if (k->parameters) memcpy(arguments, l->arguments, k->parameters * sizeof *arguments);
    memcpy(grid, c->grid, sizeof grid);
    for (int axis = 0; axis < 3; axis++) arguments[k->parameters + axis] = &grid[axis];
    arguments[k->parameters + 3] = workers ? (void *)&counter : (void *)&first;
    arguments[k->parameters + 4] = &stop;
    arguments[k->parameters + 5] = &own;
    arguments[k->parameters + 6] = &s->chunk;
    CUresult result = workers ? driver.cuMemsetD32Async(counter, 0, 1, c->stream) : 0;
    int begun = 0, on_time = 1;
    double seconds = 0;
    while (!result && first < blocks) {
        if (!s->final && !begun) await_stream(c->stream);
        int waits = on_time && gate();
        uint32_t size = waits || workers ? s->size : blocks, left = blocks - first;
        uint32_t part = size < left ? size : left;
        /* When nothing is waited for any more, the rest cannot be stopped either. */
        stop = self.at + (Address)((char *)(waits ? &self.page->stop : &self.page->never) - (char *)self.page);
        double since = now();
        result = driver.cuLaunchKernel(f, part, 1, 1, c->block[0], c->block[1], c->block[2], shared, c->stream,
                                       arguments, NULL);
        if (result) break;
        begun = 1;
        of->launched++;
        if (workers) result = driver.cuMemcpyDtoHAsync(&of->counter, counter, 4, c->stream);
        if (mark(lane, c->stream)) on_time = 0, of->launched--;
        if (!waits) break;
        if (on_time) on_time = await_end(lane, c->stream);
        seconds += now() - since;
        if (!on_time) {
            if (self.joined > 0) count(LATE), k->late++;
            first += workers ? 0 : part;
        } else if (workers) {
            first = of->counter < blocks ? of->counter : blocks;
            if (first < blocks) count(PREEMPTED);
        } else
            first += part;
    }
    pthread_mutex_unlock(&slots[lane].lock);
    if (!begun) return -1;
    if (!result && on_time && first >= blocks && !s->final) measured(k, s, seconds);
    count(ISOLATED);
    return result;
}

static CUresult best_effort(const struct launch *l) {
    pthread_mutex_lock(&turn);
    are_copies_freed();
    if (!self.page->critical) {
        pthread_mutex_unlock(&turn);
        return count(l->call == OF_GRAPH ? GRAPH : WHOLE), original(l);
    }
    struct kernel *k = kernel_of(l->f);
    CUresult result = -1;
    struct shape *s = NULL;
    if (!k)
        ;
    else if (l->call == OF_GRAPH || l->call == TOGETHER)
        count(l->call == OF_GRAPH ? GRAPH : COOPERATIVE);
    else if (!k->module)
        count(NO_PTX);
    else if (l->c.count)
        count(ATTRIBUTES);
    else if (l->extra || (k->parameters && !l->arguments))
        count(BUFFER);
    else if (!k->forms || k->late >= MOST_LATE || !blocks_of(&l->c) || !(s = shape_of(k, &l->c)))
        count(REFUSED);
    else if (!s->kind)
        count(WHOLE);
    else
        result = in_parts(k, l, s);
    if (result < 0) result = k ? whole(k, l, s && !s->kind ? s : NULL) : original(l);
    pthread_mutex_unlock(&turn);
    return result;
}

/* A forked process begins anew, as a client of its own. */
static void begin_anew(void) {
    if (self.socket >= 0) close(self.socket);
    if (self.area) munmap(self.page, sizeof *self.page);
    memset(&self, 0, sizeof self);
    self.socket = -1;
    functions = modules = (struct map){0};
    last.lane = kept.lane = -1;
    joining = talking = tables = turn = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, begin_anew); }

static CUresult launch(const struct launch *l) {
    int capturing = 0;
    need_driver();
    if (!governed() || !on_gpu()) return original(l);
    if (driver.cuStreamIsCapturing(l->c.stream, &capturing) || capturing) return count(CAPTURED), original(l);
    return self.critical ? announced(l) : best_effort(l);
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

static void loaded_from(Handle handle, const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    char *image = size > 15 ? calloc(1, (size_t)size + 1) : NULL;
    if (image && pread(file, image, (size_t)size, 0) == size) loaded(handle, image);
    free(image);
    if (file >= 0) close(file);
}

static void context_gone(void) {
    struct module *module;
    do {
        module = NULL;
        pthread_mutex_lock(&tables);
        for (size_t k = 0; k < modules.size && !module; k++) module = modules.entries[k].value;
        pthread_mutex_unlock(&tables);
        forget(module);
    } while (module);
    kept.lane = -1;
    self.ready = 0;
}

#define LIBRARY int *a, void **b, unsigned n, int *c, void **d, unsigned m
AFTER(cuModuleLoad, (Handle *module, const char *path), (module, path), loaded_from(*module, path))
AFTER(cuModuleLoadData, (Handle *module, const void *image), (module, image), loaded(*module, image))
AFTER(cuModuleLoadDataEx, (Handle *module, const void *image, unsigned n, int *a, void **b), (module, image, n, a, b),
      loaded(*module, image))
AFTER(cuModuleLoadFatBinary, (Handle *module, const void *image), (module, image), loaded(*module, image))
AFTER(cuModuleUnload, (Handle module), (module), forget(get(&modules, module)))
AFTER(cuModuleGetFunction, (Handle *f, Handle module, const char *name), (f, module, name), got(*f, module, name))
AFTER(cuLibraryLoadData, (Handle *library, const void *image, LIBRARY), (library, image, a, b, n, c, d, m),
      loaded(*library, image))
AFTER(cuLibraryLoadFromFile, (Handle *library, const char *path, LIBRARY), (library, path, a, b, n, c, d, m),
      loaded_from(*library, path))
AFTER(cuLibraryUnload, (Handle library), (library), forget(get(&modules, library)))
AFTER(cuLibraryGetKernel, (Handle *f, Handle library, const char *name), (f, library, name), got(*f, library, name))
AFTER(cuLibraryGetModule, (Handle *module, Handle library), (module, library),
      put(&modules, *module, get(&modules, library)))
AFTER(cuKernelGetFunction, (Handle *f, Handle kernel), (f, kernel), put(&functions, *f, get(&functions, kernel)))
AFTER(cuCtxDestroy, (Handle context), (context), context_gone())
AFTER(cuDevicePrimaryCtxReset, (int device), (device), context_gone())

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
        {"cuDevicePrimaryCtxReset_v2", cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset}, OTHER(cuGetProcAddress),
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
