import sqlite3
import subprocess
import sys

import pytest

from dovetail.executor.gpus.splits import SmCount, keep_splits, read_splits
from dovetail.instances.datasets import REPOSITORY, Repository, repository
from dovetail.instances.errors import InputError
from dovetail.measuring.campaign import read_campaign
from dovetail.measuring.ledger import (
    Ledger,
    LedgerError,
    fingerprint,
    read_ledger,
    settled,
    standing,
)
from tests.measuring.made import campaign, machine, pace, result

OF = campaign({"measure": "solos", "repeats": 2}, {"measure": "pairs"})
FIRST = result(["conv"], [0.02], metrics={"sm_active": 0.9}, power_w=400.0, window_s=3.0)
SECOND = result(["conv", "lstm"], stage=1, status="out-of-memory", reason="CUDA out of memory")


def opened(folder):
    ledger = Ledger(folder)
    ledger.begin(machine(OF), OF)
    return ledger


def kept(folder, *results, of=OF, **fields):
    with Ledger(folder) as ledger:
        ledger.begin(machine(of, **fields), of)
        for one in results:
            ledger.append(one)


def refusal(folder, of=OF, **fields):
    before = Repository(folder / REPOSITORY).evidence("machine", "campaign", "result")
    with pytest.raises(InputError) as refused:
        kept(folder, of=of, **fields)
    assert Repository(folder / REPOSITORY).evidence("machine", "campaign", "result") == before
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{folder}/{REPOSITORY}: ")


def test_what_is_appended_is_read_back_with_machine_and_campaign(tmp_path):
    kept(tmp_path / "out", FIRST, SECOND)
    found = read_ledger(tmp_path / "out")
    assert found.results == (FIRST, SECOND)
    assert found.machine == machine(OF)
    assert found.campaign == OF


def test_a_result_is_evidence_with_its_conditions(tmp_path):
    kept(tmp_path, FIRST)
    (one,) = Repository(tmp_path / REPOSITORY).evidence("result")
    assert one[:-1] == ("result", "H200", "580.1", "130100", FIRST.date)
    assert one.content == FIRST.to_data()


def test_a_result_is_in_the_file_when_append_returns(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.append(FIRST)
        assert read_ledger(tmp_path).results == ledger.results == (FIRST,)


def test_verified_shares_are_in_its_folder(tmp_path):
    count = SmCount(gpu_model="H200", driver="580.1", share=50, sms=66, date="2026-11-22")
    keep_splits(tmp_path, count)
    kept(tmp_path, FIRST)
    keep_splits(tmp_path, count)
    assert read_ledger(tmp_path).results == (FIRST,)
    assert read_splits(tmp_path).sms == (count, count)


def test_where_there_is_none(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_ledger(tmp_path / "nowhere")
    Repository(tmp_path / REPOSITORY).append()
    with pytest.raises(InputError, match="must hold a machine and a campaign"):
        read_ledger(tmp_path)


def test_a_damaged_one_is_refused_and_left_as_it_is(tmp_path):
    kept(tmp_path, FIRST)
    (evidence,) = Repository(tmp_path / REPOSITORY).evidence("result")
    broken = evidence._replace(content={**evidence.content, "residents": 0})
    Repository(tmp_path / REPOSITORY).record([broken])
    content = (tmp_path / REPOSITORY).read_bytes()
    for use in (read_ledger, Ledger):
        with pytest.raises(InputError, match="result 4: residents: must be >= 1, got 0"):
            use(tmp_path)
    assert (tmp_path / REPOSITORY).read_bytes() == content


# Campaigns that may go on.


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("gpu_model", "H100", "gpu_model was 'H200', is 'H100'"),
        ("driver", "590.2", "driver was '580.1', is '590.2'"),
        ("cublas", None, "cublas was '130100', is null"),
        ("stand_in", "a CPU core", "stand_in was null, is 'a CPU core'"),
    ],
)
def test_another_machine_is_refused(tmp_path, field, value, rule):
    kept(tmp_path, FIRST)
    message = refusal(tmp_path, **{field: value})
    assert message == f"is of another machine: {rule}; measure into another folder"


def test_an_equal_machine_goes_on_and_is_recorded_in_the_ledger(tmp_path):
    kept(tmp_path, FIRST, uuid="GPU-1")
    kept(tmp_path, SECOND, uuid="GPU-1", date="2026-11-23")
    assert len(read_ledger(tmp_path).machines) == 1
    kept(tmp_path, uuid="GPU-2")
    found = read_ledger(tmp_path)
    assert [one.uuid for one in found.machines] == ["GPU-1", "GPU-2"]
    assert found.results == (FIRST, SECOND)


STAGES = [{"measure": "solos", "repeats": 2}, {"measure": "pairs"}]


@pytest.mark.parametrize(
    ("of", "rule"),
    [
        (campaign(*STAGES, seed=2), "seed was 1, is 2"),
        (campaign(*STAGES, size="tiny"), "size was 'full', is 'tiny'"),
        (campaign(*STAGES, windows={"most_s": 20.0}), "windows.most_s was 10.0, is 20.0"),
        (campaign(*STAGES, workloads=["lstm", "conv"]), "the workloads are not the same"),
        (campaign(*STAGES[:1]), "stages[1] is gone"),
        (campaign(*STAGES[::-1]), "stages[0] has changed (append a stage instead)"),
        (
            campaign(STAGES[0], {"measure": "pairs", "shares": [50, 50]}),
            "stages[1] has changed (append a stage instead)",
        ),
    ],
)
def test_another_campaign_is_refused(tmp_path, of, rule):
    kept(tmp_path, FIRST)
    message = refusal(tmp_path, of)
    assert message == f"is of another campaign: {rule}; measure into another folder"


@pytest.mark.parametrize(
    "of",
    [
        campaign(*STAGES, {"measure": "pairs", "shares": [50, 50]}),
        campaign({"measure": "solos", "repeats": 5}, STAGES[1]),
        campaign({"measure": "solos", "repeats": 1}, STAGES[1]),
        campaign(*STAGES, name="another name"),
    ],
)
def test_a_campaign_that_has_grown_goes_on(tmp_path, of):
    kept(tmp_path, FIRST)
    kept(tmp_path, SECOND, of=of)
    found = read_ledger(tmp_path)
    assert found.results == (FIRST, SECOND)
    assert found.campaign == of
    assert len(found.machines) == 1


def test_a_changed_program_is_another_campaign_and_a_moved_one_is_not(tmp_path):
    def written(folder, text):
        folder.mkdir()
        (folder / "mine.py").write_text(text)
        (folder / "campaign.yaml").write_text(
            "format: dovetail-campaign/1\nname: mine\n"
            "workloads: [{name: mine, program: mine.py}]\nstages: [{measure: solos}]\n"
        )
        return read_campaign(folder / "campaign.yaml")

    one = written(tmp_path / "a", "KIND = 'training'")
    moved = written(tmp_path / "b", "KIND = 'training'")
    changed = written(tmp_path / "c", "KIND = 'inference'")
    assert fingerprint(one) == fingerprint(moved) != fingerprint(changed)
    kept(tmp_path, of=one)
    kept(tmp_path, of=moved)
    assert refusal(tmp_path, changed).startswith(
        "is of another campaign: the program of an own workload has changed"
    )


def test_two_processes_cannot_write_one_ledger(tmp_path):
    with opened(tmp_path):
        with pytest.raises(LedgerError, match="another campaign is writing it"):
            Ledger(tmp_path)
        assert read_ledger(tmp_path).results == ()
    kept(tmp_path, FIRST)


def test_a_ledger_that_a_killed_process_held_can_be_gone_on_with(tmp_path):
    program = (
        "import os, sys, time\n"
        "from tests.measuring.test_ledger import *\n"
        "ledger = opened(sys.argv[1])\n"
        "ledger.append(FIRST)\n"
        "print('kept', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "kept\n"
        with pytest.raises(LedgerError):
            Ledger(tmp_path)
        child.kill()
    kept(tmp_path, SECOND)
    assert read_ledger(tmp_path).results == (FIRST, SECOND)


def test_a_full_disk_is_reported_and_leaves_the_ledger_as_it_was(tmp_path, monkeypatch):
    def full(*values):
        raise sqlite3.OperationalError("database or disk is full")

    with opened(tmp_path) as ledger:
        monkeypatch.setattr(repository, "_insert", full)
        with pytest.raises(InputError, match="cannot be written: database or disk is full"):
            ledger.append(FIRST)
        monkeypatch.undo()
        ledger.append(SECOND)
    assert read_ledger(tmp_path).results == (SECOND,)


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be opened: not a directory"):
        Ledger(tmp_path / "file" / "out")


def test_what_failed_or_was_disturbed_is_tried_twice_and_what_was_refused_always():
    failed = result(["conv"], status="failed", reason="signal 9")
    disturbed = result(["conv"], [0.02], disturbed_by=[4711])
    refused = result(["conv"], status="refused")
    assert settled([FIRST]) == {"0:mps:conv#0"}
    assert settled([SECOND]) == {"1:mps:conv+lstm#0"}
    assert settled([failed]) == settled([disturbed]) == settled([refused] * 3) == set()
    assert settled([failed, disturbed]) == settled([failed, FIRST]) == {"0:mps:conv#0"}


def test_of_several_results_the_last_sound_one_counts():
    failed = result(["conv"], status="failed", reason="signal 9")
    later = FIRST.replace(paces=(pace(0.03),))
    key = FIRST.key
    assert standing([failed, FIRST])[key] == FIRST
    assert standing([FIRST, failed])[key] == FIRST
    assert standing([FIRST, later])[key] == later
    assert standing([failed, failed.replace(reason="signal 11")])[key].reason == "signal 11"
