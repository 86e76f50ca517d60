"""PTX from the images that programs hand to the driver: text, and containers of NVIDIA's tools."""

import shutil
import struct
import subprocess

import pytest

from dovetail.isolation.images import ImageError, ptx_of

TEXT = b".version 7.8\n.target sm_%d\n.address_size 64\n.visible .entry k() { ret; }\n"


def container(*entries):
    """Return a container with entries of (architecture, flags, size, payload)."""
    parts = []
    for architecture, flags, size, payload in entries:
        padded = payload + bytes(-len(payload) % 8)
        packed = len(payload) if flags & 0xF000 else 0
        head = struct.pack(
            "<HHIQIIIIQQQQ",
            1,
            0x101,
            64,
            len(padded),
            packed,
            64,
            9,
            architecture,
            0,
            flags,
            0,
            size,
        )
        parts += [head, padded]
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_text():
    assert ptx_of(TEXT % 80 + b"\0", 90) == (TEXT % 80).decode()


def test_the_newest_that_the_gpu_can_run():
    entries = [(number, 0x11, 0, TEXT % number) for number in (70, 80, 90)]
    assert ".target sm_80" in ptx_of(container(*entries), 86)
    with pytest.raises(ImageError, match="for this GPU"):
        ptx_of(container(*entries), 60)


@pytest.mark.parametrize(("name", "flag"), [("lz4.block", 0x2000), ("zstandard", 0x8000)])
def test_compressed(name, flag):
    library = pytest.importorskip(name)
    text = TEXT % 80
    options = {"store_size": False} if name == "lz4.block" else {}
    image = container((80, 0x11 | flag, len(text), library.compress(text, **options)))
    assert ptx_of(image, 80) == text.decode()


def test_no_library_for_the_compression(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ImageError, match="compressed PTX, and no zstandard"):
        ptx_of(container((80, 0x8011, 9, b"123")), 80)


def test_broken_compression():
    pytest.importorskip("zstandard")
    with pytest.raises(ImageError, match="compressed PTX that cannot be read"):
        ptx_of(container((80, 0x8011, 9, b"123")), 80)


@pytest.mark.parametrize("image", [b"", b"\x7fELF" + bytes(60), b"something else"])
def test_no_ptx(image):
    with pytest.raises(ImageError, match="without PTX"):
        ptx_of(image, 80)


@pytest.mark.skipif(shutil.which("fatbinary") is None, reason="needs fatbinary of a CUDA toolkit")
@pytest.mark.parametrize("mode", ["none", "speed", "size"])
def test_containers_of_nvidia(tmp_path, mode):
    # Not in the wheels: only a toolkit writes these.
    source, made = tmp_path / "k.ptx", tmp_path / "k.fatbin"
    source.write_bytes(
        TEXT % 80 + b"".join(b".visible .entry k%d() { ret; }\n" % n for n in range(50))
    )
    kind = "lz4.block" if mode == "speed" else "zstandard"
    if mode != "none":
        pytest.importorskip(kind)
    command = [
        "fatbinary",
        "-64",
        f"--compress-mode={mode}",
        f"--image3=kind=ptx,sm=80,file={source}",
    ]
    subprocess.run([*command, f"--create={made}"], check=True)
    assert ptx_of(made.read_bytes(), 90).split() == source.read_text().split()
