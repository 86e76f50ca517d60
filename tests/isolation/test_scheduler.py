"""The form of a kernel is chosen by its measured runs."""

import math

import pytest

from dovetail.isolation.scheduler import WHOLE, FormChoice, Kernel, LaunchForm, Size

SMS = 10
BOUND_S = 30e-6
SHORT, LONG = Size("short", 100, 256), Size("long", 10_000, 256)


def _measured(choice, size, block_s, runs=200):
    """Run a kernel again and again, as on a GPU on which each of its blocks takes ``block_s``."""
    for _ in range(runs):
        form = choice.form(Kernel(size))
        if choice.chosen(size):
            return form
        parallel = form.size if form.kind == "workers" else 8 * SMS
        blocks = form.size if form.kind == "slices" else size.blocks
        parts = math.ceil(size.blocks / blocks)
        choice.add(size, form, parts * math.ceil(blocks / parallel) * block_s / size.blocks)
    raise AssertionError("nothing was chosen")


def test_a_kernel_shorter_than_the_bound_runs_as_it_is():
    choice = FormChoice(SMS, BOUND_S, samples=2)
    assert _measured(choice, SHORT, 2e-6) == WHOLE


def test_a_long_kernel_of_short_blocks_keeps_the_bound():
    choice = FormChoice(SMS, BOUND_S, samples=2)
    form = _measured(choice, LONG, 10e-6)
    assert choice.turnaround_s(LONG, form) <= BOUND_S
    # Of the forms that keep it, the one with most blocks at a time.
    assert form == LaunchForm("workers", 8 * SMS)


def test_blocks_longer_than_the_bound_give_up_as_soon_as_they_can():
    choice = FormChoice(SMS, BOUND_S, samples=2)
    form = _measured(choice, LONG, 300e-6)
    assert choice.turnaround_s(LONG, form) == pytest.approx(300e-6, rel=0.1)
    assert form == LaunchForm("workers", 8 * SMS)


def test_forms_are_tried_only_if_they_should_keep_the_bound():
    choice = FormChoice(SMS, BOUND_S, samples=2)
    _measured(choice, LONG, 10e-6)
    assert math.isnan(choice.turnaround_s(LONG, WHOLE))


def test_each_size_is_measured_apart():
    choice = FormChoice(SMS, BOUND_S, samples=2)
    _measured(choice, SHORT, 2e-6)
    assert choice.chosen(SHORT._replace(blocks=101)) is None


def test_a_kernel_without_forms_runs_whole():
    choice = FormChoice(SMS, BOUND_S)
    assert choice.form(Kernel(LONG, sliceable=False, preemptible=False)) == WHOLE
