"""The form of a kernel is chosen by a model and a few measured runs."""

import math
import sys

import pytest

from benchmarks.isolation import form_choice
from benchmarks.isolation.form_choice import SMS, MadeUpGpu, best, tried
from dovetail.isolation.scheduler import (
    BOUND_S,
    LAUNCH_S,
    STEP_S,
    TRIES,
    WHOLE,
    Choice,
    FormChoice,
    Kernel,
    LaunchForm,
    Size,
)

ALL = {"whole": 8, "slices": 8, "workers": 8}
WIDTH = 8 * SMS


def _kernel(waves, resident=ALL):
    return Kernel(Size("k", waves * WIDTH, 256), resident)


def _even(kernel, block_s, slowed=1.25):
    """Run a kernel until its form is final, on a GPU on which all is as expected."""
    choice, forms = FormChoice(SMS), []
    while True:
        form, final = choice.choice(kernel)
        if final:
            return choice, forms, form
        forms.append(form)
        waves = kernel.size.blocks / WIDTH
        if form.kind == "workers":
            seconds = LAUNCH_S + waves * slowed * block_s + waves / form.chunk * STEP_S
        else:
            part = kernel.size.blocks / (form.size or kernel.size.blocks)
            seconds = waves * block_s + part * LAUNCH_S
        for more_s in (1e-6, 0, 1e-3, 1, 2):
            choice.add(kernel.size, form, seconds + more_s)


def test_a_kernel_shorter_than_the_bound_runs_as_it_is():
    _, forms, final = _even(_kernel(10), 2e-6)
    assert (forms, final) == ([WHOLE] * 1, WHOLE)


def test_slices_are_full_waves_within_the_bound():
    kernel = _kernel(30, {"whole": 8, "slices": 8})
    choice, forms, final = _even(kernel, 7e-6)
    # Four waves of 7 us and a launch are 30 us; eight such slices have nearly all 30 waves.
    assert final == LaunchForm("slices", 4 * WIDTH)
    assert choice.turnaround_s(kernel, final) <= BOUND_S
    assert forms == [WHOLE, final]


def test_chunks_are_as_large_as_the_looks_between_them_require():
    _, forms, final = _even(_kernel(400, {"whole": 8, "workers": 8}), 1e-6)
    assert forms == [WHOLE, final]
    kind, size, chunk = final
    assert (kind, size) == ("workers", WIDTH)
    # Looks take about a twentieth of a chunk's time, which keeps the bound.
    assert 7 <= chunk <= 10


def test_blocks_longer_than_the_bound_give_up_as_soon_as_they_can():
    choice, _, final = _even(_kernel(10), 300e-6)
    assert final == LaunchForm("slices", WIDTH)
    assert choice.turnaround_s(_kernel(10), final) == pytest.approx(302e-6, rel=0.01)


def test_a_single_wave_cannot_be_cut():
    _, forms, final = _even(_kernel(1), 300e-6)
    assert (forms, final) == ([WHOLE], WHOLE)


def test_what_cannot_win_is_not_tried():
    # Slices of 300 us cost a hundredth, less than further launches of workers.
    _, forms, final = _even(_kernel(30), 300e-6)
    assert forms == [WHOLE, final]
    assert final.kind == "slices"
    # Slices of a wave cost an eighth here, and workers could be nearly as fast as the whole kernel.
    _, forms, final = _even(_kernel(30), 20e-6, slowed=1.01)
    assert [form.kind for form in forms] == ["whole", "slices", "workers"]
    assert final.kind == "workers"


def test_a_measurement_is_its_shortest_run():
    choice, kernel = FormChoice(SMS), _kernel(10)
    for seconds in (1.0, 20e-6, math.nan, 0.0, 0.5, 30e-6):
        choice.add(kernel.size, WHOLE, seconds)
        assert choice.choice(kernel) == Choice(WHOLE, final=False)
    assert choice.add(kernel.size, WHOLE, 2.0)
    assert choice.choice(kernel) == Choice(WHOLE, final=True)
    assert not choice.add(kernel.size, WHOLE, 1e-6)
    assert choice.measured(kernel.size) == {WHOLE: 20e-6}


def test_each_size_is_measured_apart():
    choice, _, _ = _even(_kernel(10), 2e-6)
    other = Kernel(_kernel(10).size._replace(shared_bytes=64), ALL)
    assert choice.choice(other) == Choice(WHOLE, final=False)


def test_a_kernel_without_forms_runs_whole():
    assert FormChoice(SMS).choice(_kernel(10, {"whole": 8})) == Choice(WHOLE, final=True)


def test_each_process_has_the_best_of_what_it_can_run():
    choice, _, final = _even(_kernel(30), 300e-6)
    form, is_final = choice.choice(_kernel(30, {"whole": 8, "workers": 8}))
    assert (form.kind, is_final) == ("workers", False)
    assert choice.choice(_kernel(30)) == Choice(final, final=True)


def test_only_so_many_are_kept():
    choice = FormChoice(SMS, samples=1)
    for blocks in range(1, 5001):
        choice.add(Size("k", blocks, 256), WHOLE, 1.0)
    assert [size.blocks for size in choice.known] == list(range(905, 5001))


class TestOnAMadeUpGpu:
    """Against all forms, by brute force; the GPU shares no code with the model."""

    def test_the_choice_is_about_the_best(self):
        more, late = [], 0
        for seed in range(60):
            gpu = MadeUpGpu(seed, most_blocks=6_000)
            found = {form: gpu.ran(form) for form in gpu.all_forms()}
            wanted, limit_s = best(found)
            chosen = tried(gpu, FormChoice(SMS))
            ran = gpu.ran(chosen[-1])
            if wanted == WHOLE:
                assert chosen == [WHOLE]
            assert len(chosen) <= TRIES + 1
            late += ran.turnaround_s > 1.05 * limit_s
            more.append(ran.cost_s / found[wanted].cost_s - 1)
        assert late <= 1
        assert max(more) < 0.3
        assert sum(part > 0.02 for part in more) < 6

    def test_what_is_known_leads_to_the_same_choice_at_once(self):
        for seed in range(10):
            gpu, before, after = MadeUpGpu(seed, 5000), FormChoice(SMS), FormChoice(SMS)
            final = tried(gpu, before)[-1]
            after.know(before.known)
            assert after.choice(gpu.kernel) == Choice(final, final=True)

    def test_its_table(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["form_choice.py", "--kernels", "3"])
        form_choice.main()
        head, *_, last = capsys.readouterr().out.splitlines()
        assert head.startswith("3 kernels")
        assert last.startswith("forms tried: ")
