/* A stand-in for libcuda.so.1 that computes nothing: IT IS NO CUDA and shows nothing about GPUs.

   It lets tests run the program that speaks to CUDA: every argument is checked as cuda.h declares
   it. As a client of MPS it speaks to the stand-in daemon (tests/executor/mps/standin.py):
   it attaches on cuInit, hears of faults, and makes them where a "kernel" does. Numbers (132 SMs,
   81920 MiB, 2 ms a kernel at a full share) are made up. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
       ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, CONNECTION_FAILED = 805, NOT_READY = 807,
       TERMINATED = 810 };
enum { ALL_SMS = 132 };
static const size_t MIB = 1 << 20, ALL_MIB = 81920, CONTEXT_MIB = 500;

static int ready, under_mps, partition_sms, context, module, kernels[3];
static volatile int broken;
static size_t taken_mib;
static double queued_ms;

static int pipe_socket(void) {
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int found = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%s/control", pipes ? pipes : "/tmp/nvidia-mps");
    if (connect(found, (struct sockaddr *)&name, sizeof name) == 0) return found;
    close(found);
    return -1;
}

static int meaning(const char *word) {
    if (!strncmp(word, "fault", 5)) return LAUNCH_FAILED;
    return atoi(word) ? atoi(word) : SUCCESS;
}

static void *listens(void *stream) {
    char word[64];
    while (fgets(word, sizeof word, stream))
        if (!broken) broken = meaning(word);
    if (!broken) broken = CONNECTION_FAILED;
    return NULL;
}

static int attach(void) {
    int connection = pipe_socket();
    char word[64];
    pthread_t thread;
    if (connection < 0 || getenv("STANDIN_NO_MPS")) return SUCCESS;
    FILE *stream = fdopen(connection, "r");
    const char *partition = getenv("CUDA_MPS_SM_PARTITION");
    dprintf(connection, "{\"client\": %d, \"partition\": \"%s\"}\n", getpid(),
            partition ? partition : "");
    if (!fgets(word, sizeof word, stream)) return CONNECTION_FAILED;
    if (strncmp(word, "attached", 8)) return meaning(word);
    under_mps = 1;
    partition_sms = atoi(word + 8);
    return pthread_create(&thread, NULL, listens, stream);
}

static int told_number(const char *name, int otherwise) {
    const char *text = getenv(name), *limit = text ? strchr(text, '=') : NULL;
    return text ? atoi(limit ? limit + 1 : text) : otherwise;
}

static int sms(void) {
    int percentage = told_number("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100);
    int found = ALL_SMS * percentage / 200 * 2;
    if (partition_sms) return partition_sms;
    return !under_mps ? ALL_SMS : found < 8 ? 8 : found;
}

static size_t most_mib(void) {
    return under_mps ? (size_t)told_number("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ALL_MIB) : ALL_MIB;
}

int cuInit(unsigned flags) {
    int status = flags ? INVALID_VALUE : getenv("STANDIN_FAIL") ? NO_DEVICE : attach();
    ready = status == SUCCESS;
    return status;
}

int cuDriverGetVersion(int *version) { *version = 0; return SUCCESS; }

int cuDeviceGet(int *device, int ordinal) {
    *device = 0;
    return !ready ? NOT_INITIALIZED : ordinal ? NO_DEVICE : SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }

int cuDevicePrimaryCtxRetain(void **found, int device) {
    if (device) return INVALID_VALUE;
    taken_mib = CONTEXT_MIB;
    *found = &context;
    return broken;
}

int cuCtxSetCurrent(void *given) { return given == &context ? SUCCESS : INVALID_VALUE; }

int cuDeviceGetName(char *name, int size, int device) {
    if (device) return INVALID_VALUE;
    snprintf(name, size, "stand-in, no GPU");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int which, int device) {
    if (device || (which != 16 && which != 133)) return INVALID_VALUE;
    *value = which == 16 ? sms() : under_mps;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *left, size_t *total) {
    *total = most_mib() * MIB;
    *left = *total - taken_mib * MIB;
    return broken;
}

int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    size_t mib = (size + MIB - 1) / MIB;
    if (broken) return broken;
    if (taken_mib + mib > most_mib()) return OUT_OF_MEMORY;
    *address = 0x7f0000000000ULL + taken_mib * MIB;
    taken_mib += mib;
    return SUCCESS;
}

int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t size) {
    if (broken) return broken;
    return address >> 40 == 0x7f && value == 1 && size ? SUCCESS : INVALID_VALUE;
}

int cuModuleLoadData(void **found, const char *image) {
    *found = &module;
    return strstr(image, ".target sm_70") ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **found, void *given, const char *name) {
    static const char *const names[] = {"work", "store", "stop"};
    for (int place = 0; place < 3; place++)
        if (given == &module && !strcmp(name, names[place])) {
            *found = &kernels[place];
            return SUCCESS;
        }
    return 500;
}

static void fault(int mine) {
    int connection = under_mps ? pipe_socket() : -1;
    broken = mine;
    if (connection < 0) return;
    dprintf(connection, "standin fault\n");
    shutdown(connection, SHUT_WR);
    char answer[64];
    (void)!read(connection, answer, sizeof answer);
    close(connection);
}

int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    if (broken) return broken;
    if (!gx || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1) return INVALID_VALUE;
    if (shared || stream || extra) return INVALID_VALUE;
    if (kernel == &kernels[0]) {
        unsigned long long out = *(unsigned long long *)parameters[0];
        unsigned long long rounds = *(unsigned long long *)parameters[1];
        if (out >> 40 != 0x7f) return INVALID_VALUE;
        queued_ms += rounds / 1e4 * ALL_SMS / sms();
    } else if (kernel == &kernels[1]) {
        unsigned long long address = *(unsigned long long *)parameters[0];
        if (address >> 40 != 0x7f) fault(ILLEGAL_ADDRESS);
    } else {
        fault(LAUNCH_FAILED);
    }
    return SUCCESS;
}

int cuCtxSynchronize(void) {
    struct timespec pause = {0, (long)(queued_ms * 1e6) % 1000000000L};
    if (queued_ms > 0) nanosleep(&pause, NULL);
    queued_ms = 0;
    return broken;
}

int cuGetErrorName(int status, const char **name) {
    static const struct { int status; const char *name; } names[] = {
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {CONNECTION_FAILED, "CUDA_ERROR_MPS_CONNECTION_FAILED"},
        {NOT_READY, "CUDA_ERROR_MPS_SERVER_NOT_READY"},
        {TERMINATED, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
        {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"},
    };
    *name = NULL;
    for (size_t place = 0; place < sizeof names / sizeof *names; place++)
        if (names[place].status == status) *name = names[place].name;
    return *name ? SUCCESS : INVALID_VALUE;
}
