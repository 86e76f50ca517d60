"""Fetch the public measurements and traces behind the figures of the evidence, and of some tests.

``python benchmarks/fetch_data.py`` writes all of them into ``../shared/data`` next to the checkout,
where benchmarks and tests look (``--to`` names another folder, for ``--data`` of benchmarks);
``python benchmarks/fetch_data.py lucid muri`` only these. Files come from GitHub at the commits in
``fetch_data.toml``, which also has their licences and checksums; a file that exists and is correct
is left alone. Tables that were gathered by hand are copied from ``gathered/``.

Some of it may be used for evaluation only: read the licences that are printed. None of it is
installed with Dovetail.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "shared" / "data"
RAW = "https://raw.githubusercontent.com"
MOST_BYTES = 50_000_000
PATIENCE_S = 60

Source = Mapping[str, Any]


class FetchError(Exception):
    """Something could not be fetched, or is not what it should be."""


def main(arguments: list[str] | None = None) -> int:
    """Fetch what the command line names, and return the exit status."""
    known = tomllib.loads((HERE / "fetch_data.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--to", type=Path, default=DATA, help="folder (default: %(default)s)")
    parser.add_argument(
        "--mirror", default=RAW, help="base of the addresses (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no data {unknown[0]}, known: {', '.join(known)}")
    for name in options.names or known:
        source = known[name]
        print(
            f"{name}: {source['repository']} @{source['commit'][:7]}, licence: {source['licence']}"
        )
        try:
            fetch(name, source, options.to / name, options.mirror)
        except FetchError as error:
            print(f"fetch_data: {error}", file=sys.stderr)
            return 2
    return 0


def fetch(name: str, source: Source, folder: Path, mirror: str = RAW) -> None:
    """Write the files of a source into a folder.

    Raises
    ------
    FetchError
        With the address of a file that cannot be fetched, or has another checksum.
    """
    for file in source["files"]:
        place = folder / file["to"]
        if place.exists() and sha256(_unpacked(place)).hexdigest() == file["sha256"]:
            continue
        address = f"{mirror}/{source['repository']}/{source['commit']}/{file['path']}"
        content = _downloaded(address)
        found = sha256(content).hexdigest()
        if found != file["sha256"]:
            raise FetchError(f"{address}: must have the SHA-256 {file['sha256']}, got {found}")
        _write(place, gzip.compress(content, mtime=0) if place.suffix == ".gz" else content)
    for table in source.get("gathered", ()):
        _write(folder / table, (HERE / "gathered" / name / table).read_bytes())
    if name == "igniter":
        for table, text in igniter_tables((folder / "gpulet.config").read_text()).items():
            _write(folder / table, text.encode())


def igniter_tables(text: str) -> dict[str, str]:
    """Return iGniter's profile as two tables: services alone at a cap, and pairs of them.

    Each line of the profile is a mapping of one model (or ``interference``) to one quantity.
    """
    alone: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        for model, quantities in json.loads(line).items():
            alone.setdefault(model, {}).update(quantities)
    together = alone.pop("interference")
    pairs = zip(together["latency"], together["std"], strict=True)
    return {
        "solo.csv": _table(
            "model,batch,cap_pct,latency_ms,throughput_per_s,l2_pct,dram_pct", _alone(alone)
        ),
        "pairs.csv": _table(
            "model_1,batch_1,share_1,model_2,batch_2,share_2,latency_ms_1,latency_ms_2,std_1,std_2",
            (
                (a, m, cap, b, n, 100 - cap, *measured, *deviations[5:])
                for (a, b, m, n, cap, *measured), deviations in pairs
            ),
        ),
    }


def _alone(profiles: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[object, ...]]:
    quantities = ("latency", "throughput", "l2cache", "dram")
    for model, found in sorted(profiles.items()):
        for batch, caps in found["latency"].items():
            for cap in sorted(caps, key=int):
                values = (found[name].get(batch, {}).get(cap) for name in quantities)
                yield model, batch, cap, *values


def _table(header: str, rows: Iterator[tuple[object, ...]]) -> str:
    return "\n".join([header, *(",".join(map(_cell, row)) for row in rows), ""])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _downloaded(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            content: bytes = answer.read(MOST_BYTES + 1)
    except OSError as error:
        raise FetchError(f"{address}: cannot be fetched: {error}") from None
    if len(content) > MOST_BYTES:
        raise FetchError(f"{address}: is larger than {MOST_BYTES} bytes")
    return content


def _unpacked(place: Path) -> bytes:
    content = place.read_bytes()
    try:
        return gzip.decompress(content) if place.suffix == ".gz" else content
    except (OSError, EOFError):
        return b""


def _write(place: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.part")
        part.write_bytes(content)
        shutil.move(part, place)
    except OSError as error:
        raise FetchError(f"{place}: cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
