"""Random requests, from the API's description and beyond it, do not stop the service."""

from __future__ import annotations

import json
import random
import select
import socket
import string
import threading

import psutil
import pytest

from dovetail.live.client import Client
from dovetail.live.http.application import application
from tests.api.live.services import ME, TOKENS, job, served

MOST_MIB = 1024
AT_ONCE = 4

NASTY_TEXTS = (
    "",
    "\ud800",
    "a\udfff",
    "\0",
    "\x1b[2J\n",
    "\u202eabc",
    "/",
    "../../etc/passwd",
    "(a+)+$",
    "(a{99999999999999999999})",
    "(" * 900,
    "é" * 300,
    "x" * 70_000,
)
NASTY_NUMBERS = (0, -1, 1, 2, 10**18, -(10**30), 10**4000, 1e308, 5e-324, 0.1, -0.0)
NASTY_LITERALS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 2000, "{", "]", "")
NASTY_HEADERS = (
    b"",
    b"X: " + b"a" * 5000,
    b"Content-Length: -1",
    b"Content-Length: 99999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Expect: 100-continue",
    b"Upgrade: h2c",
    b"Connection: close",
    b"Idempotency-Key: \xff\xfe",
    b"Idempotency-Key: " + b"k" * 300,
    b"Idempotency-Key: k",
    b"Authorization: Bearer \xc3\x28",
    b"Host: " + b"h" * 2000,
    b"X-\x00: y",
)


class Fuzz:
    """Requests that follow the description, more or less."""

    def __init__(self, described, seed):
        self.random = random.Random(seed)
        self.described = described
        self.asked = [
            (method, path, operation)
            for path, methods in self.described["paths"].items()
            for method, operation in methods.items()
        ]

    def request(self):
        """Return the bytes of a request, and of how its body is to be sent."""
        method, path, operation = self.random.choice(self.asked)
        if self.random.random() < 0.05:
            method = self.random.choice(("put", "options", "get\0", "x" * 100, "trace"))
        query = []
        for parameter in operation.get("parameters", ()):
            text = self.shown(self.value(parameter["schema"]))
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", self.place(text))
            elif parameter["in"] == "query" and self.random.random() < 0.4:
                query.append(f"{parameter['name']}={text}")
        body = self.body(operation) if "requestBody" in operation else b""
        target = path + ("?" + "&".join(query) if query else "")
        head = f"{method.upper()} {target} HTTP/1.1\r\n".encode("utf-8", "surrogatepass")
        lines = [b"Host: d", b"Content-Type: application/json", b"Connection: close"]
        if body or self.random.random() < 0.5:
            lines.append(b"Content-Length: %d" % len(body))
        if self.random.random() < 0.2:
            lines.append(self.random.choice(NASTY_HEADERS))
        return head + b"".join(line + b"\r\n" for line in lines if line) + b"\r\n" + body

    def place(self, text):
        return self.random.choice(("j1", "j2", "j999999", text or "x"))

    def shown(self, value):
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        return "".join(
            c if c in string.printable and c not in " \r\n\t#?&" else "%ff" for c in text
        )[:3000]

    def body(self, operation):
        (content,) = operation["requestBody"]["content"].values()
        text = json.dumps(self.value(content["schema"]))
        change = self.random.random()
        if change < 0.1:
            place = self.random.randrange(len(text) + 1)
            text = text[:place] + self.random.choice(NASTY_LITERALS) + text[place:]
        elif change < 0.12:
            text = "{}," * self.random.choice((10, 20_000))
            text = '{"jobs": [' + text + "{}]}"
        elif change < 0.14:
            text = '{"jobs": [{' + ",".join(f'"{k}": 1' for k in range(20_000)) + "}]}"
        return text.encode()

    def value(self, schema, depth=0):
        """Return a value of a schema, now and then one that is not."""
        while "$ref" in schema:
            schema = self.described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if self.random.random() < 0.03 or depth > 8:
            return self.random.choice((None, True, [], {}, [[]], *NASTY_TEXTS, *NASTY_NUMBERS[:5]))
        if "anyOf" in schema:
            return self.value(self.random.choice(schema["anyOf"]), depth)
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        made = getattr(self, f"_{schema.get('type', 'null')}")
        return made(schema, depth)

    def _null(self, schema, depth):
        return None

    def _boolean(self, schema, depth):
        return self.random.random() < 0.5

    def _number(self, schema, depth):
        least = schema.get("minimum", 0)
        usual = (least, least + 1.0, least + self.random.random() * 100)
        return self.random.choice(usual if self.random.random() < 0.9 else NASTY_NUMBERS)

    def _integer(self, schema, depth):
        least = schema.get("minimum", 0)
        usual = (least, least, least + 1, least + 2)
        return self.random.choice(usual if self.random.random() < 0.9 else NASTY_NUMBERS)

    def _string(self, schema, depth):
        if self.random.random() < 0.95:
            return self.random.choice(("train", "work_s=0.05", "/", "/tmp", "resnet", "n0", "a b"))
        return self.random.choice(NASTY_TEXTS)

    def _array(self, schema, depth):
        count = max(schema.get("minItems", 0), self.random.choice((0, 1, 1, 2, 3)))
        return [self.value(schema["items"], depth + 1) for _ in range(count)]

    def _object(self, schema, depth):
        if "properties" not in schema:
            items = schema.get("additionalProperties", {"type": "string"})
            keys = self.random.choices(("A", "PATH", *NASTY_TEXTS[:6]), k=3)
            return {key: self.value(items, depth + 1) for key in keys}
        required = schema.get("required", ())
        made = {
            name: self.value(each, depth + 1)
            for name, each in schema["properties"].items()
            if name in required or self.random.random() < 0.2
        }
        for rule in ("workers_per_node", "workers_together"):
            # Most of them divide no number of workers: few submissions would be accepted.
            if rule in made and self.random.random() < 0.9:
                del made[rule]
        if "cwd" in made and self.random.random() < 0.8:
            made["cwd"] = "/"
        if self.random.random() < 0.05:
            made[self.random.choice(("owner", "\ud800", "x" * 300))] = {"uid": 0}
        return made


def status_of(connect, request, seconds):
    """Return the status that is answered; None where the connection is only closed."""
    answer = b""
    with connect() as raw:
        raw.settimeout(seconds)
        try:
            raw.sendall(request)
            while chunk := received(raw):
                answer = answer or chunk
        except (BrokenPipeError, ConnectionResetError):
            return None
    return int(answer.split(b" ", 2)[1]) if answer else None


def received(raw):
    """Return what comes next; after a while hang up, as a client that waits or follows does."""
    if not select.select([raw], [], [], 3)[0]:
        raw.shutdown(socket.SHUT_WR)
    return raw.recv(65536)


def fuzzed(home, count, seed):
    """Send so many requests, and return how often each status was answered."""
    found: dict[int | None, int] = {}
    broken: list[bytes] = []
    lock = threading.Lock()
    tokens = home / "tokens"
    tokens.write_text(f"{ME} {TOKENS[ME]}\n")
    tokens.chmod(0o600)

    # FastAPI describes itself under catch_warnings, which threads must not do at once.
    described = application(None).openapi()

    def ask(each):
        fuzz = Fuzz(described, f"{seed} {each}")
        for _ in range(count // AT_ONCE):
            request = fuzz.request()
            status = status_of(connect, request, 300)
            with lock:
                found[status] = found.get(status, 0) + 1
                if status is not None and status >= 500:
                    broken.append(request[:2000])

    def connect():
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(home / "api.sock"))
        return raw

    options = ("--pool", "simulated:library:lab", "--dry-run", "--user-jobs", "1000000")
    with served(home, *options) as (process, greeting):
        assert greeting.startswith("serving")
        draining = threading.Thread(target=process.stderr.read, daemon=True)
        draining.start()
        threads = [threading.Thread(target=ask, args=(each,)) for each in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Client(str(home / "api.sock")) as client:
            (name,) = client.submit([job()])
            assert client.job(name).id == name
        grown_mib = psutil.Process(process.pid).memory_info().rss / 2**20
        assert process.poll() is None
    assert broken == []
    assert grown_mib < MOST_MIB
    return found


def test_whatever_is_asked_the_service_serves(short_path):
    found = fuzzed(short_path, 400, "short")
    assert {201, 200, 404, 422} <= found.keys()


@pytest.mark.long
def test_whatever_is_asked_often_the_service_serves(short_path):
    found = fuzzed(short_path, 20_000, "long")
    print(found)
    assert {201, 200, 400, 404, 405, 413, 422} & found.keys() >= {201, 200, 400, 404, 405, 422}
