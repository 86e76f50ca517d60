/* Modules and their kernels: which forms they have, and how launches of each shape are made. */
#pragma once
#include "process.h"

#define MODULE_REPLY_S 300.0
#define MOST_SHAPES 1024
#define SAMPLES 4 /* so many times of a shape are known at most */

struct form {
    uint32_t kind, size, chunk, final; /* kind: 0 whole, 1 slices, 2 workers */
};

/* What is known of launches with the same sizes. */
struct shape {
    unsigned grid[3], block[3], shared;
    struct form form;
    int unasked, pending;   /* whether the scheduler is to be asked; whether a part is being timed */
    unsigned samples, passed; /* how many parts were timed in this form, and how many were not since it is final */
    float times[SAMPLES];     /* the last, ... */
    _Atomic float seconds;    /* ... and the least of them, 0 if there is none */
    struct shape *next;
};
struct kernel {
    struct module *module; /* NULL if nothing is known */
    Handle owner;          /* the module or library of a kernel of which nothing is known */
    uint32_t number, parameters, forms, checked; /* forms and checked: bits by kind, less one */
    uint64_t pointers;                           /* parameters that may be pointers, as bits */
    unsigned late, shapes_known, shared[3];
    Handle of_form[3]; /* by kind */
    struct shape *shapes;
    char *name;
};
struct module {
    uint32_t id, count;
    Handle forms;
    struct kernel *kernels;
};

struct map {
    size_t used, size;
    struct entry {
        Handle key;
        void *value;
    } *entries;
};
static struct map functions, modules;

static pthread_mutex_t shaping = PTHREAD_MUTEX_INITIALIZER; /* of all shapes */

static struct entry *place(const struct map *map, Handle key) {
    size_t at = (size_t)((uintptr_t)key * 0x9E3779B97F4A7C15u >> 16) & (map->size - 1);
    while (map->entries[at].key && map->entries[at].key != key) at = (at + 1) & (map->size - 1);
    return &map->entries[at];
}

static void *get(struct map *map, Handle key) {
    pthread_mutex_lock(&tables);
    void *found = map->size ? place(map, key)->value : NULL;
    pthread_mutex_unlock(&tables);
    return found;
}

static void put(struct map *map, Handle key, void *value) {
    pthread_mutex_lock(&tables);
    if (2 * map->used >= map->size) {
        struct map larger = {map->used, map->size ? 2 * map->size : 64, NULL};
        larger.entries = calloc(larger.size, sizeof *larger.entries);
        for (size_t k = 0; k < map->size; k++)
            if (map->entries[k].key) *place(&larger, map->entries[k].key) = map->entries[k];
        free(map->entries);
        *map = larger;
    }
    struct entry *entry = place(map, key);
    map->used += !entry->key;
    *entry = (struct entry){key, value};
    pthread_mutex_unlock(&tables);
}

/* Return the bytes of an image that the scheduler can find PTX for: a text, a container that has
 * some, or machine code, whose PTX may have been kept when it was assembled. */
static const char *ptx_in(const void *image, size_t *size) {
    const char *at = image;
    uint32_t magic;
    memcpy(&magic, at, sizeof magic);
    if (magic == 0x466243b1) { /* a wrapper: its second pointer leads to the container */
        memcpy(&at, at + 8, sizeof at);
        memcpy(&magic, at, sizeof magic);
    }
    if (magic == 0xba55ed50) {
        const char *end = at + *(const uint16_t *)(at + 6) + *(const uint64_t *)(at + 8);
        *size = (size_t)(end - at);
        for (const char *entry = at + *(const uint16_t *)(at + 6); entry + 64 <= end;
             entry += *(const uint32_t *)(entry + 4) + *(const uint64_t *)(entry + 8))
            if (*(const uint16_t *)entry == 1) return at;
        return NULL;
    }
    if (magic == 0x464c457f) { /* ELF: one of its two tables is at its end */
        size_t programs = *(const uint64_t *)(at + 32) + (size_t)*(const uint16_t *)(at + 54) * *(const uint16_t *)(at + 56);
        size_t sections = *(const uint64_t *)(at + 40) + (size_t)*(const uint16_t *)(at + 58) * *(const uint16_t *)(at + 60);
        *size = programs > sections ? programs : sections;
    } else
        *size = strlen(at);
    return at;
}

static uint32_t word(const char **at) {
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

/* Ask for the forms of a module's kernels, and load them. */
static void loaded(Handle handle, const void *image) {
    uint32_t architecture, size;
    size_t length = 0;
    char *reply;
    if (!image || !governed() || self.critical) return;
    image = ptx_in(image, &length);
    if (!image || length > UINT32_MAX / 2) return;
    int major = 0, minor = 0, device = 0;
    if (driver.cuCtxGetDevice(&device)) device = 0;
    driver.cuDeviceGetAttribute(&major, 75, device);
    driver.cuDeviceGetAttribute(&minor, 76, device);
    architecture = (uint32_t)(10 * major + minor);
    if (!ask(MODULE, &architecture, sizeof architecture, image, length, &reply, &size, MODULE_REPLY_S)) return;
    struct module *module = calloc(1, sizeof *module);
    const char *at = reply;
    module->id = word(&at);
    module->count = word(&at);
    module->kernels = calloc(module->count + 1, sizeof *module->kernels);
    for (uint32_t k = 0; k < module->count; k++) {
        struct kernel *kernel = &module->kernels[k];
        *kernel = (struct kernel){.module = module, .number = k};
        kernel->parameters = word(&at);
        kernel->forms = word(&at);
        kernel->pointers = word(&at);
        kernel->pointers |= (uint64_t)word(&at) << 32;
        uint32_t letters = word(&at);
        kernel->name = strndup(at, letters);
        at += letters;
    }
    int mode = relaxed(2);
    if (*at && driver.cuLibraryLoadData(&module->forms, at, NULL, NULL, 0, NULL, NULL, 0)) module->forms = NULL;
    relaxed(mode);
    if (!module->forms)
        for (uint32_t k = 0; k < module->count; k++) module->kernels[k].forms = 0;
    free(reply);
    put(&modules, handle, module);
}

static struct kernel *new_kernel(Handle function, Handle owner) {
    struct kernel *made = calloc(1, sizeof *made);
    if (made) made->owner = owner, put(&functions, function, made);
    return made;
}

static void got(Handle function, Handle owner, const char *name) {
    struct module *module = get(&modules, owner);
    for (uint32_t k = 0; module && k < module->count; k++)
        if (!strcmp(module->kernels[k].name, name)) {
            put(&functions, function, &module->kernels[k]);
            return;
        }
    struct kernel *before = get(&functions, function);
    if (self.joined > 0 && !self.critical && (!before || before->module || before->owner != owner))
        new_kernel(function, owner);
}

/* Return how launches with some sizes are made; of many sizes, those not used for longest are forgotten. */
static struct shape *shape_of(struct kernel *k, const struct config *c) {
    struct shape **at = &k->shapes, **oldest = NULL, *s;
    for (; (s = *at) && (memcmp(s->grid, c->grid, sizeof s->grid + sizeof s->block) || s->shared != c->shared); at = &s->next)
        if (!s->pending) oldest = at;
    if (!s) {
        if (k->shapes_known < MOST_SHAPES) {
            s = malloc(sizeof *s), k->shapes_known += s != NULL;
        } else if (oldest)
            s = *oldest, *oldest = s->next;
        if (!s) return NULL;
        *s = (struct shape){.shared = c->shared, .unasked = 1};
        memcpy(s->grid, c->grid, sizeof s->grid + sizeof s->block);
    } else
        *at = s->next;
    s->next = k->shapes, k->shapes = s;
    return s;
}

static int is_form(const struct form *a, const struct form *b) {
    return a->kind == b->kind && a->size == b->size && a->chunk == b->chunk;
}

static void set_form(struct shape *s, struct form form) {
    if (!is_form(&form, &s->form)) s->samples = 0, s->seconds = 0;
    s->form = form;
}

/* Ask the scheduler for the form of a kernel. */
static void ask_form(const struct kernel *k, struct shape *s) {
    uint32_t size, head[12] = {k->module->id, k->number, s->grid[0], s->grid[1], s->grid[2], s->block[0], s->block[1],
                               s->block[2], s->shared, (uint32_t)self.most_shared, (uint32_t)self.sms, 0};
    char *reply;
    if (!ask(FORM, head, sizeof head, NULL, 0, &reply, &size, REPLY_S)) return;
    const char *at = reply;
    struct form form = {word(&at), 0, 0, 0};
    form.size = word(&at), form.chunk = word(&at), form.final = word(&at);
    free(reply);
    set_form(s, form);
    s->unasked = 0;
}
