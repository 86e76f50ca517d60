import json
import os
import subprocess
import sys

import pytest

from dovetail.executor.measuring.campaign import read_campaign
from dovetail.executor.measuring.ledger import (
    Ledger,
    LedgerError,
    fingerprint,
    read_ledger,
    settled,
    standing,
)
from dovetail.instances.errors import InputError
from tests.executor.measuring.made import campaign, machine, pace, result

OF = campaign({"measure": "solos", "repeats": 2}, {"measure": "pairs"})
FIRST = result(["conv"], [0.02], metrics={"sm_active": 0.9}, power_w=400.0, window_s=3.0)
SECOND = result(["conv", "lstm"], stage=1, status="out-of-memory", told="CUDA out of memory")


def opened(folder):
    ledger = Ledger(folder)
    ledger.begin(machine(OF), OF)
    return ledger


def kept(folder, *results, of=OF, **fields):
    with Ledger(folder) as ledger:
        ledger.begin(machine(of, **fields), of)
        for one in results:
            ledger.append(one)
    return folder / "results.jsonl"


def refusal(folder, of=OF, **fields):
    before = (folder / "results.jsonl").read_bytes()
    with pytest.raises(InputError) as refused:
        kept(folder, of=of, **fields)
    assert (folder / "results.jsonl").read_bytes() == before
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{folder}/results.jsonl: ")


def test_what_is_appended_is_read_back_with_machine_and_campaign(tmp_path):
    path = kept(tmp_path / "out", FIRST, SECOND)
    found = read_ledger(tmp_path / "out")
    assert found.results == (FIRST, SECOND)
    assert found.machine == machine(OF)
    assert found.campaign == OF
    assert not found.torn
    assert json.loads(path.read_text().splitlines()[0])["format"] == "dovetail-ledger/1"


def test_a_result_is_in_the_file_when_append_returns(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.append(FIRST)
        assert read_ledger(tmp_path).results == ledger.results == (FIRST,)


@pytest.mark.parametrize("lost", [1, 10, 200])
def test_a_torn_last_line_is_cut_off_and_told(tmp_path, lost):
    path = kept(tmp_path, FIRST, SECOND)
    path.write_bytes(path.read_bytes()[:-lost])
    found = read_ledger(tmp_path)
    assert found.torn
    assert found.results == (FIRST,)
    with opened(tmp_path) as ledger:
        assert ledger.torn
        ledger.append(SECOND)
    assert read_ledger(tmp_path).results == (FIRST, SECOND)
    assert not read_ledger(tmp_path).torn


def test_a_last_line_that_a_power_cut_left_full_of_zeros_is_cut_off(tmp_path):
    path = kept(tmp_path, FIRST)
    path.write_bytes(path.read_bytes() + b"\0" * 50 + b"\n")
    assert read_ledger(tmp_path).torn
    kept(tmp_path, SECOND)
    assert read_ledger(tmp_path).results == (FIRST, SECOND)


def test_a_campaign_that_was_stopped_within_its_first_line_begins_anew(tmp_path):
    path = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:30])
    kept(tmp_path, FIRST)
    assert read_ledger(tmp_path).results == (FIRST,)


def test_every_cut_leaves_whole_results_or_a_fresh_ledger(tmp_path):
    whole = kept(tmp_path, FIRST, SECOND).read_bytes()
    for size in range(0, len(whole), 37):
        (tmp_path / "results.jsonl").write_bytes(whole[:size])
        with opened(tmp_path) as ledger:
            assert ledger.results in [(), (FIRST,)]
            kept_before = ledger.results
            ledger.append(SECOND)
        assert read_ledger(tmp_path).results == (*kept_before, SECOND)


def test_a_line_that_is_damaged_in_the_middle_is_refused_and_kept(tmp_path):
    path = kept(tmp_path, FIRST, SECOND)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{\n", *lines[3:]]))
    assert refusal(tmp_path) == "line 3: is damaged: must be JSON"


def test_a_rule_that_a_line_breaks_is_told_with_its_line(tmp_path):
    path = kept(tmp_path, FIRST)
    path.write_text(path.read_text().replace('"residents": 1', '"residents": 0'))
    assert refusal(tmp_path) == "line 3: residents: must be >= 1, got 0"


def test_a_file_of_somebody_else_is_refused_and_kept(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"mine": 1}')
    assert refusal(tmp_path) == "must be a file of the format dovetail-ledger/1"
    with pytest.raises(InputError, match="cannot be read"):
        read_ledger(tmp_path / "nowhere")


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
    told = refusal(tmp_path, **{field: value})
    assert told == f"is of another machine: {rule}; measure into a folder of its own"


def test_an_equal_machine_goes_on_and_stands_in_the_ledger(tmp_path):
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
    told = refusal(tmp_path, of)
    assert told == f"is of another campaign: {rule}; measure into a folder of its own"


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
        with pytest.raises(LedgerError, match=r"results\.jsonl: another campaign is writing it"):
            Ledger(tmp_path)
        assert read_ledger(tmp_path).results == ()
    kept(tmp_path, FIRST)


def test_a_ledger_that_a_killed_process_held_can_be_gone_on_with(tmp_path):
    program = (
        "import os, sys, time\n"
        "from tests.executor.measuring.test_ledger import *\n"
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


def test_a_full_disk_is_told_and_leaves_the_ledger_as_it_was(tmp_path, monkeypatch):
    with opened(tmp_path) as ledger:
        write = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:20], at))
        with pytest.raises(LedgerError, match="cannot be written: the disk is full"):
            ledger.append(FIRST)
        monkeypatch.undo()
        ledger.append(SECOND)
    assert read_ledger(tmp_path).results == (SECOND,)


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be opened: not a directory"):
        Ledger(tmp_path / "file" / "out")


def test_what_failed_or_was_disturbed_is_tried_twice_and_what_was_refused_always():
    failed = result(["conv"], status="failed", told="signal 9")
    disturbed = result(["conv"], [0.02], disturbed_by=[4711])
    refused = result(["conv"], status="refused")
    assert settled([FIRST]) == {"0:mps:conv#0"}
    assert settled([SECOND]) == {"1:mps:conv+lstm#0"}
    assert settled([failed]) == settled([disturbed]) == settled([refused] * 3) == set()
    assert settled([failed, disturbed]) == settled([failed, FIRST]) == {"0:mps:conv#0"}


def test_of_several_results_the_last_sound_one_counts():
    failed = result(["conv"], status="failed", told="signal 9")
    later = FIRST.replace(paces=(pace(0.03),))
    key = FIRST.key
    assert standing([failed, FIRST])[key] == FIRST
    assert standing([FIRST, failed])[key] == FIRST
    assert standing([FIRST, later])[key] == later
    assert standing([failed, failed.replace(told="signal 11")])[key].told == "signal 11"
