"""Fetching the data behind the figures, from folders in place of GitHub."""

import gzip
import importlib.util
import json
import re
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SOURCES = tomllib.loads((FOLDER / "fetch_data.toml").read_text())


@pytest.fixture
def fetch_data():
    spec = importlib.util.spec_from_file_location("fetch_data", FOLDER / "fetch_data.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def source_of(mirror, **contents):
    """Return a source with files that are in a folder in place of GitHub."""
    files = []
    for name, content in contents.items():
        place = mirror / "ann" / "data" / "c0ffee" / "raw" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        target = f"{name}.csv.gz" if name == "packed" else f"{name}.csv"
        digest = sha256(content).hexdigest()
        files.append({"to": target, "path": f"raw/{name}", "sha256": digest})
    return {"repository": "ann/data", "commit": "c0ffee", "licence": "MIT", "files": files}


def test_files_are_written_packed_where_their_name_says_so(fetch_data, tmp_path):
    source = source_of(tmp_path / "mirror", plain=b"a,b\n", packed=b"c,d\n")
    fetch_data.fetch("mine", source, tmp_path / "to", f"file://{tmp_path}/mirror")
    assert (tmp_path / "to" / "plain.csv").read_bytes() == b"a,b\n"
    assert gzip.decompress((tmp_path / "to" / "packed.csv.gz").read_bytes()) == b"c,d\n"
    # What is there and right is not fetched again; what is damaged is.
    (tmp_path / "to" / "packed.csv.gz").write_bytes(b"\x1f\x8bno")
    (tmp_path / "mirror" / "ann" / "data" / "c0ffee" / "raw" / "plain").unlink()
    fetch_data.fetch("mine", source, tmp_path / "to", f"file://{tmp_path}/mirror")
    assert gzip.decompress((tmp_path / "to" / "packed.csv.gz").read_bytes()) == b"c,d\n"


def test_another_content_is_refused_and_not_written(fetch_data, tmp_path):
    source = source_of(tmp_path / "mirror", plain=b"a,b\n")
    (tmp_path / "mirror" / "ann" / "data" / "c0ffee" / "raw" / "plain").write_bytes(b"other")
    with pytest.raises(fetch_data.FetchError, match=r"must have the SHA-256 \w+, got \w+$"):
        fetch_data.fetch("mine", source, tmp_path / "to", f"file://{tmp_path}/mirror")
    assert not (tmp_path / "to").exists()


def test_what_cannot_be_fetched_is_one_line(fetch_data, tmp_path, capsys):
    options = ["lucid", "--to", str(tmp_path), "--mirror", f"file://{tmp_path}/none"]
    assert fetch_data.main(options) == 2
    printed = capsys.readouterr()
    assert "non-commercial use only" in printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith(f"fetch_data: file://{tmp_path}/none/S-Lab-System-Group/Lucid/63685a3")


def test_gathered_tables_come_from_the_repository(fetch_data, tmp_path):
    assert fetch_data.main(["miso", "--to", str(tmp_path)]) == 0
    written = (tmp_path / "miso" / "solo_features.csv").read_text()
    assert written.startswith("model,batch,sm_util_pct,mem_util_pct,power_w,memory_mb\n")


def test_the_tables_of_igniter(fetch_data):
    lines = [
        {"vgg": {"latency": {"2": {"50": 4.0}, "1": {"100": 2.5, "20": 9.87654321}}}},
        {"vgg": {"throughput": {"1": {"20": 100.0, "100": 400.0}, "2": {"50": 480.0}}}},
        {"vgg": {"l2cache": {"1": {"20": 5.0}}}},
        {"vgg": {"dram": {}}},
        {"interference": {"latency": [["vgg", "ssd", 2, 8, 20, 5.0, 6.5]]}},
        {"interference": {"std": [["vgg", "ssd", 2, 8, 20, 0.5, 0.25]]}},
    ]
    tables = fetch_data.igniter_tables("\n".join(map(json.dumps, lines)))
    assert tables["solo.csv"].splitlines()[1:] == [
        "vgg,2,50,4,480,,",
        "vgg,1,20,9.87654,100,5,",
        "vgg,1,100,2.5,400,,",
    ]
    assert tables["pairs.csv"].splitlines()[1:] == ["vgg,2,20,ssd,8,80,5,6.5,0.5,0.25"]


def test_sources_are_fixed_and_only_free_ones_are_in_the_repository():
    for name, source in SOURCES.items():
        assert re.fullmatch("[0-9a-f]{40}", source["commit"])
        assert all(re.fullmatch("[0-9a-f]{64}", file["sha256"]) for file in source["files"])
        gathered = FOLDER / "gathered" / name
        assert set(source.get("gathered", ())) == {
            path.name for path in gathered.glob("*") if path.name != "LICENSE"
        }
        if gathered.exists():
            assert source["licence"] == "MIT"
            assert (gathered / "LICENSE").read_text().startswith("MIT License")
