"""Recall and false findings of the finders of credentials on real repositories into which credentials are planted.

    python benchmarks/credentials.py REPOSITORY... [--gitleaks RULES.toml] [--each 16] [--seed 0] [--list FILE]
        [--missed FILE] [--output FILE]

For each repository, the text files that git tracks are copied to a temporary folder, and ``--each`` credentials of
every kind below are inserted as lines of their own into files drawn at random, tests included. The folder is scanned
with the credentials rule and its defaults and, with ``--gitleaks``, with a rule of that file, one example per file. A
planted credential is found if a finding of its file covers at least half of its characters. All other findings count as
false: these are public repositories, so whatever credentials they show are examples or expired. The figures are those
of each rule alone and of both together.

``--list`` writes the false findings with their texts, ``--missed`` the planted lines that were not found. The
credentials rule was tuned on the first repository of the recorded result, on the first 19 kinds and on Django's keys;
the others are held out. Every credential is made up from the format that its vendor documents.
"""

import argparse
import base64
import hashlib
import json
import os
import platform
import random
import shutil
import string
import subprocess
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ALPHANUMERIC = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
BASE32 = string.ascii_uppercase + "234567"
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


def _private_key(rng: random.Random, kind: str = "RSA ", end: str = "\n") -> str:
    body = _base64(rng, 608)
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return end.join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"])


def _google_key(rng: random.Random) -> str:
    return "AIza" + _mixed(rng, 35, "-_")


def _discord_token(rng: random.Random) -> str:
    user = base64.b64encode(str(rng.randrange(10**17, 10**18)).encode()).decode()
    return f"{user}.{_mixed(rng, 6, '-_')}.{_mixed(rng, 38, '-_')}"


def _chosen_by_a_person(rng: random.Random) -> str:
    first, second = rng.sample(WORDS, 2)
    return f"{first.title()}{second.title()}{rng.randrange(10, 100)}{rng.choice('!?#')}"


KINDS: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "AWS access key": (
        'AWS_ACCESS_KEY_ID = "{}"',
        lambda rng: "AKIA" + _drawn(rng, BASE32, 16),
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
    # Held out: the credentials rule was not tuned on those that follow, except for Django's keys.
    "AWS temporary key": ("aws_access_key_id={}", lambda rng: "ASIA" + _drawn(rng, BASE32, 16)),
    "GitHub token, fine-grained": (
        "GH_TOKEN={}",
        lambda rng: f"github_pat_{_mixed(rng, 22)}_{_mixed(rng, 59)}",
    ),
    "GitLab token": ('gitlab.Gitlab(url, private_token="{}")', lambda rng: "glpat-" + _mixed(rng, 20, "-_")),
    "npm token": ("//registry.npmjs.org/:_authToken={}", lambda rng: "npm_" + _mixed(rng, 36)),
    "PyPI token": ("password = {}", lambda rng: "pypi-AgEIcHlwaS5vcmc" + _mixed(rng, 150, "-_")),
    "Google API key": ('<script src="https://maps.googleapis.com/maps/api/js?key={}"></script>', _google_key),
    "Google service account": ('  "private_key": "{}",', lambda rng: _private_key(rng, "", "\\n")),
    "OpenSSH private key": ("{}", lambda rng: _private_key(rng, "OPENSSH ")),
    "age key": ("{}", lambda rng: "AGE-SECRET-KEY-1" + _drawn(rng, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)),
    "SendGrid key": ("SENDGRID_API_KEY: {}", lambda rng: f"SG.{_mixed(rng, 22, '-_')}.{_mixed(rng, 43, '-_')}"),
    "Twilio key": ('client = Client("{}", secret)', lambda rng: "SK" + rng.randbytes(16).hex()),
    "Mailchimp key": ("MAILCHIMP_API_KEY='{}'", lambda rng: f"{rng.randbytes(16).hex()}-us{rng.randrange(1, 22)}"),
    "Slack webhook": (
        "curl -X POST -d @message.json https://hooks.slack.com/services/{}",
        lambda rng: f"T{_drawn(rng, UPPER, 10)}/B{_drawn(rng, UPPER, 10)}/{_mixed(rng, 24)}",
    ),
    "Discord bot token": ('bot.run("{}")', _discord_token),
    "Telegram bot token": (
        "TELEGRAM_BOT_TOKEN={}",
        lambda rng: f"{rng.randrange(10**8, 10**10)}:AA{_mixed(rng, 33, '-_')}",
    ),
    "OpenAI key": (
        'client = OpenAI(api_key="{}")',
        lambda rng: f"sk-proj-{_mixed(rng, 74, '-_')}T3BlbkFJ{_mixed(rng, 74, '-_')}",
    ),
    "Anthropic key": ("export ANTHROPIC_API_KEY={}", lambda rng: f"sk-ant-api03-{_mixed(rng, 93, '-_')}AA"),
    "Hugging Face token": ('login(token="{}")', lambda rng: "hf_" + _drawn(rng, string.ascii_letters, 34)),
    "DigitalOcean token": ('token = "{}"', lambda rng: "dop_v1_" + rng.randbytes(32).hex()),
    "Shopify token": ("X-Shopify-Access-Token: {}", lambda rng: "shpat_" + rng.randbytes(16).hex()),
    "Databricks token": ("DATABRICKS_TOKEN={}", lambda rng: "dapi" + rng.randbytes(16).hex()),
    "Grafana token": ("Authorization: Bearer {}", lambda rng: f"glsa_{_mixed(rng, 32)}_{rng.randbytes(4).hex()}"),
    "Vault token": ('VAULT_TOKEN="{}"', lambda rng: "hvs." + _mixed(rng, 95, "-_")),
    "Azure storage key": (
        "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={};EndpointSuffix=core.windows.net",
        lambda rng: _base64(rng, 64),
    ),
    "Azure client secret": (
        'ClientSecretCredential(tenant, client, "{}")',
        lambda rng: f"{_mixed(rng, 3)}8Q~{_mixed(rng, 34, '-_')}",
    ),
    "Heroku key": ("HEROKU_API_KEY={}", lambda rng: str(uuid.UUID(bytes=rng.randbytes(16), version=4))),
    "Django secret key": (
        "SECRET_KEY = '{}'",
        lambda rng: _drawn(rng, string.ascii_lowercase + string.digits + "!@#$%^&*(-_=+)", 50),
    ),
    "curl -u": ("curl -u orders:{} https://api.acme.io/v1/orders", lambda rng: _mixed(rng, 14)),
    "Kubernetes secret": (
        "  db-password: {}",
        lambda rng: base64.b64encode(_mixed(rng, 16, "!#%+-_").encode()).decode(),
    ),
}
HELD_OUT_KINDS = tuple(kind for kind in tuple(KINDS)[19:] if kind != "Django secret key")


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


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What one rule, or both together, found: files with a planted credential that was found, and false findings."""

    hit: frozenset[str]
    files_of_false_text: dict[str, frozenset[str]]


def measured(
    repository: Path, *, gitleaks: Path | None, each: int, seed: int
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The figures of one repository, its false findings and the planted credentials that were missed, as text."""
    from hush.scan import scan

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / repository.name
        files = copied(repository, folder)
        placed = planted(folder, files, each=each, rng=random.Random(seed))
        listed: list[dict[str, str]] = [{"name": "credentials", "find": "credentials"}]
        if gitleaks is not None:
            listed.append({"name": "gitleaks", "find": "gitleaks", "file": str(gitleaks)})
        rules = {
            "version": 1,
            "defaults": {"prior": 1e-10, "ceiling": 1e-3},
            "chunks": {"lines": 10**6},  # one example per file
            "rules": listed,
        }
        for arguments in (("init", "--quiet"), ("add", "--all", "--force")):  # tracked, also if their names are hidden
            _git(folder, *arguments)
        begin = time.perf_counter()
        found = scan(folder, rules)
        seconds = time.perf_counter() - begin
    of_finder = {rule["name"]: findings(found, placed, {rule["name"]}) for rule in listed}
    if gitleaks is not None:
        of_finder["both"] = findings(found, placed, set(of_finder))
    result = {
        "repository": repository.name,
        "commit": _git(repository, "rev-parse", "HEAD"),
        "files": len(files),
        "planted": len(placed),
        "seconds": seconds,
        "finders": {name: figures(each, placed, files) for name, each in of_finder.items()},
    }
    lines = [
        f"{name}\t{len(where)}\t{text[:120]!r}\t{min(where)}\n"
        for name, each in of_finder.items()
        for text, where in each.files_of_false_text.items()
    ]
    missed = [
        f"{name}\t{one.kind}\t{one.file}\t{one.text[:80]}\n"
        for name, each in of_finder.items()
        for one in placed
        if one.file not in each.hit
    ]
    return result, lines, missed


def findings(found: Any, placed: list[Planted], rules: set[str]) -> Findings:
    """The findings of these rules in a scan."""
    paths = [name.rpartition("#")[0] for batch in found.owner.examples("id") for name in batch.column("id").to_pylist()]
    truth = {one.file: one for one in placed}
    texts = found.secrets.texts or ()
    hit: set[str] = set()
    true_texts: set[str] = set()
    where: dict[str, set[str]] = defaultdict(set)
    for reason in found.why():
        if reason.secret_id.rpartition("-")[0] not in rules:
            continue
        path, text = paths[reason.example], texts[reason.secret]
        where[text].add(path)
        one = truth.get(path)
        if one is not None and 2 * (min(one.end, reason.end) - max(one.begin, reason.begin)) >= one.end - one.begin:
            hit.add(path)
            true_texts.add(text)
    false = sorted(set(where) - true_texts, key=lambda text: (-len(where[text]), text))
    return Findings(hit=frozenset(hit), files_of_false_text={text: frozenset(where[text]) for text in false})


def figures(found: Findings, placed: list[Planted], files: list[str]) -> dict[str, Any]:
    """Recall by kind and place, and the false findings."""

    def recall(chosen: Callable[[Planted], bool]) -> float:
        of = [one.file in found.hit for one in placed if chosen(one)]
        return sum(of) / max(len(of), 1)

    kinds = Counter(one.kind for one in placed)
    found_kinds = Counter(one.kind for one in placed if one.file in found.hit)
    false = found.files_of_false_text
    return {
        "recall": recall(lambda _: True),
        "recall_of_held_out_kinds": recall(lambda one: one.kind in HELD_OUT_KINDS),
        "recall_outside_tests": recall(lambda one: not _is_test(one.file)),
        "recall_in_tests": recall(lambda one: _is_test(one.file)),
        "recall_by_kind": {kind: f"{found_kinds[kind]}/{kinds[kind]}" for kind in KINDS},
        "false_findings": len(false),
        "false_findings_per_1000_files": 1000 * len(false) / len(files),
        "files_with_false_findings": len(frozenset[str]().union(*false.values())),
        "files_of_widest_false_finding": max(map(len, false.values()), default=0),
    }


def _is_test(path: str) -> bool:
    return bool(TEST_FOLDERS & set(path.lower().split("/")[:-1])) or Path(path).name.startswith("test_")


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--gitleaks", type=Path, help="rules of gitleaks, compared with the credentials rule")
    parser.add_argument("--each", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", type=Path)
    parser.add_argument("--missed", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if shutil.which("git") is None:
        parser.error("git is missing")
    results, lines, missed = [], [], []
    for repository in arguments.repositories:
        result, false, not_found = measured(
            repository.resolve(), gitleaks=arguments.gitleaks, each=arguments.each, seed=arguments.seed
        )
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
            "what": "finders of credentials: recall on planted credentials and false findings",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "versions": {name: version(name) for name in ("hush", "detect-secrets", "google-re2")},
            "gitleaks_rules_sha256": arguments.gitleaks and hashlib.sha256(arguments.gitleaks.read_bytes()).hexdigest(),
            "each": arguments.each,
            "seed": arguments.seed,
            "repositories": results,
        }
        arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
