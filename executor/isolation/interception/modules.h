/* Modules and their kernels: which forms they have, and how launches of each shape are made. */
#pragma once
#include "process.h"

#define MODULE_REPLY_S 300.0

struct shape {
    unsigned grid[3], block[3], shared;
    uint32_t kind, size, final;
    struct shape *next;
};
struct kernel {
    struct module *module; /* NULL if nothing is known */
    uint32_t number, parameters, forms;
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
    pthread_mutex_unlock(&turn);
    driver.cuLibraryUnload(module->forms);
    for (uint32_t k = 0; k < module->count; k++) {
        for (struct shape *s = module->kernels[k].shapes, *next; s; s = next) next = s->next, free(s);
        free(module->kernels[k].name);
    }
    free(module->kernels);
    free(module);
}

/* Return the bytes of an image that may have PTX: a text, or a container of several images. */
static const void *ptx_in(const void *image, size_t *size, uint32_t *container) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == 0x466243b1) { /* a wrapper: its second pointer leads to the container */
        memcpy(&image, (const char *)image + 8, sizeof image);
        memcpy(&magic, image, sizeof magic);
    }
    *container = magic == 0xba55ed50;
    if (*container) {
        uint16_t header;
        uint64_t rest;
        memcpy(&header, (const char *)image + 6, sizeof header);
        memcpy(&rest, (const char *)image + 8, sizeof rest);
        *size = header + rest;
    } else if (magic != 0x464c457f)
        *size = strlen(image);
    return magic == 0x464c457f ? NULL : image;
}

static uint32_t word(const char **at) {
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

/* Ask for the forms of a module's kernels, and load them. */
static void loaded(Handle handle, const void *image) {
    uint32_t head[2], size;
    size_t length = 0;
    char *reply;
    if (!image || !governed() || self.critical) return;
    image = ptx_in(image, &length, &head[1]);
    if (!image || length > UINT32_MAX / 2) return;
    int major = 0, minor = 0, device = 0;
    if (driver.cuCtxGetDevice(&device)) device = 0;
    driver.cuDeviceGetAttribute(&major, 75, device);
    driver.cuDeviceGetAttribute(&minor, 76, device);
    head[0] = (uint32_t)(10 * major + minor);
    if (!ask(MODULE, head, sizeof head, image, length, &reply, &size, MODULE_REPLY_S)) return;
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
