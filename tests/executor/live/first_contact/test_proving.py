"""The proof: kept check by check, gone on with, told as tables and transcripts."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.executor.live.first_contact.proving import (
    CHECKS,
    ELSEWHERE,
    Job,
    chosen,
    machine_of,
    run,
    usual_s,
)
from dovetail.executor.live.first_contact.records import (
    Check,
    Machine,
    Proof,
    check_same,
    read_proof,
    write_proof,
)
from dovetail.executor.live.first_contact.telling import by_row, markdown, transcript
from dovetail.executor.live.nvml import Nvml, NvmlError
from dovetail.instances.errors import InputError

from ..mps import from_proof, record, standin
from ..mps.test_control import RECORDED, SPOKEN_BY_STANDIN

BY_ID = {checking.id: checking for checking in CHECKS}
MACHINE = Machine(
    stand_in="invented",
    gpu_model="Invented",
    uuid="GPU-1",
    driver="580",
    control="/usr/bin/nvidia-cuda-mps-control",
    compute_mode="default",
    memory_mib=1024,
    uid=0,
    host_cores=2,
    kernel="6",
    dovetail="0.1",
)
HARDWARE = Path(__file__).parents[4] / "docs" / "hardware.md"


def check(name, verdict="otherwise"):
    return Check(
        id=name,
        rows=(3, 4),
        looked_at="a thing",
        taken="one | two",
        seen="three",
        verdict=verdict,
        seconds=1.5,
        date="2026-11-22",
        commands=({"at_s": 0, "command": "quit", "exit": 0, "seconds": 0.1},),
    )


class TestWhatIsRun:
    def test_ids_are_unique_and_what_breaks_things_comes_last(self):
        assert len(BY_ID) == len(CHECKS)
        faults = [checking.fault for checking in CHECKS]
        assert faults == sorted(faults)

    def test_every_line_of_the_hardware_page_is_settled_or_told_why_not(self):
        page = set(map(int, re.findall(r"^\| (\d+) \|", HARDWARE.read_text(), re.M)))
        assert {row for checking in CHECKS for row in checking.rows} | set(ELSEWHERE) == page

    def test_the_hardware_page_names_the_checks_of_each_line(self):
        for line in HARDWARE.read_text().splitlines():
            if found := re.match(r"\| (\d+) \|", line):
                named = set(re.findall(r"`([\w-]+)`", line.rsplit("|", 2)[1])) & set(BY_ID)
                assert named == {one.id for one in CHECKS if int(found[1]) in one.rows}, line

    def test_all_fits_into_ten_minutes(self):
        assert usual_s(CHECKS) < 600

    def test_what_has_a_result_is_left_out_unless_named(self):
        proof = Proof(machine=MACHINE, checks=(check("programs"),))
        assert chosen(Job(), proof) == CHECKS[1:]
        assert [one.id for one in chosen(Job(only=("programs",)), proof)] == ["programs"]
        assert not any(one.fault for one in chosen(Job(faults=False), proof))

    def test_an_unknown_id_is_told(self):
        with pytest.raises(InputError, match="--only: unknown check 'x'; there are programs, "):
            chosen(Job(only=("x",)), Proof(machine=MACHINE))


class TestTheFile:
    def test_it_is_read_as_it_was_written(self, tmp_path):
        proof = Proof(machine=MACHINE).with_check(check("a")).with_check(check("b"))
        write_proof(proof, tmp_path / "proof.json")
        assert read_proof(tmp_path / "proof.json") == proof

    def test_a_new_result_takes_the_place_of_the_old(self):
        proof = (
            Proof(machine=MACHINE)
            .with_check(check("a"))
            .with_check(check("a", "as taken for granted"))
        )
        assert [one.verdict for one in proof.checks] == ["as taken for granted"]

    def test_all_that_checks_measure_can_be_kept(self, make_bench, tmp_path):
        proof = Proof(machine=MACHINE)
        for name in ("gpm", "settings", "fault-partner"):
            proof = proof.with_check(run(BY_ID[name], make_bench()))
        write_proof(proof, tmp_path / "proof.json")
        again = read_proof(tmp_path / "proof.json")
        assert [one.seen for one in again.checks] == [one.seen for one in proof.checks]
        assert again.checks[2].commands == proof.checks[2].commands

    def test_another_driver_is_refused(self):
        proof = Proof(machine=MACHINE)
        with pytest.raises(InputError, match=r"f: machine\.driver: is of '580', here is '590'"):
            check_same(proof, MACHINE.replace(driver="590"), "f")

    def test_another_card_of_the_model_goes_on(self):
        check_same(Proof(machine=MACHINE), MACHINE.replace(uuid="GPU-another"), "f")
        with pytest.raises(InputError, match=r"machine\.gpu_model"):
            check_same(Proof(machine=MACHINE), MACHINE.replace(gpu_model="another"), "f")

    def test_what_is_no_gpu_never_goes_with_what_is_one(self):
        with pytest.raises(InputError, match=r"machine\.stand_in"):
            check_same(Proof(machine=MACHINE), MACHINE.replace(stand_in=None), "f")


class TestTelling:
    def test_rows_for_the_hardware_page(self):
        text = markdown(Proof(machine=MACHINE, checks=(check("a"),)))
        assert text.splitlines()[0].startswith("stand-in, no GPU: invented, driver 580")
        assert text.splitlines()[-1] == (
            r"| `a` | 3, 4 | a thing | one \| two | three | otherwise | 2 |"
        )

    def test_by_line_of_the_page(self):
        proof = Proof(machine=MACHINE, checks=(check("a"), check("b")))
        assert {row: len(found) for row, found in by_row(proof).items()} == {3: 2, 4: 2}

    def test_pids_become_names_in_answers(self):
        commands = [
            {
                "at_s": 0,
                "command": "get_client_list 17",
                "exit": 0,
                "out": "18\n19 {x}\n",
                "seconds": 0,
                "pids": {"server": 17, "client": 18},
            }
        ] * 2
        (answer,) = transcript(
            Proof(machine=MACHINE, checks=(check("a").replace(commands=commands),))
        )["answers"]
        assert answer["command"] == "get_client_list {server}"
        pattern = answer["pattern"].format(server=17, client=18)
        assert re.fullmatch(pattern, "18\n19 {x}\n")
        assert not re.fullmatch(pattern, "19\n18 {x}\n")


class TestTranscripts:
    """What the real daemon was heard to say can be held against the stand-in."""

    def test_the_real_daemon_is_heard_word_by_word(self, real_bench):
        found = run(BY_ID["commands"], real_bench)
        assert found.verdict == "as taken for granted", found.seen
        steps = transcript(Proof(machine=MACHINE, checks=(found,)))["steps"]
        recorded = {(*one["options"], one["command"]): [] for one in RECORDED["steps"]}
        for one in RECORDED["steps"]:
            recorded[*one["options"], one["command"]].append(one)
        known = [one for one in steps if (*one["options"], one["command"]) in recorded]
        assert len(known) > 25
        assert all(one in recorded[*one["options"], one["command"]] for one in known)

    def test_the_stand_in_keeps_to_it(self, real_bench, tmp_path):
        found = run(BY_ID["commands"], real_bench)
        steps = transcript(Proof(machine=MACHINE, checks=(found,)))["steps"]
        program = standin.install(tmp_path, "535")
        spoken = 0
        for step in steps:
            if (step["command"] or " ".join(step["options"])).startswith(SPOKEN_BY_STANDIN):
                told = record.say(program, tmp_path / "pipes", step["options"], step["command"])
                assert told == step
                spoken += 1
        assert spoken > 10

    def test_a_proof_becomes_a_transcript_of_the_stand_in(self, real_bench, tmp_path):
        proof = Proof(machine=MACHINE, checks=(run(BY_ID["commands"], real_bench),))
        write_proof(proof, tmp_path / "standin.json")
        with pytest.raises(SystemExit, match="is of a stand-in: invented"):
            from_proof.convert(tmp_path / "standin.json", tmp_path, "580")
        machine = MACHINE.replace(stand_in=None)
        write_proof(proof.replace(machine=machine), tmp_path / "proof.json")
        made = json.loads(from_proof.convert(tmp_path / "proof.json", tmp_path, "580").read_text())
        assert set(made) - {"answers"} == set(RECORDED)
        assert made["gpu"] == "Invented"

    def test_answers_about_clients_hold_for_the_next_clients(self, make_bench):
        """As a transcript of a GPU will be used: patterns of one run fit the next."""
        first, second = (
            transcript(Proof(machine=MACHINE, checks=(run(BY_ID["clients"], make_bench()),)))
            for _ in range(2)
        )
        patterns = {(one["command"], one["pattern"]) for one in first["answers"]}
        assert patterns == {(one["command"], one["pattern"]) for one in second["answers"]}
        assert ("get_client_list {server}", "{client}\\n{client 2}\\n") in patterns


class TestCommand:
    def test_without_a_gpu_it_says_what_is_missing(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with suppress(NvmlError), Nvml():
            pytest.skip("there is a driver here")
        assert main(["doctor", "--prove"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("dovetail: nothing can be proven")
        assert not list(tmp_path.iterdir())

    def test_a_run_is_kept_and_gone_on_with(self, make_bench, nvml, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_bench()
        assert main(["doctor", "--prove", "--only", "programs,attribute"]) == 0
        assert main(["doctor", "--prove", "--only", "terminate", "--no-faults"]) == 0
        proof = read_proof("proof.json")
        assert [one.id for one in proof.checks] == ["programs", "attribute"]
        assert "is a script" in proof.machine.stand_in
        shown = capsys.readouterr().out
        assert "as taken for granted" in shown
        assert "STAND-IN, no GPU" in shown
        assert json.loads(Path("proof.json").read_text())["format"] == "dovetail-proof/1"

    def test_a_gpu_in_use_is_refused(self, make_bench, nvml, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_bench()
        nvml.library.processes["compute"] = [(4711, 1 << 20)]
        assert main(["doctor", "--prove"]) == 2
        assert "is in use (pid 4711)" in capsys.readouterr().err

    def test_no_check_is_begun_that_would_not_end_in_time(self, make_bench, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_bench()
        # 0.2 minutes are 12 s: programs (1 s and 10 around it) may begin, shares may not.
        assert main(["doctor", "--prove", "--only", "shares,programs", "--minutes", "0.2"]) == 3
        assert [one.id for one in read_proof("proof.json").checks] == ["programs"]

    def test_without_mps_what_nvml_tells_is_still_proven(
        self, nvml, with_cuda, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        main(["doctor", "--prove", "--only", "programs,gpm"])
        proof = read_proof("proof.json")
        tried = [(one.id, one.verdict != "could not be tried") for one in proof.checks]
        assert tried == [("programs", False), ("gpm", True)]
        assert "is not installed" in proof.checks[0].seen
        assert (proof.machine.control, proof.machine.stand_in) == ("none", None)
        assert "what needs MPS cannot be tried" in capsys.readouterr().err


class TestMachine:
    def test_a_stand_in_is_never_taken_for_a_gpu(self, nvml, tmp_path):
        machine = machine_of(nvml, nvml.gpus()[0], standin.install(tmp_path, "555"))
        assert machine.stand_in.endswith("is a script, not NVIDIA's program")
        assert markdown(Proof(machine=machine)).startswith("stand-in, no GPU: ")

    def test_a_binary_is_nvidias(self, nvml):
        machine = machine_of(nvml, nvml.gpus()[0], sys.executable)
        assert (machine.stand_in, machine.sms) == (None, 132)
