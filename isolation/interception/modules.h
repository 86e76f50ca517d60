/* Modules and their kernels: which forms they have, and how launches of each shape are made. */
#pragma once
#include "process.h"

#define MODULE_REPLY_S 300.0

struct shape {
    unsigned grid[3], block[3], shared;
    uint32_t kind, size, chunk, final; /* chunk: blocks that a worker takes at a time */
    struct shape *next;
};
struct kernel {
    struct module *module; /* NULL if nothing is known */
    uint32_t number, parameters, forms, checked; /* forms and checked: bits by kind, less one */
    uint64_t pointers;                           /* parameters that may be pointers, as bits */
    unsigned late, shapes_known, shared[3];
    Handle of_form[3]; /* by kind: 1 slices, 2 workers */
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

/* The best-effort launch before: its lane, -1 if it is not to be waited for. */
static struct {
    int lane;
    Handle stream;
    struct kernel *kernel;
} last = {.lane = -1};

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

static void forget(struct module *module) {
    if (!module) return;
    pthread_mutex_lock(&turn);
    pthread_mutex_lock(&tables);
    for (size_t k = 0; k < functions.size; k++) {
        struct kernel *of = functions.entries[k].value;
        if (of && of->module == module) functions.entries[k].value = NULL;
    }
    for (size_t k = 0; k < modules.size; k++)
        if (modules.entries[k].value == module) modules.entries[k].value = NULL;
    pthread_mutex_unlock(&tables);
    if (last.lane >= 0 && last.kernel->module == module) last.lane = -1;
    pthread_mutex_unlock(&turn);
    driver.cuLibraryUnload(module->forms);
    for (uint32_t k = 0; k < module->count; k++) {
        for (struct shape *s = module->kernels[k].shapes, *next; s; s = next) next = s->next, free(s);
        free(module->kernels[k].name);
    }
    free(module->kernels);
    free(module);
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

static void got(Handle function, Handle owner, const char *name) {
    struct module *module = get(&modules, owner);
    for (uint32_t k = 0; module && k < module->count; k++)
        if (!strcmp(module->kernels[k].name, name)) {
            put(&functions, function, &module->kernels[k]);
            return;
        }
    if (get(&functions, function)) put(&functions, function, NULL);
}
