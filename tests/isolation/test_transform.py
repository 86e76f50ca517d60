"""Kernels in slices and preempted kernels leave the memory that the untransformed ones leave."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from dovetail.isolation.ptx import instruction, parse
from dovetail.isolation.refusals import verdict
from dovetail.isolation.transform import workers
from tests.isolation import running
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.generated import kernels
from tests.isolation.interpreter import DivergedError, InterpreterError, StuckError
from tests.isolation.nvrtc import compiled

SCHEDULES = 2


def _loaded(name):
    module = parse(compiled(KERNELS[name].source))
    (kernel,) = module.kernels
    return module, kernel, KERNELS[name].case()


@pytest.mark.parametrize("name", KERNELS)
def test_slices(name):
    module, kernel, case = _loaded(name)
    assert not verdict(module, kernel).slices
    for seed in range(SCHEDULES):
        rng = random.Random(seed)
        whole = running.as_it_is(module, kernel, case, rng)
        assert running.in_slices(module, kernel, case, rng) == whole


@pytest.mark.parametrize("name", KERNELS)
def test_workers(name):
    module, kernel, case = _loaded(name)
    found = verdict(module, kernel)
    assert not found.workers
    for seed in range(SCHEDULES):
        rng = random.Random(seed)
        whole = running.as_it_is(module, kernel, case, rng)
        assert running.preempted(module, kernel, case, rng, unified=found.unified) == whole
        # Where it is not needed, unified synchronisation does no harm.
        assert running.preempted(module, kernel, case, rng, unified=True) == whole


class TestGenerated:
    """Kernels from a grammar; those that CUDA itself would hang on are no cases."""

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(kernels(), st.integers(0, 2**32))
    def test_some(self, generated, seed):
        _holds(generated, seed)

    @pytest.mark.long
    @settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
    @given(kernels(), st.integers(0, 2**32))
    def test_many(self, generated, seed):
        _holds(generated, seed)


def _holds(generated, seed):
    module = parse(compiled(generated.source))
    (kernel,) = module.kernels
    rng, case = random.Random(seed), generated.case
    try:
        whole = running.as_it_is(module, kernel, case, rng)
        again = running.as_it_is(module, kernel, case, rng)
    except StuckError:
        reject()
    assume(whole == again)
    found = verdict(module, kernel)
    assert running.in_slices(module, kernel, case, rng) == whole
    if not found.workers:
        assert running.preempted(module, kernel, case, rng, unified=found.unified) == whole


class TestEachPartIsNeeded:
    """With a part of the transformation left out, some schedule finds a difference."""

    def _wrong(self, name, change, *, unified=None, tries=40):
        module, kernel, case = _loaded(name)
        unified = verdict(module, kernel).unified if unified is None else unified
        made = workers(kernel, unified=unified)
        broken = replace(made, body=tuple(change(made.body)))
        for seed in range(tries):
            rng = random.Random(seed)
            whole = running.as_it_is(module, kernel, case, rng)
            arguments = (module, kernel, case, rng)
            try:
                if running.preempted(*arguments, unified=unified, made=broken) != whole:
                    return "another result"
            except InterpreterError as error:
                return type(error).__name__
        return None

    def test_unchanged_it_is_right(self):
        assert self._wrong("row_sums_with_early_returns", lambda body: body, tries=10) is None
        assert self._wrong("tiled_product", lambda body: body, tries=5) is None

    def test_unified_synchronisation(self):
        for name in ("row_sums_with_early_returns", "every_other_thread_returns"):
            assert self._wrong(name, lambda body: body, unified=False) == DivergedError.__name__

    def test_two_places_for_the_number_taken(self):
        def one_place(body):
            for one in body:
                if one.family == "xor" and one.operands[1] == "%dovetail_place":
                    yield instruction(f"mov.u32 {one.operands[0]}, %dovetail_place;")
                else:
                    yield one

        assert self._wrong("three_dimensions", one_place) == "another result"

    def test_storage_that_is_no_variable_of_the_kernel(self):
        def as_a_variable(body):
            for one in body:
                if one.text == "mov.u32 %dovetail_place, dovetail_dynamic;":
                    yield instruction(".shared .align 8 .b8 dovetail_taken[8];")
                    yield instruction("mov.u32 %dovetail_place, dovetail_taken;")
                elif not one.text.startswith("add.u32 %dovetail_place"):
                    yield one

        assert self._wrong("addresses_in_shared_memory", as_a_variable) == "another result"

    def test_storage_behind_the_kernels_own(self):
        def at_its_beginning(body):
            return [one for one in body if not one.text.startswith("add.u32 %dovetail_place")]

        assert self._wrong("dynamic_shared_memory", at_its_beginning) == "another result"

    def _without(self, beginning):
        def without(body):
            left = [one for one in body if not one.text.startswith(beginning)]
            assert len(left) < len(body)
            return left

        return without

    def test_an_empty_chunk_to_begin_with(self):
        stores = self._without("@%dovetail_first st.shared.v2.u32 [%dovetail_place]")
        assert self._wrong("histogram", stores) == "another result"

    def test_the_rest_of_the_chunk(self):
        # The same block would run for ever, and all but the first of a chunk never.
        for part, wrong in (
            ("add.u32 %dovetail_block, %dovetail_block, 1", "StuckError"),
            ("add.u32 %dovetail_until", "another result"),
        ):
            assert self._wrong("three_dimensions", self._without(part)) == wrong

    def test_the_end_of_the_chunk(self):
        def without_end(body):
            for one in body:
                if one.text.startswith("setp.lt.u32 %dovetail_over"):
                    yield instruction("setp.ne.u32 %dovetail_over, %dovetail_until, 0;")
                else:
                    yield one

        # Blocks would run twice.
        assert self._wrong("histogram", without_end) == "another result"

    def test_a_step_of_one_for_a_chunk(self):
        def by_one(body):
            for one in body:
                text = one.text.replace(
                    "[%dovetail_counter], %dovetail_until", "[%dovetail_counter], 1"
                )
                yield instruction(text, one.depth) if text != one.text else one

        assert self._wrong("histogram", by_one) == "another result"

    def test_the_barrier_between_two_blocks(self):
        def without(body):
            return [one for one in body if one.text != "barrier.sync 0;"]

        assert self._wrong("three_dimensions", without) == "another result"

    def test_the_flag_is_read(self):
        def never_stops(body):
            for one in body:
                if one.text.startswith("setp.ne.u32 %dovetail_over"):
                    yield instruction("setp.ne.u32 %dovetail_over, 0, 0;")
                else:
                    yield one

        # It is right, but it cannot be preempted: the flag has no effect.
        assert self._wrong("grid_stride", never_stops, tries=5) is None

    @pytest.mark.parametrize("register", ["%dovetail_cx", "%dovetail_cy", "%dovetail_cz"])
    def test_block_indices(self, register):
        def zero(body):
            return [
                replace(
                    one, text=f"mov.u32 {register}, 0;", opcode="mov.u32", operands=(register, "0")
                )
                if one.operands[:1] == (register,) and one.family in ("rem", "div")
                else one
                for one in body
            ]

        assert self._wrong("three_dimensions", zero, tries=3) == "another result"

    def test_copies_have_landed_before_the_next_block(self):
        def without(body):
            return [one for one in body if "cp.async.wait_all" not in one.text]

        module = parse(_PREFETCHING)
        (kernel,) = module.kernels
        case = running.Case((4, 1, 1), (4, 1, 1), bytes(range(64)) + bytes(64), (64, 128))
        made = workers(kernel, unified=verdict(module, kernel).unified)
        broken = replace(made, body=tuple(without(made.body)))
        found = set()
        for seed in range(20):
            rng = random.Random(seed)
            whole = running.as_it_is(module, kernel, case, rng)
            assert running.preempted(module, kernel, case, rng, unified=False) == whole
            again = running.preempted(module, kernel, case, rng, unified=False, made=broken)
            found.add(again == whole)
        assert False in found


class TestWarpsAfterReturns:
    """Legal CUDA that cannot be preempted: a warp that continues after some threads returned."""

    SOURCE = """extern "C" __global__ void k(const int* x, int* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        y[i] = __shfl_xor_sync(0xffffffff, x[i], 1); }"""

    def test_it_is_refused(self):
        module = parse(compiled(self.SOURCE))
        (kernel,) = module.kernels
        found = verdict(module, kernel)
        assert "returned" in found.workers
        assert not found.slices

    def test_with_reason(self):
        module = parse(compiled(self.SOURCE))
        (kernel,) = module.kernels
        data = bytes(range(240)) + bytes(240)
        case = running.Case((2, 1, 1), (32, 1, 1), data, (64, 64 + 240, 60 - 2))
        rng = random.Random(0)
        whole = running.as_it_is(module, kernel, case, rng)
        assert running.in_slices(module, kernel, case, rng) == whole
        with pytest.raises(StuckError):
            running.preempted(module, kernel, case, rng, unified=True)


_PREFETCHING = """.version 7.8
.target sm_80
.address_size 64
.visible .entry k(
	.param .u64 from,
	.param .u64 to
)
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.shared .align 16 .b8 s[16];
	// A prefetch that no one waits for, as in the last round of a pipeline.
	ld.param.u64 %rd1, [from];
	ld.param.u64 %rd2, [to];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, s;
	shl.b32 %r4, %r2, 2;
	add.u32 %r3, %r3, %r4;
	mad.lo.u32 %r5, %r1, 4, %r2;
	mul.wide.u32 %rd3, %r5, 4;
	add.u64 %rd4, %rd1, %rd3;
	add.u64 %rd5, %rd2, %rd3;
	ld.global.u32 %r6, [%rd4];
	st.shared.u32 [%r3], %r6;
	cp.async.wait_group 4;
	ld.shared.u32 %r7, [%r3];
	st.global.u32 [%rd5], %r7;
	cp.async.ca.shared.global [%r3], [%rd1], 4;
	cp.async.commit_group;
	ret;
}
"""
