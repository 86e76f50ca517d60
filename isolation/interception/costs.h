/* What operations of streams cost on a GPU, in seconds: assumed, none was measured. */
#pragma once

#define BOUND_S 31.6e-6 /* what may be in flight of a stream when the gate closes */
#define WAIT_S 1e-6     /* a wait at an open gate */
#define WRITE_S 1e-6    /* a word that a stream writes */
#define EMPTY_S 3e-6    /* a launch of workers that find no block left */
