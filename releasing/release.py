"""Make the files of a release, check them, and print the commands that publish it.

    ./run release 0.2.0             in a clean checkout of the commit to release
    ./run release-check             the same of this commit, whatever its version and changelog,
                                    with an example's address: what CI can try

Files go to dist/: sdist, wheel, SBOM (CycloneDX) of ``dovetail[live]`` and checksums. Nothing is
tagged or uploaded.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Final

from releasing.building import (
    ROOT,
    Address,
    ReleaseError,
    build,
    git,
    settings,
    stage,
    unpack,
)

EXAMPLE: Final = "https://git.example.org/lab/dovetail"
"""Address in checks, while the project has none."""

_SECTION: Final = re.compile(r"^## \[([^\]]+)\](.*)$", re.MULTILINE)
_STATEMENT: Final = re.compile(r"```python\n(from dovetail import .*?)```", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Make a release or check that one could be made; return the exit status."""
    checking = arguments[:1] == ["--check"]
    if not checking and (len(arguments) != 1 or arguments[0].startswith("-")):
        print("usage: ./run release VERSION, or ./run release-check", file=sys.stderr)
        return 2
    try:
        if checking:
            check(ROOT)
        else:
            release(ROOT, arguments[0])
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


def release(root: Path, version: str) -> None:
    """Make the files of a release in ``dist`` and print the commands that publish them.

    Raises
    ------
    ReleaseError
        If the checkout is not ready, or a file is not as it must be; ``dist`` is then unchanged.
    """
    address = settings(root)
    ready(root, version, address)
    with tempfile.TemporaryDirectory() as folder:
        files = make(root, Path(folder), address, version)
        dist = root / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        for file in files:
            shutil.copy(file, dist)
    print("\n".join(publishing(version, [file.name for file in files])))


def check(root: Path) -> None:
    """Make all files of the present commit in a temporary folder, as for a release.

    Raises
    ------
    ReleaseError
        If a file is not as it must be.
    """
    address = settings(root)._replace(repository=EXAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        make(root, Path(folder), address, version_of(root))


def ready(root: Path, version: str, address: Address) -> None:
    """Refuse a checkout that is not the commit of a release.

    Raises
    ------
    ReleaseError
        If files have changed, versions differ, the version's tag is at another commit, the
        changelog has no dated section with text, or the repository has no address yet.
    """
    if changed := git(root, "status", "--porcelain").decode(errors="replace").splitlines():
        raise ReleaseError(f"the checkout has changes: {changed[0].strip()}")
    if (found := version_of(root)) != version:
        raise ReleaseError(f"pyproject.toml: project.version: must be {version}, got {found}")
    own = (root / "instances" / "_version.py").read_text("utf-8")
    if own.count(f'"{version}"') != 1:
        raise ReleaseError(f'instances/_version.py: must set VERSION to "{version}"')
    tag, (commit,) = f"v{version}", git(root, "rev-parse", "HEAD").split()
    tagged = git(root, "for-each-ref", "--format=%(objectname) %(*objectname)", f"refs/tags/{tag}")
    if tagged and commit not in tagged.split():
        raise ReleaseError(f"the tag {tag} exists, at another commit: release a new version")
    dated(root / "CHANGELOG.md", version)
    if not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", address.repository):
        raise ReleaseError(
            "pyproject.toml: tool.dovetail.release.repository: must be the address of the "
            f"repository (https://HOST/PATH), got {address.repository!r}"
        )


def version_of(root: Path) -> str:
    """Return the version that pyproject.toml declares."""
    return str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def dated(changelog: Path, version: str) -> None:
    """Refuse a changelog whose first section is not this version with a date and text.

    Raises
    ------
    ReleaseError
        If it is another version, without a date, dated in the future, or empty.
    """
    text = changelog.read_text("utf-8")
    first = _SECTION.search(text)
    if first is None or first[1] != version:
        name = "none" if first is None else first[1]
        raise ReleaseError(f"{changelog.name}: the first section must be [{version}], got {name}")
    try:
        day = datetime.date.fromisoformat(first[2].removeprefix(" - "))
    except ValueError:
        wanted = f"## [{version}] - YYYY-MM-DD"
        raise ReleaseError(f"{changelog.name}: must say {wanted}, got {first[0]!r}") from None
    if day > datetime.datetime.now(datetime.UTC).date():
        raise ReleaseError(f"{changelog.name}: {version} is dated {day}, in the future")
    section = re.split(r"^## ", text[first.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    if not re.search(r"^[^#\s]", section, re.MULTILINE):
        raise ReleaseError(f"{changelog.name}: the section [{version}] is empty")


def make(root: Path, folder: Path, address: Address, version: str) -> list[Path]:
    """Build and check the files of a release in a folder; return them.

    Raises
    ------
    ReleaseError
        If one is not as it must be.
    """
    tools = Path(sys.executable).parent
    say("sdist and wheel, twice")
    sdist, wheel = built_twice(root, folder, address, version)
    say("contents")
    contents(wheel)
    run(tools / "twine", "check", "--strict", sdist, wheel)
    run(tools / "check-wheel-contents", wheel)
    say("installation with the extra live, and the first commands of the README")
    python = installed(wheel, folder / "user")
    first_commands(python, root, folder)
    say("SBOM")
    bom = folder / f"dovetail-{version}.cdx.json"
    sbom(tools, python, folder / "a" / "tree", bom)
    sums = folder / "SHA256SUMS"
    made = [sdist, wheel, bom]
    lines = (f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in made)
    sums.write_text("".join(lines))
    for one in made:
        print(f"  {one.name}: {one.stat().st_size / 1024:,.0f} KiB")
    return [*made, sums]


def say(what: str) -> None:
    """Print the step that begins."""
    print(f"release: {what} ...", flush=True)


def built_twice(root: Path, folder: Path, address: Address, version: str) -> tuple[Path, Path]:
    """Build the sdist in two folders, and the wheel from one and from the sdist, as pip does.

    Builds of the same file must be the same bytes.

    Raises
    ------
    ReleaseError
        If two of them differ.
    """
    first = folder / "a" / "tree"
    first.parent.mkdir()
    epoch = stage(root, first, address, version)
    sdist, wheel = build(first, folder / "made", epoch, ("sdist", "wheel"))
    again = folder / "another place" / "b"
    again.parent.mkdir()
    stage(root, again, address, version)
    others = (
        *build(again, folder / "again", epoch, ("sdist",)),
        *build(unpack(sdist, folder / "unpacked"), folder / "again", epoch, ("wheel",)),
    )
    for one, other in zip((sdist, wheel), others, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise ReleaseError(f"{one.name}: two builds differ")
    return sdist, wheel


def contents(wheel: Path) -> None:
    """Refuse a wheel that has other files than the packages, or links that lead nowhere.

    Raises
    ------
    ReleaseError
        If there is one; the message names the first.
    """
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(packed.read(info))
    for name in names:
        if (
            not re.fullmatch(r"dovetail(-[\d.]+[a-z\d.]*\.dist-info)?/.+", name)
            or "/tests/" in name
        ):
            raise ReleaseError(f"{wheel.name}: {name} does not belong there")
    needed = ("dovetail/py.typed", f"{Path(info).parent}/licenses/LICENSE")
    for name in needed:
        if name not in names:
            raise ReleaseError(f"{wheel.name}: {name} is missing")
    for link in relative_links(metadata):
        raise ReleaseError(f"README.md: the link {link} is not absolute in the description")


def relative_links(metadata: Message) -> Iterator[str]:
    """Yield the targets of links of a description that are not absolute."""
    text = str(metadata.get_payload())
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]*)\)|(?:href|src)=[\"']([^\"']*)", prose):
        link = "".join(target)
        if not link.startswith("https://"):
            yield link


def installed(wheel: Path, folder: Path) -> Path:
    """Install the wheel with the service in an environment of its own; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    options = ("--quiet", "--disable-pip-version-check", "--find-links", wheel.parent)
    run(python, "-m", "pip", "install", *options, f"dovetail[live] @ {wheel.as_uri()}")
    run(python, "-m", "pip", "check", "--disable-pip-version-check")
    return python


def first_commands(python: Path, root: Path, folder: Path) -> None:
    """Run what README.md shows first: a plan, the call from Python, and a job of the service.

    Raises
    ------
    ReleaseError
        If one of them fails.
    """
    dovetail = python.parent / "dovetail"
    text = (root / "README.md").read_text("utf-8")
    statements = _STATEMENT.search(text)
    if statements is None:
        raise ReleaseError("README.md: has no example in Python")
    home = folder / "home"
    home.mkdir()
    run(dovetail, "plan", "library:lab", "--compare", "--report", home / "demo.html", cwd=home)
    run(python, "-c", statements[1], cwd=home)
    places = {"DOVETAIL_HOME": str(home / "s"), "PATH": f"{python.parent}:{os.defpath}"}
    serve = [dovetail, "serve", "--pool", "cpu:devices=1"]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(
            serve, cwd=home, env=os.environ | places, stdout=log, stderr=log
        ) as service,
    ):
        try:
            while not (home / "s" / "api.sock").exists() and service.poll() is None:
                time.sleep(0.1)
            run(dovetail, "submit", "--wait", "--", "true", cwd=home, env=places)
        finally:
            service.terminate()


def sbom(tools: Path, python: Path, source: Path, output: Path) -> None:
    """Write the SBOM of an environment, validated by its schema; every part has a licence.

    Raises
    ------
    ReleaseError
        If the tool fails or Dovetail is missing in it.
    """
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    project = ("--pyproject", source / "pyproject.toml", "--mc-type", "application")
    form = ("--sv", "1.6", "--of", "JSON", "--output-reproducible", "--validate")
    run(tools / "cyclonedx-py", "environment", *project, *form, "-o", output, python)
    parts = json.loads(output.read_text("utf-8"))["components"]
    without = [part["name"] for part in parts if not part.get("licenses")]
    print(f"  {len(parts)} packages; without a licence in their metadata: {without or 'none'}")


def publishing(version: str, files: list[str]) -> Iterator[str]:
    """Yield the commands that publish a release, which a maintainer runs."""
    packages = " ".join(f"dist/{name}" for name in files if name.endswith((".whl", ".tar.gz")))
    yield "\nNothing has been published. To publish:\n"
    yield f"git tag --sign v{version} --message 'Dovetail {version}'"
    yield f"git push origin v{version}"
    yield f"twine upload {packages}"
    yield f"Attach to the tag's page: {', '.join(files)}"


def run(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a program; its output is shown only if it fails.

    Raises
    ------
    ReleaseError
        If it is missing or fails; the message has its last line.
    """
    program = Path(str(words[0])).name
    try:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd,
            env=os.environ | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise ReleaseError(f"{program} is not installed: pip install '.[release]'") from None
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise ReleaseError(f"{program}: exit status {done.returncode}: {last}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
