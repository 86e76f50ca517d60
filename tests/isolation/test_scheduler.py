"""The latency-critical client gets the GPU at once, the others in its gaps."""

import math
import random

import pytest

from dovetail.isolation.scheduler import (
    WHOLE,
    Kernel,
    KernelLaunch,
    LaunchForm,
    Preempt,
    Scheduler,
    Size,
)

SMS = 10
BOUND_S = 30e-6
SHORT, LONG = Size("short", 100, 256), Size("long", 10_000, 256)


def _scheduler(samples=2):
    made = Scheduler(SMS, BOUND_S, samples)
    made.join("critical", critical=True)
    made.join("a", critical=False)
    return made


def _measured(made, size, block_s, client="a", runs=200):
    """Run a kernel again and again, as on a GPU on which each of its blocks takes ``block_s``."""
    for _ in range(runs):
        (order,) = made.submit(client, Kernel(size))
        while order:
            parallel = {"workers": order.form.size}.get(order.form.kind, 8 * SMS)
            seconds = math.ceil(order.blocks / parallel) * block_s
            orders = made.ended(client, order.blocks, seconds)
            order = orders[0] if orders else None
        if made.choice.chosen(size):
            return made.choice.chosen(size)
    raise AssertionError("nothing was chosen")


def test_a_critical_kernel_is_launched_whole_and_at_once():
    made, kernel = _scheduler(), Kernel(LONG)
    assert made.submit("critical", kernel) == [KernelLaunch("critical", kernel, WHOLE, 0, 10_000)]


def test_it_preempts_the_others_first():
    made = _scheduler()
    (first,) = made.submit("a", Kernel(LONG))
    assert first.form == LaunchForm("workers", SMS)
    orders = made.submit("critical", Kernel(SHORT))
    assert [type(order) for order in orders] == [Preempt, KernelLaunch]
    assert orders[0] == Preempt("a")
    # One signal is enough.
    assert made.submit("critical", Kernel(SHORT)) == []


def test_others_go_on_where_they_were_once_it_is_idle():
    made = _scheduler()
    (first,) = made.submit("a", Kernel(LONG))
    made.submit("critical", Kernel(SHORT))
    assert made.ended("a", 40, 1e-3) == []
    (again,) = made.ended("critical", 100, 1e-4)
    assert (again.client, again.first, again.blocks) == ("a", 40, 9_960)
    assert again.kernel is first.kernel


def test_between_two_queued_kernels_of_it_nothing_is_launched():
    made = _scheduler()
    made.submit("critical", Kernel(SHORT))
    made.submit("critical", Kernel(SHORT))
    assert made.submit("a", Kernel(LONG)) == []
    (following,) = made.ended("critical", 100, 1e-4)
    assert following.client == "critical"


def test_kernels_without_forms_run_whole():
    made = _scheduler()
    kernel = Kernel(LONG, sliceable=False, preemptible=False)
    assert made.submit("a", kernel)[0].form == WHOLE
    # There is nothing to signal to; it is waited for.
    assert [type(order) for order in made.submit("critical", Kernel(SHORT))] == [KernelLaunch]


def test_a_slice_is_followed_by_the_next():
    made = _scheduler()
    (first,) = made.submit("a", Kernel(LONG, preemptible=False))
    assert (first.form, first.first, first.blocks) == (LaunchForm("slices", 500), 0, 500)
    (following,) = made.ended("a", 500, 1e-3)
    assert following.first == 500


def test_several_others_run_at_the_same_time():
    made = _scheduler()
    made.join("b", critical=False)
    assert made.submit("a", Kernel(LONG))[0].client == "a"
    assert made.submit("b", Kernel(LONG))[0].client == "b"
    assert [o.client for o in made.submit("critical", Kernel(SHORT))] == ["a", "b", "critical"]


def test_a_client_that_leaves_is_forgotten():
    made = _scheduler()
    made.submit("critical", Kernel(SHORT))
    made.submit("a", Kernel(LONG))
    assert made.leave("critical")[0].client == "a"


class TestForms:
    def test_a_kernel_shorter_than_the_bound_runs_as_it_is(self):
        made = _scheduler()
        assert _measured(made, SHORT, 2e-6) == WHOLE

    def test_a_long_kernel_of_short_blocks_keeps_the_bound(self):
        made = _scheduler()
        form = _measured(made, LONG, 10e-6)
        assert made.choice.turnaround_s(LONG, form) <= BOUND_S
        # Of the forms that keep it, the one with most blocks at a time.
        assert form == LaunchForm("workers", 8 * SMS)

    def test_blocks_longer_than_the_bound_give_up_as_soon_as_they_can(self):
        made = _scheduler()
        form = _measured(made, LONG, 300e-6)
        assert made.choice.turnaround_s(LONG, form) == pytest.approx(300e-6, rel=0.1)
        assert form == LaunchForm("workers", 8 * SMS)

    def test_forms_are_tried_only_if_they_should_keep_the_bound(self):
        made = _scheduler()
        _measured(made, LONG, 10e-6)
        assert math.isnan(made.choice.turnaround_s(LONG, WHOLE))

    def test_each_size_is_measured_apart(self):
        made = _scheduler()
        _measured(made, SHORT, 2e-6)
        assert made.choice.chosen(SHORT._replace(blocks=101)) is None

    def test_what_was_preempted_counts_once_every_worker_had_a_block(self):
        made = _scheduler(samples=1)
        made.submit("a", Kernel(LONG))
        made.submit("critical", Kernel(SHORT))
        made.ended("a", 5, 1e-5)
        assert math.isnan(made.choice.turnaround_s(LONG, LaunchForm("workers", SMS)))
        made.ended("critical", 100, 1e-4)
        made.submit("critical", Kernel(SHORT))
        made.ended("a", 20, 20e-6)
        assert made.choice.turnaround_s(LONG, LaunchForm("workers", SMS)) == pytest.approx(10e-6)


@pytest.mark.parametrize("seed", range(20))
def test_random_events(seed):
    """Each client always runs one part at a time, in order, every block exactly once."""
    rng, made = random.Random(seed), Scheduler(SMS, BOUND_S, samples=1)
    clients = {"critical": True, "a": False, "b": False}
    for name, critical in clients.items():
        made.join(name, critical=critical)
    running, submitted, executed = {}, dict.fromkeys(clients, 0), dict.fromkeys(clients, 0)
    stopped = set()

    def take(orders):
        for order in orders:
            if isinstance(order, Preempt):
                assert running[order.client].form.kind == "workers"
                stopped.add(order.client)
                continue
            assert order.client not in running
            assert order.first == order.kernel.done
            assert order.first + order.blocks <= order.kernel.size.blocks
            assert clients[order.client] or "critical" not in running
            running[order.client] = order

    for step in range(400):
        name = rng.choice([*clients])
        if step < 300 and rng.random() < 0.4:
            size = Size(rng.choice("xyz"), rng.choice((1, 7, 100)), 256)
            submitted[name] += size.blocks
            forms = rng.random() < 0.8, rng.random() < 0.8
            take(made.submit(name, Kernel(size, *forms)))
        elif name in running:
            part = running.pop(name)
            blocks = part.blocks
            if name in stopped:
                blocks = rng.randrange(part.blocks + 1)
                stopped.discard(name)
            executed[name] += blocks
            take(made.ended(name, blocks, blocks * 1e-6))
    while running:
        name, part = running.popitem()
        stopped.discard(name)
        executed[name] += part.blocks
        take(made.ended(name, part.blocks, part.blocks * 1e-6))
    assert executed == submitted
