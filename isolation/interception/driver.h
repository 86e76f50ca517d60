/* The functions of the CUDA driver that the shim calls, found past its own. */
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef void *Handle;
typedef uint64_t Address;

/* Of a launch. */
struct config {
    unsigned grid[3], block[3], shared;
    Handle stream;
    void *attributes;
    unsigned count;
};

#define GRID unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
#define DRIVER(F)                                                                                  \
    F(cuLaunchKernel, (Handle, GRID, Handle, void **, void **))                                    \
    F(cuLaunchKernelEx, (const struct config *, Handle, void **, void **))                         \
    F(cuLaunchCooperativeKernel, (Handle, GRID, Handle, void **))                                  \
    F(cuGraphLaunch, (Handle, Handle))                                                             \
    F(cuModuleLoad, (Handle *, const char *))                                                      \
    F(cuModuleLoadData, (Handle *, const void *))                                                  \
    F(cuModuleLoadDataEx, (Handle *, const void *, unsigned, int *, void **))                      \
    F(cuModuleLoadFatBinary, (Handle *, const void *))                                             \
    F(cuModuleUnload, (Handle))                                                                    \
    F(cuModuleGetFunction, (Handle *, Handle, const char *))                                       \
    F(cuLibraryLoadData, (Handle *, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
    F(cuLibraryLoadFromFile, (Handle *, const char *, int *, void **, unsigned, int *, void **, unsigned)) \
    F(cuLibraryUnload, (Handle))                                                                   \
    F(cuLibraryGetKernel, (Handle *, Handle, const char *))                                        \
    F(cuLibraryGetModule, (Handle *, Handle))                                                      \
    F(cuKernelGetFunction, (Handle *, Handle))                                                     \
    F(cuKernelSetAttribute, (int, int, Handle, int))                                               \
    F(cuCtxDestroy, (Handle))                                                                      \
    F(cuCtxGetCurrent, (Handle *))                                                                 \
    F(cuCtxSetCurrent, (Handle))                                                                   \
    F(cuCtxGetDevice, (int *))                                                                     \
    F(cuDevicePrimaryCtxReset, (int))                                                              \
    F(cuDevicePrimaryCtxRelease, (int))                                                            \
    F(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))                                        \
    F(cuDeviceGetAttribute, (int *, int, int))                                                     \
    F(cuMemAlloc, (Address *, size_t))                                                             \
    F(cuMemAllocAsync, (Address *, size_t, Handle))                                                \
    F(cuMemFree, (Address))                                                                        \
    F(cuMemGetInfo, (size_t *, size_t *))                                                          \
    F(cuMemRetainAllocationHandle, (uint64_t *, Address))                                          \
    F(cuMemRelease, (uint64_t))                                                                    \
    F(cuMemHostRegister, (void *, size_t, unsigned))                                               \
    F(cuMemHostGetDevicePointer, (Address *, void *, unsigned))                                    \
    F(cuMemsetD32Async, (Address, unsigned, size_t, Handle))                                       \
    F(cuMemcpyDtoHAsync, (void *, Address, size_t, Handle))                                        \
    F(cuMemcpyDtoDAsync, (Address, Address, size_t, Handle))                                       \
    F(cuMemGetAddressRange, (Address *, size_t *, Address))                                        \
    F(cuPointerGetAttribute, (void *, int, Address))                                               \
    F(cuStreamWriteValue32, (Handle, Address, uint32_t, unsigned))                                 \
    F(cuStreamWaitValue32, (Handle, Address, uint32_t, unsigned))                                  \
    F(cuStreamCreate, (Handle *, unsigned))                                                        \
    F(cuStreamQuery, (Handle))                                                                     \
    F(cuStreamGetId, (Handle, uint64_t *))                                                         \
    F(cuStreamIsCapturing, (Handle, int *))                                                        \
    F(cuEventCreate, (Handle *, unsigned))                                                         \
    F(cuEventRecord, (Handle, Handle))                                                             \
    F(cuEventQuery, (Handle))                                                                      \
    F(cuEventElapsedTime, (float *, Handle, Handle))                                               \
    F(cuThreadExchangeStreamCaptureMode, (int *))

static struct {
#define FIELD(name, arguments) CUresult(*name) arguments;
    DRIVER(FIELD)
#undef FIELD
} driver;

typedef CUresult (*GetProcAddress)(const char *, void **, int, uint64_t);
typedef CUresult (*GetProcAddress2)(const char *, void **, int, uint64_t, int *);
static GetProcAddress driver_get;
static GetProcAddress2 driver_get_2;
static void *(*real_dlsym)(void *, const char *);
static int has_driver;

__attribute__((constructor)) static void find_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (int k = 0; k < 3 && !real_dlsym; k++) real_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[k]);
}

static CUresult missing(void) { return 500; }

static void find_driver(void) {
    if (!real_dlsym) find_dlsym();
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library) {
        driver_get = (GetProcAddress)real_dlsym(library, "cuGetProcAddress");
        driver_get_2 = (GetProcAddress2)real_dlsym(library, "cuGetProcAddress_v2");
    }
    has_driver = driver_get_2 != NULL;
#define FIND(name, arguments)                                                                      \
    if (!driver_get_2 || driver_get_2(#name, (void **)&driver.name, 12000, 1, NULL) || !driver.name) { \
        driver.name = library ? (void *)real_dlsym(library, #name) : NULL;                         \
        has_driver = 0;                                                                            \
    }                                                                                              \
    if (!driver.name) driver.name = (void *)missing;
    DRIVER(FIND)
#undef FIND
}

static void need_driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
}

/* What makes calls fail while another thread captures a graph is allowed while this is set. */
static int relaxed(int mode) {
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}
