/* Best-effort launches: put into their stream at once, behind waits for the gate. */
#pragma once
#include "copies.h"
#include "costs.h"
#include "flag.h"
#include "times.h"

#define MOST_LATE 3
#define MOST_PARTS 128    /* more slices are not put into a stream at once */
#define ROUNDS 4          /* workers are launched so often while their time is not known */
#define MOST_ROUNDS 64
#define ROUNDS_PART 0.05  /* and else as often as costs this part of it */

/* Have a stream wait for the gate, unless what follows fits behind the wait before. What takes longer
 * than the bound waits for itself, at the level of its time. So does what takes a time that is not
 * known (0), but like something short: before the first times are there, hundreds of launches may be
 * in a stream, and at a higher level they would take seconds. */
static CUresult await_gate(int lane, double seconds, Handle stream) {
    double *left_s = lane < 0 ? NULL : &slots[lane].left_s;
    int is_short = seconds > 0 && seconds <= BOUND_S;
    unsigned class = class_of(seconds > BOUND_S ? seconds : BOUND_S);
    if (left_s && is_short && seconds <= *left_s && self.gate->level >= class) return *left_s -= seconds, 0;
    if (left_s) *left_s = is_short ? BOUND_S - seconds : 0;
    return driver.cuStreamWaitValue32(stream, self.gate_at, class, 0);
}

/* Nothing that precedes has failed, as a launch behind it did not: the GPU has no waits. */
static void check_wait(CUresult waits, CUresult launched) {
    if (waits && !launched) leave("the GPU cannot wait for a word in memory");
}

/* Launch what cannot be cut, or need not be. */
static CUresult whole(struct kernel *k, const struct launch *l, struct shape *s, const struct form *form) {
    int lane = lane_of(l->c.stream);
    uint32_t blocks = l->call == OF_GRAPH ? 0 : blocks_of(&l->c);
    struct pair *p = s ? begin_sample(k, s, form, blocks, blocks) : NULL;
    CUresult waits = await_gate(lane, s ? s->seconds : 0, l->c.stream);
    record_before(p, l->c.stream);
    CUresult result = original(l);
    record_after(p, l->c.stream, 0, !result);
    check_wait(waits, result);
    leave_lane(lane);
    return result;
}

static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER; /* of kernels of forms, and their shared memory */

/* Return the kernel of a form, ready for a launch; NULL if it cannot be had. */
static Handle form_of(struct kernel *k, uint32_t kind, unsigned shared) {
    Handle found = k->of_form[kind];
    if (found && shared <= k->shared[kind]) return found;
    /* One of two threads would take back the shared memory that the other has asked for. */
    pthread_mutex_lock(&finding);
    char name[strlen(k->name) + 32];
    sprintf(name, "%s__dovetail_%s", k->name, kind == 1 ? "slices" : "workers");
    if (!found && driver.cuLibraryGetKernel(&found, k->module->forms, name)) found = NULL;
    if (found && shared > k->shared[kind]) {
        if (driver.cuKernelSetAttribute(8, (int)shared, found, self.device))
            found = NULL;
        else
            k->shared[kind] = shared;
    }
    if (found) k->of_form[kind] = found;
    pthread_mutex_unlock(&finding);
    return found;
}

/* A launch in parts, and where its parts find what they are given. */
struct parts {
    struct kernel *k;
    struct shape *s;
    const struct launch *l;
    struct form form;
    Handle f;
    unsigned shared;
    int lane;
    uint32_t blocks, first;
    Address counter, stop;
    void **arguments;
};

/* Launch a part behind a wait, and time the first. */
static CUresult one_part(struct parts *p, uint32_t size, double seconds, int timed) {
    const struct config *c = &p->l->c;
    struct pair *pair = timed ? begin_sample(p->k, p->s, &p->form, p->form.kind == 2 ? p->blocks : size, p->blocks) : NULL;
    CUresult waits = await_gate(p->lane, seconds, c->stream), result = 0;
    if (p->form.kind == 2) result = driver.cuStreamWriteValue32(c->stream, p->stop, 0, 0);
    record_before(pair, c->stream);
    if (!result) result = launched(p->f, c, (uint32_t[]){size, 1, 1}, p->shared, p->arguments);
    record_after(pair, c->stream, p->form.kind == 2 ? p->counter : 0, !result);
    check_wait(waits, result);
    return result;
}

static CUresult as_slices(struct parts *p) {
    CUresult result = 0;
    uint32_t least = (p->blocks + MOST_PARTS - 1) / MOST_PARTS, each = p->form.size > least ? p->form.size : least;
    double seconds = p->s->seconds;
    for (; !result && p->first < p->blocks; p->first += each) {
        uint32_t left = p->blocks - p->first, size = each < left ? each : left;
        result = one_part(p, size, seconds * size / each, !p->first);
    }
    return result;
}

/* Workers count the blocks that they take, stop when the flag is up, and go on behind the next wait;
 * those that find no block left end at once. The last are not stopped. */
static CUresult as_workers(struct parts *p) {
    const struct config *c = &p->l->c;
    struct lane *of = &self.area->lanes[p->lane];
    double seconds = p->s->seconds, each = WAIT_S + WRITE_S + EMPTY_S;
    double more = ROUNDS_PART * seconds / each;
    int rounds = seconds <= 0 ? ROUNDS : more < 1 ? 2 : more < MOST_ROUNDS ? 1 + (int)more : MOST_ROUNDS;
    uint32_t size = p->form.size < p->blocks ? p->form.size : p->blocks;
    /* What is in flight of workers when the gate closes: the blocks that they have begun. */
    double turnaround = seconds * size * p->form.chunk / p->blocks;
    CUresult result = driver.cuStreamWriteValue32(c->stream, p->counter, 0, 0);
    of->launched++;
    slots[p->lane].left_s = 0;
    for (int r = 0; !result && r < rounds; r++) {
        int last = r == rounds - 1;
        p->stop = own_word(last ? NEVER : FLAG);
        result = one_part(p, size, last ? seconds : turnaround, !r);
        slots[p->lane].left_s = 0;
    }
    if (mark(p->lane, c->stream)) of->launched--;
    return result;
}

/* Run a kernel in parts; return -1 if it has to be launched whole, as nothing has begun. */
static CUresult in_parts(struct kernel *k, const struct launch *l, struct shape *s, const struct form *form) {
    const struct config *c = &l->c;
    uint32_t workers = form->kind == 2, grid[3], chunk = form->chunk;
    /* The number that workers have taken lies behind the kernel's own dynamic shared memory. */
    uint32_t behind = (c->shared + STORAGE_BYTES - 1) / STORAGE_BYTES * STORAGE_BYTES;
    void *arguments[k->parameters + 7];
    struct parts p = {.k = k, .s = s, .l = l, .form = *form, .blocks = blocks_of(c), .arguments = arguments,
                      .shared = workers ? behind + STORAGE_BYTES : c->shared, .stop = own_word(NEVER)};
    p.f = form_of(k, form->kind, p.shared);
    if (!p.f || (workers && !flag_works())) return -1;
    if (!is_checked(k, l, form, p.f, behind, p.shared)) {
        pthread_mutex_lock(&shaping);
        s->unasked = 1;
        pthread_mutex_unlock(&shaping);
        return -1;
    }
    p.lane = lane_of(c->stream);
    if (p.lane < 0) return -1;
    p.counter = own_word(p.lane);
    if (k->parameters) memcpy(arguments, l->arguments, k->parameters * sizeof *arguments);
    memcpy(grid, c->grid, sizeof grid);
    for (int axis = 0; axis < 3; axis++) arguments[k->parameters + axis] = &grid[axis];
    arguments[k->parameters + 3] = workers ? (void *)&p.counter : (void *)&p.first;
    arguments[k->parameters + 4] = &p.stop;
    arguments[k->parameters + 5] = &behind;
    arguments[k->parameters + 6] = &chunk;
    CUresult result = workers ? as_workers(&p) : as_slices(&p);
    leave_lane(p.lane);
    count(ISOLATED);
    return result;
}

/* Return why a launch escapes, ISOLATED if it does not. */
static enum count why_whole(const struct kernel *k, const struct launch *l, const struct shape *s) {
    if (l->call == OF_GRAPH) return GRAPH;
    if (l->call == TOGETHER) return COOPERATIVE;
    if (!k || !k->module) return NO_PTX;
    if (l->c.count) return ATTRIBUTES;
    if (l->extra || (k->parameters && !l->arguments)) return BUFFER;
    return k->forms && k->late < MOST_LATE && blocks_of(&l->c) && s ? ISOLATED : REFUSED;
}

static CUresult best_effort(const struct launch *l) {
    if (!self.memory->header.critical) return count(l->call == OF_GRAPH ? GRAPH : WHOLE), original(l);
    read_sample();
    if (kept.lane >= 0 && !pthread_mutex_trylock(&checking)) are_copies_freed(), pthread_mutex_unlock(&checking);
    struct kernel *k = get(&functions, l->f);
    struct form form = {.final = 1};
    if (!k) k = new_kernel(l->f, NULL);
    pthread_mutex_lock(&shaping);
    struct shape *s = k ? shape_of(k, &l->c) : NULL;
    enum count why = why_whole(k, l, s);
    if (why == ISOLATED) {
        if (s->unasked) ask_form(k, s);
        form = s->form;
        if (!form.kind) why = WHOLE;
    } else if (s)
        set_form(s, form);
    pthread_mutex_unlock(&shaping);
    if (why != ISOLATED) return count(why), whole(k, l, s, &form);
    CUresult result = in_parts(k, l, s, &form);
    /* What is known of its time is of the form. */
    return result < 0 ? (count(REFUSED), whole(k, l, NULL, &form)) : result;
}
