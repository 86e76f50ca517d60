/* A made-up libcuda.so.1: what is called is what the program that loads it has registered. */
#include <stddef.h>
#include <string.h>

typedef size_t W;
typedef int (*Call)(W, W, W, W, W, W, W, W, W, W, W);
static struct {
    const char *name;
    Call call;
} known[128];

void made_up_register(const char *name, void *call) {
    int k = 0;
    while (known[k].name && strcmp(known[k].name, name)) k++;
    known[k].name = strdup(name);
    known[k].call = (Call)call;
}

static Call find(const char *name) {
    for (int k = 0; known[k].name; k++)
        if (!strcmp(known[k].name, name)) return known[k].call;
    return NULL;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, int *status) {
    *found = !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : (void *)find(name);
    if (status) *status = !*found;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}

/* Arguments of each width are passed in places of eight bytes. */
#define EXPORTED(name)                                                                             \
    int name(W a, W b, W c, W d, W e, W f, W g, W h, W i, W j, W k) {                              \
        Call call = find(#name);                                                                   \
        return call ? call(a, b, c, d, e, f, g, h, i, j, k) : 500;                                 \
    }
EXPORTED(cuInit)
EXPORTED(cuModuleLoadData)
EXPORTED(cuModuleGetFunction)
EXPORTED(cuLaunchKernel)
EXPORTED(cuLaunchKernel_ptsz)
