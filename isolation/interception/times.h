/* Times of kernels on the GPU: events around some launches, read later without waiting. */
#pragma once
#include "modules.h"

#define EVERY 32         /* once SAMPLES are there of a final form, one launch of so many is timed */
#define LEAST_S 0.5e-6   /* the resolution of events */

/* Events around one part of a launch: a whole kernel, a graph, a slice, or workers. */
struct pair {
    Handle before, after;
    struct kernel *kernel; /* NULL: it is free */
    struct shape *shape;
    struct form form;
    uint32_t part, blocks; /* blocks of the part, and of the launch; 0 of a graph */
    int recorded;
};
static struct pair pairs[PAIRS];
static atomic_uint pairs_used;
static pthread_mutex_t timing = PTHREAD_MUTEX_INITIALIZER; /* of all pairs; taken before `shaping` */

/* Return events for the next part of a launch; NULL if it is not to be timed. */
static struct pair *begin_sample(struct kernel *k, struct shape *s, const struct form *form, uint32_t part, uint32_t blocks) {
    if (s->pending || (blocks && form->final && s->samples >= SAMPLES && ++s->passed % EVERY)) return NULL;
    struct pair *p = NULL;
    pthread_mutex_lock(&timing);
    for (int i = 0; i < PAIRS && !p && !s->pending; i++)
        if (!pairs[i].kernel) p = &pairs[i];
    if (p && !p->before && driver.cuEventCreate(&p->before, 0)) p->before = NULL, p = NULL;
    if (p && !p->after && driver.cuEventCreate(&p->after, 0)) p->after = NULL, p = NULL;
    if (p) {
        p->kernel = k, p->shape = s, p->form = *form, p->part = part, p->blocks = blocks, p->recorded = 0;
        s->pending = 1, pairs_used++;
        self.area->taken[p - pairs] = UINT32_MAX;
    }
    pthread_mutex_unlock(&timing);
    return p;
}

static void drop(struct pair *p) {
    p->shape->pending = p->recorded = 0;
    p->kernel = NULL, pairs_used--;
}

static void record_before(struct pair *p, Handle stream) {
    if (p) p->recorded = driver.cuEventRecord(p->before, stream) ? -1 : 0;
}

/* The counter is where workers count the blocks that they have taken; 0 if there are none. */
static void record_after(struct pair *p, Handle stream, Address counter, int launched) {
    if (!p) return;
    int failed = p->recorded || !launched || driver.cuEventRecord(p->after, stream) ||
                 (counter && driver.cuMemcpyDtoHAsync(&self.area->taken[p - pairs], counter, 4, stream));
    pthread_mutex_lock(&timing);
    if (p->kernel && failed) drop(p);
    p->recorded = p->kernel != NULL;
    pthread_mutex_unlock(&timing);
}

/* Forget what is timed of a module's kernels; of all, with their events, if it is NULL. */
static void drop_samples(const struct module *module) {
    pthread_mutex_lock(&timing);
    for (int i = 0; i < PAIRS; i++) {
        if (pairs[i].kernel && (!module || pairs[i].kernel->module == module)) drop(&pairs[i]);
        if (!module) pairs[i].before = pairs[i].after = NULL;
    }
    pthread_mutex_unlock(&timing);
}

/* Take the time of a part; return 0 if it is not there yet, or not one of the whole part. */
static double time_of(const struct pair *p) {
    float milliseconds;
    if (driver.cuEventElapsedTime(&milliseconds, p->before, p->after)) return 0;
    unsigned taken = self.area->taken[p - pairs];
    if (p->form.kind == 2 && taken < p->blocks) return 0; /* the flag stopped them */
    return 1e-3 * (double)milliseconds > LEAST_S ? 1e-3 * (double)milliseconds : LEAST_S;
}

/* Look at the next pair, and take its time if the GPU has got there. */
static void read_sample(void) {
    static int next;
    struct __attribute__((packed)) {
        uint32_t module, kernel, blocks, threads, kind, size, chunk;
        double seconds;
    } m = {0};
    if (!pairs_used || pthread_mutex_trylock(&timing)) return;
    for (int i = 0; i < PAIRS && pairs[next].recorded < 1; i++) next = (next + 1) % PAIRS;
    struct pair *p = &pairs[next];
    next = (next + 1) % PAIRS;
    int mode = relaxed(2);
    CUresult result = p->recorded < 1 ? 600 : driver.cuEventQuery(p->after);
    if (!result && p->form.kind == 2 && self.area->taken[p - pairs] == UINT32_MAX) result = 600;
    if (result != 600) {
        struct shape *s = p->shape;
        double seconds = result ? 0 : time_of(p);
        pthread_mutex_lock(&shaping);
        if (seconds && is_form(&p->form, &s->form)) {
            /* Others beside a kernel make it slower, so the least of the last times counts; older ones
             * do not, as the same sizes may be given more to do. Of a graph the last time counts. */
            s->times[s->samples++ % SAMPLES] = (float)seconds;
            float least = (float)seconds;
            for (unsigned n = 0; p->blocks && n < SAMPLES && n < s->samples; n++)
                if (s->times[n] < least) least = s->times[n];
            s->seconds = least;
            if (!s->form.final) {
                m.module = p->kernel->module->id, m.kernel = p->kernel->number, m.blocks = p->blocks;
                m.threads = s->block[0] * s->block[1] * s->block[2];
                m.kind = p->form.kind, m.size = p->form.size, m.chunk = p->form.chunk;
                m.seconds = seconds * p->blocks / p->part;
                s->unasked = 1;
            }
        }
        drop(p);
        pthread_mutex_unlock(&shaping);
    }
    relaxed(mode);
    pthread_mutex_unlock(&timing);
    if (m.blocks) ask(MEASURED, &m, sizeof m, NULL, 0, NULL, NULL, 0);
}
