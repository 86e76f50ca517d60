/* The check of a form before its first use: it and the whole kernel run on copies of the memory that
 * the arguments point to, and have to leave the same bytes there. */
#pragma once
#include "streams.h"

#define PATIENCE_S 2.0
#define STORAGE_BYTES 16
#define MOST_COPIED (512u << 20)
#define COMPARED (4u << 20)

enum check { SAME, NOT_COPIED, TOO_LARGE, CHANGES, DIFFERS, FAILS };

struct copies {
    unsigned count;
    size_t bytes;
    struct region {
        Address from;
        size_t size, at;
    } regions[64];
};

static pthread_mutex_t checking = PTHREAD_MUTEX_INITIALIZER;

static uint32_t blocks_of(const struct config *c) {
    uint64_t blocks = (uint64_t)c->grid[0] * c->grid[1] * c->grid[2];
    return blocks > INT32_MAX ? 0 : (uint32_t)blocks;
}

/* Wait until a stream has ended what is in it; give up after a time in which the gate was open. */
static int is_idle(Handle stream) {
    double left = PATIENCE_S, since = now(), begun = since;
    int mode = relaxed(2);
    CUresult result;
    while ((result = driver.cuStreamQuery(stream)) == 600 && left > 0) {
        nap(since - begun < 1e-3 ? 5e-6 : 50e-6);
        double t = now();
        if (self.gate->level) left -= t - since;
        since = t;
    }
    relaxed(mode);
    return !result;
}

/* Copies that their stream may still use: their address and lane, -1 if there are none. */
static struct {
    Address at;
    int lane;
} kept = {.lane = -1};

static int are_copies_freed(void) {
    if (kept.lane >= 0 && idle(&self.area->lanes[kept.lane])) {
        int mode = relaxed(2);
        driver.cuMemFree(kept.at), kept.lane = -1;
        relaxed(mode);
    }
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

static enum check on_copies(const struct kernel *k, const struct launch *l, const struct form *s, Handle form,
                            uint32_t behind, unsigned shared) {
    const struct config *c = &l->c;
    struct copies all = {0};
    enum check found = find_regions(k, l, &all);
    if (found || !all.count) return found ? found : NOT_COPIED;
    uint32_t blocks = blocks_of(c), first = 0, grid[3];
    Address held = 0, values[64], counter, never = own_word(NEVER);
    void *arguments[k->parameters + 7];
    memcpy(grid, c->grid, sizeof grid);
    /* Others on the GPU may need memory in the meantime. What is had from cuMemAlloc is given back
     * once all streams are idle only, and one may wait for this very thread. */
    size_t needed = 2 * all.bytes + 256, unused, total;
    if (driver.cuMemGetInfo(&unused, &total) || needed > unused / 2 || driver.cuMemAllocAsync(&held, needed, c->stream)) return TOO_LARGE;
    Address other = held + all.bytes;
    counter = other + all.bytes;
    /* After an error nothing follows: a kernel on memory without contents may end the context. */
    CUresult result = driver.cuMemsetD32Async(counter, 0, 1, c->stream);
#define THEN(call) (result = result ? result : (call))
    THEN(driver.cuStreamWriteValue32(c->stream, never, 0, 0));
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
        arguments[k->parameters + 5] = &behind;
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

/* Try a form on copies. */
static int try_form(struct kernel *k, const struct launch *l, const struct form *s, Handle form, uint32_t behind,
                    unsigned shared) {
    if (!are_copies_freed()) return 0;
    if (!is_idle(l->c.stream)) {
        /* What precedes may wait for this very thread: the form can be tried another time. */
        count(LATE), k->late++;
        return 0;
    }
    /* What runs on copies does not wait on the GPU. */
    while (self.joined > 0 && !self.gate->level) nap(50e-6);
    int mode = relaxed(2);
    enum check found = on_copies(k, l, s, form, behind, shared);
    relaxed(mode);
    uint32_t bit = 1u << (s->kind - 1), report[4] = {k->module->id, k->number, s->kind, found};
    if (found == SAME) return k->checked |= bit, 1;
    k->forms &= ~bit;
    ask(FAILED, report, sizeof report, NULL, 0, NULL, NULL, 0);
    return 0;
}

/* Return whether a form may be used; the first time, try it. */
static int is_checked(struct kernel *k, const struct launch *l, const struct form *s, Handle form, uint32_t behind,
                      unsigned shared) {
    uint32_t bit = 1u << (s->kind - 1);
    if (!(k->checked & bit) && (k->forms & bit) && !pthread_mutex_trylock(&checking)) {
        if (!(k->checked & bit)) try_form(k, l, s, form, behind, shared);
        pthread_mutex_unlock(&checking);
    }
    return (k->checked & bit) != 0;
}
