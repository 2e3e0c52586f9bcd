"""Recall and false findings of the credentials rule on real repositories into which credentials are planted.

    python benchmarks/credentials.py REPOSITORY... [--each 20] [--seed 0] [--list FILE] [--missed FILE] [--output FILE]

For each repository, the text files that git tracks are copied to a temporary folder, and ``--each`` credentials of
every kind below are inserted as lines of their own into files drawn at random, tests included. The folder is scanned
with the credentials rule and its defaults, one example per file. A planted credential is found if a finding of its file
covers at least half of its characters. All other findings count as false: these are public repositories, so whatever
credentials they show are examples or expired.

``--list`` writes the false findings with their texts, ``--missed`` the planted lines that were not found. The rule was
tuned on the first repository of the recorded result only; the others are the held-out ones.
"""

import argparse
import base64
import json
import os
import platform
import random
import shutil
import string
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ALPHANUMERIC = string.ascii_letters + string.digits
WORDS = ("amber", "otter", "winter", "copper", "falcon", "meadow", "garnet", "harbor", "cobalt", "thunder", "velvet")
TEST_FOLDERS = {"test", "tests", "testing", "t", "unit", "integration", "fixtures"}


@dataclass(frozen=True, kw_only=True)
class Planted:
    kind: str
    file: str
    begin: int
    end: int
    text: str


def _drawn(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choices(alphabet, k=length))


def _mixed(rng: random.Random, length: int, symbols: str = "") -> str:
    """A random password with a lower-case letter, an upper-case letter and a digit, as password managers make them."""
    parts = [_drawn(rng, kind, 1) for kind in (string.ascii_lowercase, string.ascii_uppercase, string.digits)]
    parts += [_drawn(rng, ALPHANUMERIC + symbols, 1) for _ in range(length - 3)]
    rng.shuffle(parts)
    return "".join(parts)


def _base64(rng: random.Random, size: int) -> str:
    return base64.b64encode(rng.randbytes(size)).decode()


def _jwt(rng: random.Random) -> str:
    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    claims = json.dumps({"sub": str(rng.randrange(10**9)), "iat": 1_700_000_000}).encode()
    return ".".join([part(b'{"alg":"HS256","typ":"JWT"}'), part(claims), part(rng.randbytes(32))])


def _private_key(rng: random.Random) -> str:
    body = _base64(rng, 608)
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----"])


def _chosen_by_a_person(rng: random.Random) -> str:
    first, second = rng.sample(WORDS, 2)
    return f"{first.title()}{second.title()}{rng.randrange(10, 100)}{rng.choice('!?#')}"


KINDS: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "AWS access key": (
        'AWS_ACCESS_KEY_ID = "{}"',
        lambda rng: "AKIA" + _drawn(rng, string.ascii_uppercase + "234567", 16),
    ),
    "AWS secret key": ('aws_secret_access_key = "{}"', lambda rng: _base64(rng, 30)),
    "GitHub token": ("  token: ghp_{}", lambda rng: _mixed(rng, 36)),
    "Slack token": ('SLACK = "{}"', lambda rng: f"xoxb-{_drawn(rng, string.digits, 12)}-{_mixed(rng, 24)}"),
    "Stripe key": ("stripe.api_key = '{}'", lambda rng: "sk_live_" + _mixed(rng, 24)),
    "private key": ("{}", _private_key),
    "JSON web token": ('curl -H "Authorization: Bearer {}" https://api.acme.io/v1', _jwt),
    "database URL": ("DATABASE_URL=postgresql://orders:{}@db3.acme.io:5432/orders", lambda rng: _mixed(rng, 14)),
    "password, random": ('db_password = "{}"', lambda rng: _mixed(rng, 12, "!#%+-_")),
    "password, chosen by a person": ('    password="{}",', _chosen_by_a_person),
    "password, env file": ("SMTP_PASSWORD={}", lambda rng: _mixed(rng, 12)),
    "API key, Python": ('API_KEY = "{}"', lambda rng: _mixed(rng, 32)),
    "API key, YAML": ("  api_key: {}", lambda rng: _mixed(rng, 32)),
    "API key, env file": ("export ACME_API_KEY={}", lambda rng: _mixed(rng, 40)),
    "API key, JSON": ('  "apiKey": "{}",', lambda rng: _mixed(rng, 32)),
    "hex, 256 bits": ('SIGNING_KEY = "{}"', lambda rng: rng.randbytes(32).hex()),
    "hex without a name": ('    "{}",', lambda rng: rng.randbytes(32).hex()),
    "base64 without a name": ('    "{}",', lambda rng: _base64(rng, 32)),
    "base64, 256 bits": ('"session_key": "{}"', lambda rng: _base64(rng, 32)),
}


def copied(repository: Path, folder: Path) -> list[str]:
    """Copies the tracked files that are UTF-8 text, and returns their paths."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, check=True, capture_output=True, text=True)
    files: list[str] = []
    for name in filter(None, listed.stdout.split("\0")):
        source = repository / name
        if source.is_symlink() or not source.is_file():
            continue
        content = source.read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError:
            continue
        if content and b"\0" not in content:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            files.append(name)
    return files


def planted(folder: Path, files: list[str], *, each: int, rng: random.Random) -> list[Planted]:
    """Inserts the credentials, at most one per file, and returns where they are."""
    chosen = rng.sample(files, min(len(files), each * len(KINDS)))
    kinds = list(KINDS) * each
    placed: list[Planted] = []
    for name, kind in zip(chosen, kinds, strict=False):
        line, draw = KINDS[kind]
        before, _, after = line.partition("{}")
        lines = (folder / name).read_bytes().decode().split("\n")
        at = rng.randrange(len(lines))
        credential = draw(rng)
        begin = sum(len(each) + 1 for each in lines[:at]) + len(before)
        lines.insert(at, before + credential + after)
        (folder / name).write_bytes("\n".join(lines).encode())
        placed.append(Planted(kind=kind, file=name, begin=begin, end=begin + len(credential), text=credential))
    return placed


def measured(repository: Path, *, each: int, seed: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """The figures of one repository, its false findings and the planted credentials that were missed, as text."""
    from hush.scan import scan

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / repository.name
        files = copied(repository, folder)
        placed = planted(folder, files, each=each, rng=random.Random(seed))
        rules = {
            "version": 1,
            "defaults": {"prior": 1e-10, "ceiling": 1e-3},
            "chunks": {"lines": 10**6},  # one example per file
            "rules": [{"name": "credentials", "find": "credentials"}],
        }
        for arguments in (("init", "--quiet"), ("add", "--all", "--force")):  # tracked, also if their names are hidden
            _git(folder, *arguments)
        begin = time.perf_counter()
        found = scan(folder, rules)
        seconds = time.perf_counter() - begin
    assert found.owner is not None
    paths = [name.rpartition("#")[0] for batch in found.owner.examples("id") for name in batch.column("id").to_pylist()]
    truth = {one.file: one for one in placed}
    hit: set[str] = set()
    true_secrets: set[int] = set()
    reasons: dict[int, set[str]] = defaultdict(set)
    where: dict[int, set[str]] = defaultdict(set)
    for reason in found.why():
        path = paths[reason.example]
        reasons[reason.secret].add(reason.reason)
        where[reason.secret].add(path)
        one = truth.get(path)
        if one is not None and 2 * (min(one.end, reason.end) - max(one.begin, reason.begin)) >= one.end - one.begin:
            hit.add(path)
            true_secrets.add(reason.secret)
    kinds, in_tests = Counter(one.kind for one in placed), Counter(_is_test(one.file) for one in placed)
    found_kinds = Counter(one.kind for one in placed if one.file in hit)
    found_in_tests = Counter(_is_test(one.file) for one in placed if one.file in hit)
    false = sorted(set(where) - true_secrets, key=lambda secret: -len(where[secret]))
    marked = set().union(*(where[secret] for secret in false))
    texts = found.secrets.texts or ()
    lines = [
        f"{len(where[each])}\t{sorted(reasons[each])}\t{texts[each][:120]!r}\t{min(where[each])}\n" for each in false
    ]
    result = {
        "repository": repository.name,
        "commit": _git(repository, "rev-parse", "HEAD"),
        "files": len(files),
        "planted": len(placed),
        "recall": len(hit) / len(placed),
        "recall_outside_tests": found_in_tests[False] / max(in_tests[False], 1),
        "recall_in_tests": found_in_tests[True] / max(in_tests[True], 1),
        "recall_by_kind": {kind: f"{found_kinds[kind]}/{kinds[kind]}" for kind in KINDS},
        "false_findings": len(false),
        "false_findings_per_1000_files": 1000 * len(false) / len(files),
        "files_with_false_findings": len(marked),
        "files_of_widest_false_finding": len(where[false[0]]) if false else 0,
        "seconds": seconds,
    }
    return result, lines, [f"{one.kind}\t{one.file}\t{one.text[:80]}\n" for one in placed if one.file not in hit]


def _is_test(path: str) -> bool:
    return bool(TEST_FOLDERS & set(path.lower().split("/")[:-1])) or Path(path).name.startswith("test_")


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", type=Path)
    parser.add_argument("--missed", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if shutil.which("git") is None:
        parser.error("git is missing")
    results, lines, missed = [], [], []
    for repository in arguments.repositories:
        result, false, not_found = measured(repository.resolve(), each=arguments.each, seed=arguments.seed)
        print(json.dumps(result, indent=2), flush=True)
        results.append(result)
        lines += false
        missed += not_found
    if arguments.list:
        arguments.list.write_text("".join(lines), encoding="utf-8")
    if arguments.missed:
        arguments.missed.write_text("".join(missed), encoding="utf-8")
    if arguments.output:
        record = {
            "what": "credentials rule: recall on planted credentials and false findings",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "versions": {name: version(name) for name in ("hush", "detect-secrets")},
            "each": arguments.each,
            "seed": arguments.seed,
            "repositories": results,
        }
        arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
