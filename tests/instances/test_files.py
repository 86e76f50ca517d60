"""Files survive a round trip in every format, and are written atomically."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from time import process_time

import pytest
import yaml
from hypothesis import given

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import (
    read_data,
    read_instance,
    read_plan,
    write_data,
    write_instance,
    write_plan,
)
from dovetail.instances.reading import contents
from dovetail.instances.reading.contents import write_text
from tests.data import EXAMPLE, example, example_plan, small, vectors
from tests.instances.odd import TRAPS, odd_instances, odd_plans

FORMS = ("json", "json.gz", "yaml", "yaml.gz", "yml", "YAML", "txt", "gz", "JSON.GZ")


@pytest.fixture(params=["C parser", "Python parser"])
def parser(request, monkeypatch):
    """PyYAML's parser in C, and the one it has where it was built without."""
    if request.param == "Python parser":
        monkeypatch.setattr(contents, "LOADER", yaml.SafeLoader)


@pytest.mark.parametrize("form", FORMS)
def test_instance_is_read_back(tmp_path, form):
    path = tmp_path / f"file.{form}"
    write_instance(example(), path)
    assert read_instance(path) == example()
    assert read_instance(str(path)) == example()


@pytest.mark.parametrize("form", FORMS)
def test_plan_is_read_back(tmp_path, form):
    path = tmp_path / f"file.{form}"
    write_plan(example_plan(), path)
    assert read_plan(path) == example_plan()


@given(odd_instances())
def test_every_instance_is_read_back(tmp_path_factory, instance):
    folder = tmp_path_factory.getbasetemp()
    for name in ("odd.json", "odd.yaml"):
        write_instance(instance, folder / name)
        assert read_instance(folder / name) == instance


@given(odd_plans())
def test_every_plan_is_read_back(tmp_path_factory, plan):
    folder = tmp_path_factory.getbasetemp()
    for name in ("odd.json", "odd.yaml"):
        write_plan(plan, folder / name)
        assert read_plan(folder / name) == plan


@pytest.mark.parametrize("name", ["v.json", "v.yaml"])
def test_vectors_are_read_back(tmp_path, name):
    for vector in vectors():
        write_data(vector["instance"], tmp_path / name)
        instance = read_instance(tmp_path / name)
        write_instance(instance, tmp_path / name)
        assert read_instance(tmp_path / name) == instance


@pytest.mark.parametrize(
    ("slowdowns", "message"),
    [
        ([(0.92, 0.8)], "slowdowns: {rule}; half are at most 0.86, as speeds are"),
        ([(108, 131)], "slowdowns: {rule}; half are at least 108, as percentages are"),
        (
            [(1.1, 1.2), (1.3, 1.4), (108, 131)],
            "slowdowns[2].slowdown: {rule}; 108, 131 are percentages",
        ),
    ],
)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_speeds_and_percentages_are_no_slowdowns(tmp_path, form, slowdowns, message):
    path = tmp_path / f"file.{form}"
    write_instance(of_slowdowns(slowdowns), path)
    with pytest.raises(InputError) as error:
        read_instance(path)
    rule = "must be iteration time together / alone"
    assert str(error.value) == f"{path}: {message.format(rule=rule)}"


@pytest.mark.parametrize(
    "slowdowns",
    [
        [(0.96, 0.98)],  # within the noise of a measurement
        [(1.02, 49.7)],  # MPS without caps: one job starves, the other runs as if alone
        [(1.01, 21.0), (1.04, 35.0), (12.0, 1.1)],
        [(1.2, 1.3), (1.1, 1.4), (0.86, 0.85)],  # so measured, in a public set
    ],
)
def test_unusual_slowdowns_are_read(tmp_path, slowdowns):
    write_instance(of_slowdowns(slowdowns), tmp_path / "i.yaml")
    assert [e.slowdown for e in read_instance(tmp_path / "i.yaml").slowdowns] == slowdowns


def of_slowdowns(slowdowns):
    shares = [None, (40, 60), (60, 40)]
    entries = [
        {"pair": ["a", "b"], "slowdown": slowdown, **({"share": share} if share else {})}
        for slowdown, share in zip(slowdowns, shares, strict=False)
    ]
    return small([], entries, shares=[40, 60])


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.json.gz"])
def test_same_content_gives_the_same_bytes(tmp_path, name):
    write_instance(example(), tmp_path / name)
    first = (tmp_path / name).read_bytes()
    os.utime(tmp_path / name, (0, 0))
    write_instance(example(), tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize(("name", "jobs"), [("a.json", '    {"id": "j'), ("a.yaml", "  - {id: j")])
def test_each_job_node_and_entry_has_a_line(tmp_path, name, jobs):
    write_instance(example(), tmp_path / name)
    lines = (tmp_path / name).read_text().splitlines()
    assert len([line for line in lines if line.startswith(jobs)]) == len(EXAMPLE["jobs"])
    assert len([line for line in lines if "pair" in line or "set" in line]) == 3
    assert len([line for line in lines if "memory_mib" in line]) == 2 + 3


def test_yaml_is_written_without_needless_quotes(tmp_path):
    write_plan(example_plan(), tmp_path / "p.yaml")
    first = "  - {job: j2, gpus: [n0-0, n1-3], share: [50, null], slowdown: 1.3, sub_batch: 32, "
    assert f"\nassignments:\n{first}" in (tmp_path / "p.yaml").read_text()


def test_what_is_no_block_is_written_on_one_line(tmp_path):
    for name, text in (("a.yaml", "[]\n"), ("a.json", "[]\n")):
        write_data([], tmp_path / name)
        assert (tmp_path / name).read_text() == text


# Readers of YAML 1.1 (PyYAML's own loader) must find the same in what is written.
@pytest.mark.parametrize("text", [text for text in TRAPS if text != "\ue000"])
def test_traps_are_quoted_for_other_readers(tmp_path, text):
    data = {"a": [text, 1e-5, 1e22, -0.5, True, None, 7], "b": {"c": {text: text}}}
    write_data(data, tmp_path / "a.yaml")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text()) == data
    assert read_data(tmp_path / "a.yaml") == data


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1.1e9", 1.1e9), ("1e5", 1e5), ("1E-5", 1e-5), (".5", 0.5), ("5.", 5.0), ("-.5", -0.5)),
        *(("010", 10), ("-7", -7), ("+7", 7), ("0x1F", 31), ("0o17", 15), ("0b1", "0b1")),
        *(("yes", "yes"), ("No", "No"), ("on", "on"), ("off", "off"), ("y", "y")),
        *(("true", True), ("False", False), ("tRue", "tRue"), ("~", None), ("null", None)),
        *(("", None), ("1:30", "1:30"), ("1_000", "1_000"), ("2026-01-31", "2026-01-31")),
        *(("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"), ("'1'", "1"), ('"true"', "true")),
        *((".inf", float("inf")), ("-.INF", float("-inf")), ("<<", "<<"), ("=", "=")),
        *(("1e999", float("inf")), ("nan", "nan"), ("'a\\n'", "a\\n"), ("| \n  a\n", "a\n")),
    ],
)
def test_yaml_is_read_by_its_version_1_2(tmp_path, text, value):
    path = tmp_path / "a.yaml"
    path.write_text(f"a: {text}\n")
    found = read_data(path)
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("key", ["100", "yes", "~", "1.0", "<<", "2026-01-31", '"100"'])
def test_keys_of_yaml_are_texts(tmp_path, key):
    (tmp_path / "a.yaml").write_text(f"{key}: 1\n")
    assert read_data(tmp_path / "a.yaml") == {key.strip('"'): 1}


def test_shares_as_keys_of_yaml(tmp_path):
    path = tmp_path / "a.yaml"
    write_instance(example(), path)
    text = path.read_text()
    path.write_text(text.replace('{"100": 310.0, "50": 201.0}', "{100: 310, 50: 201}"))
    assert path.read_text() != text
    assert read_instance(path) == example()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", '{"format": [1, 2.5, null]}'),
        ("a", '{"format": [1, 2.5, null]}'),
        ("a", "\n  [1, 2]"),
        ("a.instance", "format: x"),
        ("a.json", '\ufeff{"a": 1}'),
        ("a.yaml", "\ufeffa: 1"),
        ("a.yaml", "%YAML 1.2\n---\na: 1\n...\n"),
    ],
)
def test_the_format_follows_from_the_name_or_the_content(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_data(tmp_path / name) == yaml.safe_load(text.removeprefix("\ufeff"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_standard_input(tmp_path, monkeypatch, name, pack):
    write_instance(example(), tmp_path / name)
    content = pack((tmp_path / name).read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert read_instance("-") == example()


def test_packed_content_under_another_name(tmp_path):
    (tmp_path / "a.json").write_bytes(gzip.compress(json.dumps(EXAMPLE).encode()))
    assert read_instance(tmp_path / "a.json") == example()


def test_standard_output_is_json():
    code = (
        "from dovetail.instances.files import write_data; print('first'); write_data({'é': 1}, '-')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    assert done.stdout == 'first\n{\n  "é": 1\n}\n'.encode()


def test_a_closed_pipe_is_reported_in_one_line():
    reader, writer = os.pipe()
    os.close(reader)
    code = (
        "from dovetail.instances.reading.contents import write_text, InputError\n"
        "try: write_text('-', 'a' * 10)\n"
        "except InputError as error: import sys; sys.stderr.write(str(error)); sys.stderr.flush()\n"
        "import os; os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=True
    )
    os.close(writer)
    assert done.stderr == b"standard output: cannot be written: broken pipe"


@pytest.mark.parametrize(
    ("call", "redirect", "message"),
    [
        ("read_data('-')", "<&-", "standard input: cannot be read: it is closed"),
        ("write_data('', '-')", ">&-", "standard output: cannot be written: it is closed"),
    ],
)
def test_a_closed_stream_is_reported_in_one_line(call, redirect, message):
    code = f"from dovetail.instances.files import *; {call}"
    command = f'"$0" -c "$1" {redirect}'
    done = subprocess.run(["sh", "-c", command, sys.executable, code], stderr=subprocess.PIPE)
    assert done.stderr.decode().splitlines()[-1].endswith(f"InputError: {message}")


def test_text_that_is_no_unicode_is_reported_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt: cannot be written: 'utf-8' codec can't encode"):
        write_text(tmp_path / "a.txt", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text\n")
    assert os.read(reader, 100) == b"text\n"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_link_is_kept_and_its_target_replaced(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_permissions_of_a_replaced_file_are_kept(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_the_usual_permissions(tmp_path):
    write_text(tmp_path / "ours", "")
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    code = (
        "import resource, signal, sys\n"
        "from dovetail.instances.reading.contents import write_text, InputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_text('a.json', 'x' * 5000)\n"
        "except InputError as error: print(error)"
    )
    (tmp_path / "a.json").write_text("old")
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a.json: cannot be written: file too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_file_that_cannot_be_created_is_reported_in_one_line(tmp_path):
    for path, reason in (
        (tmp_path / "none" / "a.json", "no such file or directory"),
        (tmp_path, "is a directory"),
        (tmp_path / ("a" * 300), "file name too long"),
        ("", "is a directory"),
        ("a\0b", "embedded null byte"),
    ):
        with pytest.raises(InputError) as caught:
            write_text(path, "text")
        assert str(caught.value) == f"{source_name(path)}: cannot be written: {reason}"
    assert list(tmp_path.iterdir()) == []


def test_names_of_sources_are_one_line():
    assert source_name("-") == "standard input"
    assert source_name("a b.json") == "a b.json"
    assert source_name("a\nb") == r"'a\nb'"
    assert source_name("") == "''"


def large_instance():
    """An instance of 10,000 jobs and 100,128 entries."""
    names = [f"w{k}" for k in range(447)]
    pairs = [[a, b] for k, a in enumerate(names) for b in names[k:]]
    node = {"gpu_count": 8, "gpu": {"model": "V100", "memory_mib": 16160}}
    entry = {"share": [60, 40], "slowdown": [1.25, 1.25], "upper": [1.5, 1.5]}
    return {
        "format": "dovetail-instance/1",
        "name": "large",
        "cluster": {"shares": [40, 60], "nodes": [{"id": f"n{k}", **node} for k in range(1000)]},
        "workloads": {name: {"memory_mib": 5000} for name in names},
        "jobs": [{"id": f"j{k}", "workload": names[k % 447], "gsla": 1.5} for k in range(10_000)],
        "slowdowns": [{"pair": pair, **entry} for pair in pairs],
    }


# Three seconds of the processor's time where this was written.
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        pytest.param("large.json", 20, marks=pytest.mark.slow),
        pytest.param("large.yaml", 60, marks=pytest.mark.long),
    ],
)
def test_a_large_instance_is_read_in_seconds(tmp_path, name, seconds):
    write_data(large_instance(), tmp_path / name)
    start = process_time()
    instance = read_instance(tmp_path / name)
    assert process_time() - start < seconds
    assert len(instance.slowdowns) == 100_128
