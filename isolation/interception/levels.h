/* Which kernels may begin after the latency-critical processes have been idle for a time.
 *
 * Kernels are of classes: one of class c takes up to 2^c microseconds. A level c lets those of
 * classes up to c begin. The level follows from the gaps between latency-critical launches so far:
 * after idle time t, class c is let in if few of the gaps longer than t ended within t + 2^c, or if
 * waiting would not make them fewer. No function here reads a clock, or changes what it is not given. */
#pragma once
#include <stdint.h>

#define LOWEST 2            /* the lowest class; a level below lets nothing begin */
#define TOP 24              /* the highest class, and the level that lets all begin */
#define BORDERS (1 + 4 * TOP)
#define MEMORY 4096.0       /* a gap counts for about so many */
#define FEW 2.0             /* fewer gaps say nothing, ... */
#define USUAL (1.0 / 16)    /* ... and if they are a smaller part of all, not what is best */
#define EACH 32             /* the first levels are found after each gap, ... */
#define SOME 16             /* ... later ones after so many */
#define MOST_ENDING 0.1     /* the share of gaps that may end within a kernel */
#define ABOUT 1.5           /* a share up to so many times the least is not worth waiting for less */

/* Gaps counted between borders, and the level from each border on. */
struct gaps {
    double count[BORDERS];
    uint8_t level[BORDERS];
    unsigned added, stale; /* gaps so far, and since the levels were found */
};

/* Return a border, in microseconds: 0, 1, 2^(1/4), ... 2^(TOP - 1/4). */
static double border_us(int k) {
    static const double quarter[] = {1, 1.189207115002721, 1.4142135623730951, 1.681792830507429};
    return k ? quarter[(k - 1) % 4] * (double)(1u << (k - 1) / 4) : 0;
}

/* Return the last border that is not above a time. */
static int border_of(double us) {
    if (us < 1) return 0;
    if (us >= border_us(BORDERS - 1)) return BORDERS - 1;
    int k = 1 + 4 * (31 - __builtin_clz((unsigned)us));
    while (k + 1 < BORDERS && border_us(k + 1) <= us) k++;
    return k;
}

static unsigned class_of(double seconds) {
    unsigned class = LOWEST;
    while (class < TOP && seconds * 1e6 > (double)(1u << class)) class++;
    return class;
}

static void find_levels(struct gaps *g) {
    double at[BORDERS], sums[BORDERS + 1] = {0}, share[BORDERS];
    for (int k = 0; k < BORDERS; k++)
        at[k] = border_us(k), sums[k + 1] = sums[k] + g->count[k], g->level[k] = LOWEST - 1;
    for (unsigned class = LOWEST; class <= TOP; class++) {
        double least = 1, takes = (double)(1u << class);
        for (int k = 0, end = 0; k < BORDERS; k++) {
            /* How many gaps end within the kernel: between two borders they are spread evenly. */
            double longer = sums[BORDERS] - sums[k], until = at[k] + takes;
            while (end + 1 < BORDERS && at[end + 1] <= until) end++;
            double shorter = sums[end];
            if (end + 1 < BORDERS) shorter += g->count[end] * (until - at[end]) / (at[end + 1] - at[end]);
            share[k] = longer < FEW ? 0 : (shorter - sums[k]) / longer;
            if (longer >= FEW && longer >= USUAL * sums[BORDERS] && share[k] < least) least = share[k];
        }
        for (int k = 0; k < BORDERS; k++)
            if (g->level[k] == class - 1 && (share[k] <= MOST_ENDING || share[k] <= ABOUT * least)) g->level[k]++;
    }
}

static void forget_gaps(struct gaps *g) {
    *g = (struct gaps){0};
    find_levels(g);
}

static void add_gap(struct gaps *g, double us) {
    for (int k = 0; k < BORDERS; k++) g->count[k] *= 1 - 1 / MEMORY;
    g->count[border_of(us)]++;
    g->added++, g->stale++;
}

/* Find the levels anew if gaps were added: at first after each, then after some. Return whether. */
static int renew_levels(struct gaps *g) {
    if (!g->stale || (g->added > EACH && g->stale < SOME)) return 0;
    find_levels(g);
    g->stale = 0;
    return 1;
}

/* Return the level after an idle time, and when it changes: 0 if it does not. */
static unsigned level_after(const struct gaps *g, double us, double *changes_us) {
    int k = border_of(us), next = k;
    while (next < BORDERS && g->level[next] == g->level[k]) next++;
    *changes_us = next < BORDERS ? border_us(next) : 0;
    return g->level[k];
}
