"""A simulated GPU: SMs on which blocks of several clients run, under many ways of sharing.

Discrete events, no hardware: figures of this package are simulated. An SM holds as many blocks of a
kernel as its residency says. Blocks run to their end; those of different clients that run at the
same time slow each other by ``contention``. Kernels are dispatched in the order in which they
became ready, as an H200 did it for clients of MPS. Durations of kernels are drawn from
distributions (``Stream``). What else takes time is in ``Costs``.

Requests of the latency-critical client arrive whether or not earlier ones were answered, and are
served one after the other. Its host puts all kernels of a request into the stream at once.

=================  ===============================================================================
way                best-effort kernels
=================  ===============================================================================
``alone``          none
``mps``            dispatched as they come
``mps-priority``   dispatched as they come, but blocks of the latency-critical client first (as
                   Tally's paper describes it; on an H200 the priority had no effect)
``mps-cap``        on at most a part of the SMs
``time-slicing``   one client at a time; a turn ends with its time and the kernel that runs then
``tgs``            at a limited rate, as in TGS (NSDI 2023); blocks of the other first
``blocking``       whole, by the library before the gate, as it was on an H200: one launch at a
                   time, which the job's own thread waits for
``blocking-forms`` the same with slices, and workers with a flag in host memory
``gate``           whole, behind the gate, without a look at when the next request is due
``gate-due``       the same with that look: what stock PyTorch gets
``gate-slices``    the same with slices: what kernels with PTX get
``gate-workers``   the same with workers, too (``--unproven``)
=================  ===============================================================================
"""
