/* The flag that stops workers: a word on the GPU, which a thread of the library writes when the gate
 * is closed. A second thread, since it calls the driver, where it may have to wait for the gate. */
#pragma once
#include "streams.h"

#define AGAIN_S 10e-6 /* other streams of the process may have taken the flag down: it is raised again, */
#define RAISES 20     /* so often, unless the workers have ended */

static pthread_mutex_t raising = PTHREAD_MUTEX_INITIALIZER, /* held while the context must not end */
                       starting = PTHREAD_MUTEX_INITIALIZER;

/* Whether workers are launched that have not ended; few other launches are counted in best-effort lanes. */
static int workers_run(void) {
    for (unsigned k = 0; k < self.area->lanes_used; k++)
        if (!idle(&self.area->lanes[k])) return 1;
    return 0;
}

static void *raise_flag(void *nothing) {
    begin_thread("dovetail-flag");
    while (self.joined > 0) {
        unsigned level = self.gate->level;
        int raised = 0;
        for (int k = 0; k < RAISES && !self.gate->level && workers_run(); k++) {
            pthread_mutex_lock(&raising);
            if (self.ready && !driver.cuCtxSetCurrent(self.context) &&
                !driver.cuStreamWriteValue32(own.stream, own_word(FLAG), 1, 0))
                raised = 1;
            pthread_mutex_unlock(&raising);
            nap(AGAIN_S);
        }
        if (raised) count(PREEMPTED);
        if (level == self.gate->level) doze(self.gate, level, DOZE_S);
    }
    own.raises = 0;
    return nothing;
}

/* Return whether the flag is raised when the gate is closed. */
static int flag_works(void) {
    pthread_mutex_lock(&starting);
    if (!own.raises) own.raises = start_thread(raise_flag) ? 1 : -1;
    pthread_mutex_unlock(&starting);
    return own.raises > 0;
}
