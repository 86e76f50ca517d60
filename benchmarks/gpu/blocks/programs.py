"""Small kernels in PTX, which any driver compiles: work of a known length, and marks and flags."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from blocks.cuda import Cuda, Event, Launch, Shape, Stream

_PTX: Final = """
.version 6.4
.target sm_70
.address_size 64

.visible .entry nothing()
{
    ret;
}

.visible .entry work(.param .u64 out, .param .u64 rounds)
{
    .reg .pred %p;
    .reg .b32 %i<5>;
    .reg .f32 %f<4>;
    .reg .b64 %l<6>;
    ld.param.u64 %l1, [out];
    ld.param.u64 %l2, [rounds];
    mov.u64 %l3, 0;
    mov.u32 %i1, %tid.x;
    mov.u32 %i2, %ctaid.x;
    mov.u32 %i3, %ntid.x;
    mad.lo.u32 %i4, %i2, %i3, %i1;
    and.b32 %i4, %i4, 0x3FFFF;
    cvt.rn.f32.u32 %f1, %i4;
    mov.f32 %f2, 0f3F7FFFEF;
    mov.f32 %f3, 0f3727C5AC;
again:
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    add.u64 %l3, %l3, 1;
    setp.lt.u64 %p, %l3, %l2;
    @%p bra again;
    cvta.to.global.u64 %l4, %l1;
    mul.wide.u32 %l5, %i4, 4;
    add.u64 %l4, %l4, %l5;
    st.global.f32 [%l4], %f1;
    ret;
}

.visible .entry mark(.param .u64 at, .param .u32 value)
{
    .reg .b32 %i<2>;
    .reg .b64 %l<3>;
    ld.param.u64 %l1, [at];
    ld.param.u32 %i1, [value];
    cvta.to.global.u64 %l2, %l1;
    st.volatile.global.u32 [%l2], %i1;
    membar.sys;
    ret;
}

.visible .entry echo(.param .u64 heard, .param .u64 said, .param .u32 times, .param .u32 most)
{
    .reg .pred %p;
    .reg .b32 %i<6>;
    .reg .b64 %l<5>;
    ld.param.u64 %l1, [heard];
    ld.param.u64 %l2, [said];
    ld.param.u32 %i1, [times];
    ld.param.u32 %i5, [most];
    cvta.to.global.u64 %l3, %l1;
    cvta.to.global.u64 %l4, %l2;
    mov.u32 %i2, 1;
    mov.u32 %i3, 0;
again:
    add.u32 %i3, %i3, 1;
    setp.gt.u32 %p, %i3, %i5;
    @%p bra over;
    ld.volatile.global.u32 %i4, [%l3];
    setp.lt.u32 %p, %i4, %i2;
    @%p bra again;
    st.volatile.global.u32 [%l4], %i2;
    membar.sys;
    add.u32 %i2, %i2, 1;
    setp.le.u32 %p, %i2, %i1;
    @%p bra again;
over:
    ret;
}

.visible .entry reads(.param .u64 flag, .param .u64 out, .param .u32 times)
{
    .reg .pred %p;
    .reg .b32 %i<6>;
    .reg .b64 %l<6>;
    ld.param.u64 %l1, [flag];
    ld.param.u64 %l2, [out];
    ld.param.u32 %i1, [times];
    cvta.to.global.u64 %l3, %l1;
    cvta.to.global.u64 %l4, %l2;
    mov.u32 %i2, 0;
    mov.u32 %i3, 0;
again:
    ld.volatile.global.u32 %i4, [%l3];
    add.u32 %i3, %i3, %i4;
    add.u32 %i2, %i2, 1;
    setp.lt.u32 %p, %i2, %i1;
    @%p bra again;
    mov.u32 %i5, %ctaid.x;
    mul.wide.u32 %l5, %i5, 4;
    add.u64 %l4, %l4, %l5;
    st.global.u32 [%l4], %i3;
    ret;
}

.visible .entry poll(.param .u64 from, .param .u64 flag, .param .u32 most)
{
    .reg .pred %p;
    .reg .b32 %i<4>;
    .reg .b64 %l<5>;
    ld.param.u64 %l1, [from];
    ld.param.u64 %l2, [flag];
    ld.param.u32 %i1, [most];
    cvta.to.global.u64 %l3, %l1;
    cvta.to.global.u64 %l4, %l2;
    mov.u32 %i2, 0;
again:
    ld.volatile.global.u32 %i3, [%l3];
    st.volatile.global.u32 [%l4], %i3;
    setp.gt.u32 %p, %i3, 1;
    @%p bra over;
    nanosleep.u32 1000;
    add.u32 %i2, %i2, 1;
    setp.lt.u32 %p, %i2, %i1;
    @%p bra again;
over:
    ret;
}
"""
_TRIED_ROUNDS: Final = (2_000, 22_000)
_TRIES: Final = 5
_WARM_S: Final = 0.3
THREADS: Final = 256
_OUT_BYTES: Final = 4 << 18
"""What ``work`` writes to: its threads share places from the 262,144th on."""

_FEW: Final = 64
AN_SM: Final = 2048 // THREADS
"""Blocks of ``work`` that an SM runs at once."""


class Programs:
    """The kernels, loaded.

    Parameters
    ----------
    cuda : Cuda
        The GPU.
    threads : int
        Threads of a block of ``work``.
    blocks : int, optional
        Blocks of ``work``; by default as many as run at once.
    """

    def __init__(self, cuda: Cuda, threads: int = THREADS, blocks: int | None = None) -> None:
        self._cuda = cuda
        self._module = cuda.load(_PTX)
        self._work = Shape((blocks or cuda.sms * AN_SM, 1, 1), (threads, 1, 1))
        self._out = cuda.allocate(_OUT_BYTES if threads == THREADS else 4 * threads * _FEW)

    def nothing(self, stream: Stream) -> Launch:
        """Return the launch of an empty kernel."""
        return self._launch("nothing", Shape((1, 1, 1), (32, 1, 1)), (), stream)

    def work(self, rounds: int, stream: Stream, waves: int = 1) -> Launch:
        """Return the launch of a kernel that fills the GPU as often; a block takes so many rounds.

        What it leaves does not depend on the order of its blocks.
        """
        blocks = self._work.blocks * waves
        shape = Shape((blocks, 1, 1), self._work.block)
        return self._launch("work", shape, (self._out, rounds), stream)

    def mark(self, at: int, value: int, stream: Stream) -> Launch:
        """Return the launch of a kernel whose first block writes a word."""
        return self._launch("mark", Shape((1, 1, 1), (1, 1, 1)), (at, value), stream)

    def echo(self, heard: int, said: int, times: int, stream: Stream) -> Launch:
        """Return the launch of a kernel that answers a word as often, each value once."""
        given = (heard, said, times, 1 << 23)
        return self._launch("echo", Shape((1, 1, 1), (1, 1, 1)), given, stream)

    def reads(self, flag: int, times: int, blocks: int, stream: Stream) -> Launch:
        """Return the launch of blocks that each read a word as often, one read after the other."""
        given = (flag, self._out, times)
        return self._launch("reads", Shape((blocks, 1, 1), (1, 1, 1)), given, stream)

    def poll(self, source: int, flag: int, most: int, stream: Stream) -> Launch:
        """Return the launch of a block that copies a word each microsecond until it is over 1."""
        return self._launch("poll", Shape((1, 1, 1), (1, 1, 1)), (source, flag, most), stream)

    def rounds_a_us(self, stream: Stream) -> float:
        """Return how many rounds of ``work`` take a microsecond on the idle GPU."""
        # An idle GPU has low clocks.
        until_s = time.monotonic() + _WARM_S
        while time.monotonic() < until_s:
            self._timed(self.work(_TRIED_ROUNDS[1], stream), stream)
        few, many = (self.work(rounds, stream) for rounds in _TRIED_ROUNDS)
        times = [min(self._timed(launch, stream) for _ in range(_TRIES)) for launch in (few, many)]
        return (_TRIED_ROUNDS[1] - _TRIED_ROUNDS[0]) / max(times[1] - times[0], 1e-3)

    def _timed(self, launch: Launch, stream: Stream) -> float:
        begin, end = Event(self._cuda), Event(self._cuda)
        begin.record(stream)
        launch()
        end.record(stream)
        stream.finish()
        return end.since_us(begin)

    def _launch(self, name: str, shape: Shape, given: Sequence[int], stream: Stream) -> Launch:
        kernel = self._cuda.kernel(self._module, name)
        return self._cuda.launch(kernel, shape, given, stream)
