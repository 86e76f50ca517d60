"""The container file: its commands are ours, and its image runs a job with its page (long)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dovetail.cli.main import parser
from releasing import release
from tests.releasing.test_releasing import AT
from tests.rooms import ROOT

FILE = ROOT / "Containerfile"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
JOB = """
set -e
dovetail serve --pool cpu:devices=1 & service=$!
until [ -S /run/dovetail/api.sock ]; do sleep 0.2; kill -0 $service; done
dovetail queue --json
dovetail page >page & pages=$!
until [ -s page ]; do sleep 0.2; kill -0 $pages; done
dovetail submit --wait --name tulip -- python3 -c 'print("a job")'
python3 /seen <page
dovetail logs j1
kill $pages $service
"""
SEEN = r"""
import re, sys, urllib.request
from http.cookiejar import CookieJar
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
link = re.search(r"http://127\S+", sys.stdin.read())[0]
start = link.partition("/enter/")[0]
for address in (link, f"{start}/", f"{start}/jobs/j1"):
    with browser.open(address) as answer:
        print(answer.status, "tulip" in answer.read().decode())
"""


def words(instruction):
    """Return the words of an instruction in its form of JSON."""
    return json.loads(re.findall(rf"^{instruction}.*?(\[.*\])$", FILE.read_text(), re.M)[-1])


def test_its_commands_are_ours():
    assert words("ENTRYPOINT") == ["dovetail"]
    assert parser().parse_args(words("CMD")).pool == "gpu"
    program, *arguments = words("HEALTHCHECK")
    assert program == "dovetail"
    assert parser().parse_args(arguments).json


def test_nothing_but_the_files_of_a_release_is_sent_to_the_build():
    assert (ROOT / ".containerignore").read_text().split() == ["*", "!dist"]
    assert re.findall(r"^COPY (?!--from)(\S+)", FILE.read_text(), re.M) == ["dist"]


def run(*arguments, **more):
    done = subprocess.run(
        [str(each) for each in arguments], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(
    not (shutil.which("buildah") and shutil.which("mmdebstrap")),
    reason="needs buildah and mmdebstrap (Debian packages)",
)
def test_from_a_bare_debian_to_a_job_and_its_page(tmp_path):
    """The base is made by mmdebstrap, as no registry is asked."""
    base, context = tmp_path / "base.tar", tmp_path / "context"
    run("mmdebstrap", "--variant=minbase", "trixie", base, "http://deb.debian.org/debian")
    (context / "dist").mkdir(parents=True)
    (tmp_path / "made").mkdir()
    _, wheel = release.built_twice(ROOT, tmp_path / "made", AT, release.version_of(ROOT))
    shutil.copy(wheel, context / "dist")
    store = ("--root", tmp_path / "store", "--runroot", tmp_path / "run", "--storage-driver", "vfs")
    buildah = ("buildah", *store)
    scratch = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", scratch, base, "/")
    if CERTIFICATES.exists():
        # Where the network has certificates of its own, pip needs those that this machine has.
        run(*buildah, "add", scratch, CERTIFICATES, str(CERTIFICATES))
    run(*buildah, "commit", scratch, "localhost/base")
    build = ("bud", "--isolation", "chroot", "--build-arg", "BASE=localhost/base")
    run(*buildah, *build, "--tag", "localhost/dovetail", "--file", FILE, context)
    made = run(*buildah, "from", "localhost/dovetail").strip()
    (tmp_path / "seen").write_text(SEEN)
    run(*buildah, "add", made, tmp_path / "seen", "/seen")
    printed = run(*buildah, "run", "--isolation", "chroot", made, "sh", "-c", JOB)
    assert "j1: finished: every rank ended with status 0" in printed
    assert printed.splitlines()[-4:] == ["200 False", "200 True", "200 True", "a job"]
