import dataclasses
import fcntl
from importlib.resources import files
from pathlib import Path

import pytest

from dovetail.executor.simulation import Options
from dovetail.executor.simulation import campaign as campaigns
from dovetail.executor.simulation.beliefs import LogNormalNoise, Model
from dovetail.executor.simulation.campaign import SimulationCampaign, Task, code_digest
from dovetail.executor.simulation.setup import Setup
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.solver.policies.exclusive import Fifo
from tests.executor.simulation.worlds import trace, world
from tests.installed import install

JOBS = trace((0, 1, 10, "a"), (1, 2, 5, "b"))
PAIR = [("a", "b", 1.5, 1.2)]
SETUP = Setup(JOBS, world(gpus=2, slowdowns=PAIR))


OWN_POLICY = """
from made_up_policies.parts import LIMIT

class Mine:
    def decide(self, state):
        raise NotImplementedError
"""


def campaign(setup, tmp_path, policies=("fifo", "ssf"), seeds=(0, 1)):
    return SimulationCampaign(setup, policies, seeds, tmp_path)


def test_runs_every_policy_for_every_seed_and_nothing_twice(tmp_path):
    steps = []
    runs = campaign(SETUP, tmp_path)
    assert runs.run(report=lambda *step: steps.append(step)) == []
    assert steps == [
        ("fifo, seed 0", 1, 4),
        ("ssf, seed 0", 2, 4),
        ("fifo, seed 1", 3, 4),
        ("ssf, seed 1", 4, 4),
    ]
    # fifo: 10, and 10 to 15 for both GPUs. JCT 10 and 14.
    assert [(r.policy, r.seed, r.summary["jct_mean_s"]) for r in runs.results(tables=False)][
        :2
    ] == [
        ("fifo", 0, 12),
        ("fifo", 1, 12),
    ]
    again = []
    more = campaign(SETUP, tmp_path, ("fifo", "sjf"), (1, 2))
    assert more.run(report=lambda *step: again.append(step)) == []
    assert [step for step, _, _ in again] == ["sjf, seed 1", "fifo, seed 2", "sjf, seed 2"]
    assert [done for _, done, _ in again] == [2, 3, 4]


@pytest.mark.parametrize(
    "change",
    [
        {"trace": trace((0, 1, 10, "a"), (1, 2, 6, "b"))},
        {"world": world(gpus=3, slowdowns=PAIR)},
        {"world": world(gpus=2, slowdowns=[("a", "b", 1.5, 1.25)])},
        {"gslas": "fixed:1.5"},
        {"beliefs": LogNormalNoise(0.1)},
        {"options": Options(restart_s=5.0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_the_outcome_is_in_the_fingerprint(tmp_path, change):
    other = dataclasses.replace(SETUP, **change)
    task = Task("fifo", 0)
    prints = [campaign(setup, tmp_path).fingerprint(task) for setup in (SETUP, other, SETUP)]
    assert prints[0] == prints[2] != prints[1]


def test_a_model_counts_by_what_is_in_its_file(tmp_path):
    file = tmp_path / "model.json"
    prints = []
    for text in ("{}", '{"a": 1}'):
        file.write_text(text)
        setup = dataclasses.replace(SETUP, beliefs=Model(str(file)))
        prints.append(campaign(setup, tmp_path).fingerprint(Task("fifo", 0)))
    assert prints[0] != prints[1]


def test_names_of_folders_are_plain_and_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(campaigns, "class_named", lambda name: Fifo)
    names = ("sjf:backfill=true", "sjf:backfill=false", "../up", "x" * 300)
    runs = campaign(SETUP, tmp_path, names)
    folders = {runs.folder_of(Task(name, 0)) for name in names}
    assert len(folders) == 4
    assert all(folder.parent == tmp_path / "runs" and len(folder.name) < 120 for folder in folders)


def test_what_cannot_be_run_is_refused_before_anything_is(tmp_path):
    with pytest.raises(UnsupportedError, match="policy must be one of"):
        campaign(SETUP, tmp_path, ("fifo", "best")).run()
    large = dataclasses.replace(SETUP, trace=trace((0, 1, 10, "a"), (0, 3, 10, "a")))
    with pytest.raises(InputError, match=r"jobs\[1\].workers"):
        campaign(large, tmp_path).run()
    with pytest.raises(InputError, match=r"jobs\[1\].workers"):
        large.scenario(0).require_possible()
    assert not list((tmp_path / "runs").glob("*"))


def test_a_folder_is_written_by_one_campaign_at_a_time(tmp_path):
    runs = campaign(SETUP, tmp_path)
    with (tmp_path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another comparison is running in this folder"):
            runs.run()
    assert not (tmp_path / "runs").exists()
    assert runs.run() == []
    assert len(runs.results(tables=False)) == 4


def test_runs_are_made_anew_after_a_change_of_the_code(tmp_path, monkeypatch):
    runs = campaign(SETUP, tmp_path, ("fifo",), (0,))
    assert runs.run() == []
    assert runs.is_done(Task("fifo", 0))
    monkeypatch.setattr(campaigns, "code_digest", lambda: "another")
    again = campaign(SETUP, tmp_path, ("fifo",), (0,))
    assert not again.is_done(Task("fifo", 0))
    assert again.setup_digest == runs.setup_digest


def test_the_code_is_identified_by_all_its_sources(tmp_path, monkeypatch):
    for folder in campaigns._FOLDERS:
        (tmp_path / folder).mkdir()
    source = tmp_path / "solver" / "policy.py"
    source.write_text("1")
    monkeypatch.setattr(campaigns, "files", lambda name: tmp_path / name.removeprefix("dovetail."))

    def digest():
        return code_digest.__wrapped__()

    first = digest()
    assert digest() == first
    source.write_text("2")
    changed = digest()
    source.rename(source.with_name("other.py"))
    assert len({first, changed, digest()}) == 3


def test_every_folder_has_sources():
    for folder in campaigns._FOLDERS:
        assert list(Path(str(files(f"dovetail.{folder}"))).rglob("*.py"))


@pytest.mark.parametrize("kind", ["form", "power", "predictor"])
def test_runs_are_made_anew_after_a_change_of_a_predictor_of_any_package(
    kind, tmp_path, monkeypatch
):
    source = "raise RuntimeError('is only read')\nmade_up = 1\n"
    install(monkeypatch, tmp_path / "installed", source, (f"{kind}.made-up", "made_up"))

    def digest():
        return code_digest.__wrapped__()

    before = digest()
    assert digest() == before
    (tmp_path / "installed" / "made_up.py").write_text(source.replace("1", "2"))
    assert digest() != before


def test_a_policy_in_a_package_is_run_again_after_any_module_of_it_changed(tmp_path, monkeypatch):
    package = tmp_path / "made_up_policies"
    package.mkdir()
    for name, text in (("__init__", ""), ("parts", "LIMIT = 1\n"), ("mine", OWN_POLICY)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = "python:made_up_policies.mine.Mine"
    task = Task(policy, 0)

    def fingerprint():
        return campaign(SETUP, tmp_path, (policy,)).fingerprint(task)

    before = fingerprint()
    assert fingerprint() == before
    (package / "parts.py").write_text("LIMIT = 2\n")
    assert fingerprint() != before
