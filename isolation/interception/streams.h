/* What the GPU knows of this process: the shared memory, and a lane for each stream. */
#pragma once
#include "guard.h"
#include "modules.h"

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

/* Of a best-effort process on the GPU: a counter for the workers of each lane, the flag that stops
 * workers, and a word that is never set. The stream is the library's own. */
enum { FLAG = LANES, NEVER, WORDS };
static struct {
    Address words;
    Handle stream;
    int guarded, raises; /* whether their threads run */
} own;

static Address own_word(int which) { return own.words + 4 * (Address)which; }

static const char *why_no_gate(void) {
    if (!own.words && driver.cuMemAlloc(&own.words, 4 * WORDS)) return "the GPU has no memory left";
    /* This wait is at an end wherever waits are possible at all. */
    if ((!own.stream && driver.cuStreamCreate(&own.stream, 1)) || driver.cuStreamWaitValue32(own.stream, self.gate_at, 0, 0))
        return "the GPU cannot wait for a word in memory";
    if (!own.guarded && !start_thread(guard)) return "no thread can be started";
    own.guarded = 1;
    return NULL;
}

/* Have the GPU see a page of the memory; return whether it does. */
static int registered(void *page, Address *at) {
    CUresult held = driver.cuMemHostRegister(page, PAGE, 3);
    return (!held || held == 712) && !driver.cuMemHostGetDevicePointer(at, page, 0);
}

/* Make what the GPU writes and waits for known to it, at the first launch. */
static int on_gpu(void) {
    Handle context = NULL;
    if (driver.cuCtxGetCurrent(&context) || !context) return 0;
    if (self.ready) return context == self.context || (count(CONTEXT), 0);
    pthread_mutex_lock(&joining);
    if (!self.ready && self.joined > 0) {
        int mode = relaxed(2);
        const char *why = NULL;
        if (!registered(self.area, &self.area_at) || (!self.critical && !registered(self.gate, &self.gate_at)) ||
            driver.cuCtxGetDevice(&self.device) || driver.cuDeviceGetAttribute(&self.sms, 16, self.device) ||
            driver.cuDeviceGetAttribute(&self.most_shared, 97, self.device))
            why = "the GPU cannot see the memory that is shared with the scheduler";
        else if (!self.critical)
            why = why_no_gate();
        if (why) leave(why);
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
    uint64_t stream; /* its number: the handle of one that is destroyed is used again while it still runs */
    double left_s;   /* what still fits behind the last wait at the gate (parts.h) */
} slots[LANES];

static int idle(const struct lane *lane) { return lane->launched == lane->ended; }

/* Return the lane of a stream, locked; -1 if all are busy with others. */
static int lane_of(Handle stream) {
    uint64_t key;
    if (driver.cuStreamGetId(stream, &key)) key = stream ? (uintptr_t)stream : 1;
    for (;;) {
        int found = -1;
        pthread_mutex_lock(&tables);
        int used = (int)self.area->lanes_used;
        for (int k = 0; k < used && found < 0; k++)
            if (slots[k].stream == key) found = k;
        if (found < 0 && used < LANES) {
            slots[used] = (struct slot){PTHREAD_MUTEX_INITIALIZER, key, 0};
            found = used;
            self.area->lanes_used++;
        }
        for (int k = 0; k < used && found < 0; k++)
            if (!pthread_mutex_trylock(&slots[k].lock)) {
                if (idle(&self.area->lanes[k])) slots[k].stream = key, slots[k].left_s = 0, found = k;
                pthread_mutex_unlock(&slots[k].lock);
            }
        pthread_mutex_unlock(&tables);
        if (found < 0) return -1;
        pthread_mutex_lock(&slots[found].lock);
        if (slots[found].stream == key) return found;
        pthread_mutex_unlock(&slots[found].lock);
    }
}

static void leave_lane(int lane) {
    if (lane >= 0) pthread_mutex_unlock(&slots[lane].lock);
}

/* Have the GPU write that all launches of a lane have ended, when the stream gets there. */
static CUresult mark(int lane, Handle stream) {
    struct lane *of = &self.area->lanes[lane];
    return driver.cuStreamWriteValue32(stream, seen(&of->ended), of->launched, 0);
}

/* A latency-critical launch. */
static CUresult announced(const struct launch *l) {
    int lane = lane_of(l->c.stream);
    if (lane < 0) return count(UNANNOUNCED), original(l);
    struct lane *of = &self.area->lanes[lane];
    of->launched++;
    close_gates();
    CUresult result = original(l);
    if (result || mark(lane, l->c.stream)) {
        of->launched--;
        if (!result) leave("the GPU does not write to the memory that is shared with the scheduler");
    } else
        count(ANNOUNCED);
    leave_lane(lane);
    return result;
}
