"""The sdist and the wheel of a commit, byte for byte the same wherever and whenever they are built.

They are built from a copy of the commit in which the links of README.md are absolute, as the
package index shows it alone, and in which pyproject.toml names the addresses of the project.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent

_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//")
_HOOKS: Final = """
import sys, setuptools.build_meta as backend
for kind in sys.argv[2:]:
    print(getattr(backend, "build_" + kind)(sys.argv[1]), file=sys.stderr)
"""


class ReleaseError(Exception):
    """A release cannot be made; the message is one line."""


class Address(NamedTuple):
    """Where the project's files can be read.

    Attributes
    ----------
    repository : str
        Address of the repository, without a slash at its end.
    page, raw : str
        Patterns of the address of a file's page and of its bytes, with ``{repository}``,
        ``{tag}`` and ``{path}``.
    """

    repository: str
    page: str
    raw: str

    def of(self, path: str, tag: str, *, raw: bool = False) -> str:
        """Return the address of a file of the repository."""
        pattern = self.raw if raw else self.page
        return pattern.format(repository=self.repository, tag=tag, path=path)


def settings(root: Path) -> Address:
    """Return the addresses that ``[tool.dovetail.release]`` of pyproject.toml declares."""
    declared = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return Address(**declared["tool"]["dovetail"]["release"])


def absolute(text: str, address: Address, tag: str) -> str:
    """Return the text of README.md with absolute links; blocks of code stay as they are."""

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        label = _LINK.sub(link, label)  # an image may be a link
        if _ELSEWHERE.match(target):
            return f"{mark}[{label}]({target})"
        path = f"README.md{target}" if target.startswith("#") else target
        return f"{mark}[{label}]({address.of(path, tag, raw=bool(mark))})"

    blocks = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(block if block.startswith("```") else _LINK.sub(link, block) for block in blocks)


def stage(root: Path, folder: Path, address: Address, version: str) -> int:
    """Write the files of the last commit to a folder, ready to be built; return its time.

    Parameters
    ----------
    root : path
        The checkout.
    folder : path
        A folder that does not exist.
    address : Address
        What links begin with.
    version : str
        The version, whose tag links name.

    Returns
    -------
    int
        Time of the commit in seconds since 1970, which is that of every file.
    """
    archive = git(root, "archive", "--format=tar", "HEAD")
    epoch = int(git(root, "log", "-1", "--format=%ct", "HEAD"))
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    readme, project = folder / "README.md", folder / "pyproject.toml"
    readme.write_text(absolute(readme.read_text("utf-8"), address, f"v{version}"), "utf-8")
    project.write_text(_with_urls(project.read_text("utf-8"), address, f"v{version}"), "utf-8")
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (epoch, epoch))
    return epoch


def _with_urls(text: str, address: Address, tag: str) -> str:
    urls = {
        "Source": address.repository,
        "Documentation": address.of("docs/index.md", tag),
        "Changelog": address.of("CHANGELOG.md", tag),
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    head = "[project.scripts]\n"
    if text.count(head) != 1:
        raise ReleaseError(f"pyproject.toml: must have one line {head.strip()}")
    return text.replace(head, f"[project.urls]\n{lines}\n{head}")


def build(source: Path, output: Path, epoch: int, kinds: Iterable[str]) -> list[Path]:
    """Build ``sdist`` or ``wheel`` of a folder by the backend that pyproject.toml names.

    The setuptools of this Python is used, so that the same tools give the same bytes.

    Returns
    -------
    list of path
        The files built.

    Raises
    ------
    ReleaseError
        If the backend fails; the message is its last line.
    """
    output.mkdir(parents=True, exist_ok=True)
    made = []
    for kind in kinds:
        done = subprocess.run(
            [sys.executable, "-c", _HOOKS, output, kind],
            cwd=source,
            env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONDONTWRITEBYTECODE": "1"},
            umask=0o022,  # a wheel records the modes of its files
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stderr.strip().splitlines() or [""]
        if done.returncode:
            raise ReleaseError(f"{kind}: setuptools failed: {lines[-1]}")
        made.append(output / lines[-1])
        if kind == "sdist":
            normalise(made[-1], epoch)
    return made


def normalise(sdist: Path, epoch: int) -> None:
    """Write an sdist again without its builder's users, times, modes and order of files."""
    with tarfile.open(sdist) as packed:
        members = sorted(packed.getmembers(), key=lambda one: one.name)
        contents = {one.name: packed.extractfile(one) for one in members}
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as written:
            for one in members:
                one.uid = one.gid = 0
                one.uname = one.gname = ""
                one.mtime, one.pax_headers = epoch, {}
                one.mode = 0o755 if one.isdir() or one.mode & 0o100 else 0o644
                written.addfile(one, contents[one.name])
    with (
        sdist.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=epoch) as zipped,
    ):
        zipped.write(plain.getvalue())


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist and return its only folder."""
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def git(root: Path, *arguments: str) -> bytes:
    """Run git in a checkout, whose files come as they are stored, and return its output.

    Raises
    ------
    ReleaseError
        If git is missing or fails.
    """
    words = ["git", "-C", str(root), "-c", "core.autocrlf=false", "-c", "core.eol=lf", *arguments]
    try:
        done = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        raise ReleaseError("git is not installed") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
        raise ReleaseError(f"git {arguments[0]}: {lines[-1]}")
    return done.stdout
