/* What a process shares with the scheduler of its GPU: a socket and memory, as in server.py. */
#pragma once
#include "driver.h"
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define VERSION 3
#define LANES 60
#define AREAS 64
#define PAIRS 64
#define PAGE 65536 /* the largest page of a machine: what each may write is set by page */
#define REPLY_S 5.0
#define ANOTHER_S 1.0    /* between looks for a scheduler in place of one that has ended, ... */
#define ANOTHER_REPLY_S 0.05 /* ... for which launches wait */

/* The memory: a header, which the scheduler writes; an area for each process, written by its owner
 * and its owner's GPU (and the scheduler: `ignored`); a gate for each, written by its owner and by
 * latency-critical processes. A write to anything else is a fault. */

struct header {
    _Atomic uint64_t critical, best_effort; /* areas, as bits */
    char rest[PAGE - 16];
};
struct lane {
    atomic_uint launched, ended, ignored, unused; /* numbers of launches; equal when none is there */
};
enum count { ISOLATED, WHOLE, NO_PTX, REFUSED, ATTRIBUTES, COOPERATIVE, GRAPH, CAPTURED, BUFFER, CONTEXT, LATE, PREEMPTED, ANNOUNCED, UNANNOUNCED, ALONE };
struct area {
    atomic_uint counts[15], lanes_used;
    struct lane lanes[LANES];
    atomic_uint taken[PAIRS]; /* blocks that workers had taken at the end of a launch (times.h) */
    char rest[PAGE - 64 - 16 * LANES - 4 * PAIRS];
};
struct gate {
    atomic_uint level;    /* kernels that wait for a number up to it begin; 0: none */
    atomic_uint sleepers; /* threads of the owner that sleep until it changes */
    char rest[PAGE - 8];
};
struct memory {
    struct header header;
    struct area areas[AREAS];
    struct gate gates[AREAS];
};

/* This process. */

static struct {
    atomic_int joined; /* 0: not tried; 1: yes; -1: launches are left alone; -2: until another scheduler answers */
    atomic_int ready;  /* whether the GPU knows the memory */
    int socket, critical, device, sms, most_shared;
    struct memory *memory;
    struct area *area;
    struct gate *_Atomic gate;
    _Atomic double looked_s; /* when it last looked for a scheduler */
    Address area_at, gate_at; /* as the GPU sees them */
    Handle context;
} self = {.socket = -1};
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER, talking = PTHREAD_MUTEX_INITIALIZER,
                       tables = PTHREAD_MUTEX_INITIALIZER;

/* Return where the GPU sees a word of the area. */
static Address seen(const void *word) { return self.area_at + (Address)((const char *)word - (const char *)self.area); }

static void count(enum count what) { atomic_fetch_add_explicit(&self.area->counts[what], 1, memory_order_relaxed); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void say_alone(const char *why) {
    fprintf(stderr, "dovetail: kernels of process %d are not isolated: %s\n", (int)getpid(), why);
}

/* Leave launches alone from now on; the guard opens the gate for good. */
static void leave(const char *why) {
    if (atomic_exchange(&self.joined, -1) >= 0) say_alone(why);
}

/* Leave launches alone until there is another scheduler; the gate that was shared with this one stays open. */
static void lose(const char *why) {
    int joined = 1;
    if (atomic_compare_exchange_strong(&self.joined, &joined, -2)) say_alone(why);
}

static int send_all(const void *data, size_t size) {
    for (const char *at = data; size;) {
        ssize_t sent = send(self.socket, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        at += sent, size -= (size_t)sent;
    }
    return 1;
}

/* Wait until the scheduler has written, whatever signals the job takes in the meantime. */
static int is_written(double until) {
    struct pollfd ready = {.fd = self.socket, .events = POLLIN};
    for (double left; (left = until - now()) > 0;)
        if (poll(&ready, 1, (int)(1000 * left) + 1) >= 0 || errno != EINTR) return ready.revents != 0;
    return 0;
}

static int receive_all(void *data, size_t size, double within_s) {
    double until = now() + within_s;
    for (char *at = data; size;) {
        if (!is_written(until)) return 0;
        ssize_t got = recv(self.socket, at, size, MSG_DONTWAIT);
        if (!got) return 0;
        if (got > 0) at += got, size -= (size_t)got;
    }
    return 1;
}

/* Whether the scheduler is there. It writes nothing that was not asked for. */
static int alive(void) {
    char byte;
    if (self.joined < 1) return 0;
    ssize_t got = recv(self.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (!got || (got < 0 && errno != EAGAIN && errno != EINTR)) lose("the scheduler has ended");
    return self.joined > 0;
}

enum { HELLO = 1, MODULE, FORM, MEASURED, FAILED = 6 };
struct message {
    uint32_t kind, size;
};

/* Map the header and the pages behind it, each from its file; return NULL if they cannot be had. */
static struct memory *mapped(const int files[2], uint32_t area, int critical) {
    struct memory *at = mmap(NULL, sizeof *at, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    struct gate *gates = critical ? at->gates : &at->gates[area];
    int way = MAP_SHARED | MAP_FIXED;
    if (mmap(&at->header, PAGE, PROT_READ, way, files[0], 0) != MAP_FAILED &&
        mmap(at->areas, sizeof *at - PAGE, PROT_READ, way, files[1], 0) != MAP_FAILED &&
        !mprotect(&at->areas[area], PAGE, PROT_READ | PROT_WRITE) &&
        !mprotect(gates, critical ? sizeof at->gates : PAGE, PROT_READ | PROT_WRITE))
        return at;
    munmap(at, sizeof *at);
    return NULL;
}

static int hello(const char *path, uint32_t critical, double within_s) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval within = {.tv_sec = (time_t)within_s, .tv_usec = 1};
    if (strlen(path) >= sizeof address.sun_path) return 0;
    strcpy(address.sun_path, path);
    self.socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(self.socket, SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within);
    struct {
        struct message message;
        uint32_t version, critical, pid;
    } request = {{HELLO, 12}, VERSION, critical, (uint32_t)getpid()};
    while (connect(self.socket, (struct sockaddr *)&address, sizeof address))
        if (errno != EINTR) return 0;
    if (!send_all(&request, sizeof request)) return 0;
    uint32_t area = AREAS;
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {&area, sizeof area};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    if (!is_written(now() + within_s) || recvmsg(self.socket, &message, MSG_CMSG_CLOEXEC) != sizeof area) return 0;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    int files[2];
    if (!first || first->cmsg_type != SCM_RIGHTS || first->cmsg_len != CMSG_LEN(sizeof files) || area >= AREAS) return 0;
    memcpy(files, CMSG_DATA(first), sizeof files);
    struct memory *memory = mapped(files, area, (int)critical);
    close(files[0]), close(files[1]);
    if (!memory) return 0;
    self.memory = memory;
    self.area = &self.memory->areas[area], self.gate = &self.memory->gates[area];
    self.critical = (int)critical;
    return 1;
}

static int governed(void) {
    if (self.joined) return self.joined > 0;
    pthread_mutex_lock(&joining);
    if (!self.joined) {
        const char *path = getenv("DOVETAIL_ISOLATION_SOCKET"), *priority = getenv("DOVETAIL_ISOLATION_PRIORITY");
        need_driver();
        if (!path)
            self.joined = -1;
        else if (!has_driver)
            leave("the driver is older than CUDA 12");
        else if (!hello(path, priority && !strcmp(priority, "latency"), REPLY_S))
            leave("no scheduler answers");
        else
            self.joined = 1;
    }
    pthread_mutex_unlock(&joining);
    return self.joined > 0;
}

/* Send a request, and take the reply if one is expected: its caller frees it. What a launch asks is
 * not asked while another thread waits for its module, which may take minutes. */
static int ask(uint32_t kind, const void *head, uint32_t head_size, const void *body, size_t body_size, char **reply,
               uint32_t *size, double within_s) {
    struct message header = {kind, (uint32_t)(head_size + body_size)};
    int can_be_later = kind == FORM || kind == MEASURED;
    if (!can_be_later)
        pthread_mutex_lock(&talking);
    else if (pthread_mutex_trylock(&talking))
        return 0;
    int well = self.joined > 0 && send_all(&header, sizeof header) && send_all(head, head_size) &&
               send_all(body, body_size);
    if (well && reply) {
        well = receive_all(size, sizeof *size, within_s);
        *reply = well ? malloc(*size + 1) : NULL;
        well = *reply && receive_all(*reply, *size, within_s);
        if (well)
            (*reply)[*size] = 0;
        else
            free(*reply);
    }
    pthread_mutex_unlock(&talking);
    if (!well) lose("the scheduler does not answer");
    return well;
}
