"""Measured times of kernels are kept: a scheduler that begins later chooses by them at once."""

import json
import struct

import pytest

from dovetail.isolation import server as server_module
from dovetail.isolation import times
from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.scheduler import MOST_SIZES, WHOLE, LaunchForm, Size
from dovetail.isolation.server import SchedulerServer
from tests.isolation.tasks import task

KNOWN = {
    Size("a", 400, 256, 0): {WHOLE: 1e-3, LaunchForm("slices", 50): 1.1e-3},
    Size("b", 1, 32, 4096): {WHOLE: 2e-6, LaunchForm("workers", 8, 3): 3e-6},
}


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "new" / "times.json"
    assert times.load(path) == {}
    times.save(path, KNOWN)
    assert times.load(path) == KNOWN
    assert [list(forms) for forms in times.load(path).values()] == [
        list(forms) for forms in KNOWN.values()
    ]
    assert [one.name for one in path.parent.iterdir()] == ["times.json"]


def test_several_schedulers_add_to_a_file(tmp_path):
    first, other = ({size: forms} for size, forms in KNOWN.items())
    times.save(tmp_path / "t", first)
    times.save(tmp_path / "t", other)
    assert times.load(tmp_path / "t") == KNOWN


def test_only_so_many_are_kept(tmp_path):
    path = tmp_path / "t"
    times.save(path, KNOWN)
    times.save(path, {Size("c", k, 32): {WHOLE: 1.0} for k in range(1, MOST_SIZES)})
    assert list(times.load(path))[:2] == [Size("b", 1, 32, 4096), Size("c", 1, 32)]
    assert len(times.load(path)) == MOST_SIZES


def _with(**changes):
    row = {"name": "a", "blocks": 1, "threads": 32, "shared": 0, "forms": [["whole", 0, 1, 1e-3]]}
    return json.dumps({"format": times._FORMAT, "kernels": [[*(row | changes).values()]]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\udcff",
        "[" * 100_000,
        '{"format": "dovetail-kernel-times/2", "kernels": []}',
        f'{{"format": "{times._FORMAT}"}}',
        f'{{"format": "{times._FORMAT}", "kernels": 3}}',
        f'{{"format": "{times._FORMAT}", "kernels": [[]]}}',
        _with(name=5),
        _with(name="a" * 200),
        _with(blocks=0),
        _with(blocks=True),
        _with(threads=1 << 32),
        _with(shared=0.5),
        _with(forms=None),
        _with(forms=[["whole", 0, 1, 1e-3]] * 17),
        _with(forms=[["halves", 0, 1, 1e-3]]),
        _with(forms=[[[], 0, 1, 1e-3]]),
        _with(forms=[["slices", 0, 1, 1e-3]]),
        _with(forms=[["whole", 0, 0, 1e-3]]),
        _with(forms=[["whole", 0, 1, float("nan")]]),
        _with(forms=[["whole", 0, 1, -1.0]]),
        " " * (times._MOST_BYTES + 1),
    ],
)
def test_damaged_and_foreign_files(tmp_path, text):
    path = tmp_path / "t"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(times.TimesError) as raised:
        times.load(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: must be dovetail-kernel-times/1, ")
    assert len(message.splitlines()) == 1
    times.save(path, KNOWN)
    assert times.load(path) == KNOWN


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(times.TimesError, match="cannot be read"):
        times.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(times.TimesError, match="cannot be written"):
        times.save(tmp_path / "file" / "t", KNOWN)


@pytest.fixture
def driver(tmp_path):
    """Return what a driver says of itself and two GPUs."""
    folder = tmp_path / "driver"
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (folder / "gpus" / name).mkdir(parents=True)
        told = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 20\nGPU UUID: \t GPU-1\n"
        (folder / "gpus" / name / "information").write_text(told)
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
    (folder / "version").write_text(version)
    return folder


class TestFileName:
    def test_it_names_models_sms_and_driver(self, driver):
        assert times.file_name(132, driver) == "times-NVIDIA_H200_132_580.159.04.json"
        closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n"
        (driver / "version").write_text(closed)
        information = driver / "gpus" / "0000:02:00.0" / "information"
        information.write_text("Model: NVIDIA ../T400\n")
        name = times.file_name(108, driver)
        assert name == "times-NVIDIA_.._T400_NVIDIA_H200_108_535.54.03.json"

    @pytest.mark.parametrize("missing", ["version", "gpus"])
    def test_there_is_none_where_the_driver_does_not_say(self, driver, missing):
        (driver / missing).rename(driver / "other")
        assert times.file_name(132, driver) is None


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)")
class TestSchedulers:
    """One scheduler measures; the next one knows."""

    def _asked(self, server, seconds=()):
        """Have a process ask for the form of a kernel, measure it so often, and ask again."""
        client = server_module._ClientProcess(1, False, 0)
        server._module(client, struct.pack("=I", 90) + task("update_in_place").image)
        request = struct.pack("=12I", 0, 0, 400, 1, 1, 1024, 1, 1, 0, 65536, 4, 0)
        for time in seconds:
            kind, size, chunk, final = struct.unpack("=4I", server._form(client, request))
            assert not final
            measured = struct.pack("=7Id", 0, 0, 400, 1024, kind, size, chunk, time)
            server._measured(client, measured)
        return struct.unpack("=4I", server._form(client, request))

    def _server(self, tmp_path):
        server = SchedulerServer(tmp_path / "socket", kept=tmp_path / "kept")
        server.close()
        return server

    @pytest.fixture(autouse=True)
    def _driver(self, driver, monkeypatch):
        monkeypatch.setattr(times, "DRIVER", driver)

    def test_a_second_scheduler_begins_with_the_final_form(self, tmp_path):
        first = self._server(tmp_path)
        *form, final = self._asked(first, [1e-3] * 5 + [1.1e-3] * 5)
        assert (form[0], final) == (1, 1)
        assert self._asked(self._server(tmp_path)) == (0, 0, 1, 0)
        first._save()
        assert self._asked(self._server(tmp_path)) == (*form, 1)
        assert [one.name for one in (tmp_path / "kept").iterdir()] == [
            "times-NVIDIA_H200_4_580.159.04.json"
        ]

    def test_a_measurement_that_is_not_complete_is_not_kept(self, tmp_path):
        first = self._server(tmp_path)
        self._asked(first, [1e-3] * 4)
        first._save()
        assert not (tmp_path / "kept").exists()

    def test_a_damaged_file_is_named_in_one_line_and_written_anew(self, tmp_path, caplog):
        path = tmp_path / "kept" / "times-NVIDIA_H200_4_580.159.04.json"
        path.parent.mkdir()
        path.write_text("{")
        server = self._server(tmp_path)
        self._asked(server, [1e-3] * 5)
        (line,) = caplog.messages
        assert line.startswith(f"{path}: must be dovetail-kernel-times/1")
        assert line.endswith("kernels are measured anew")
        server._save()
        assert len(times.load(path)) == 1
