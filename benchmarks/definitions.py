"""How much of a repository is secret if a rule for code hides files, definitions or lines.

    python benchmarks/definitions.py PATH --secret 'sub/package/**' [--depth 1] [--show 20] [--output FILE]

PATH is a folder of code, with or without git. For the secret's own files (everything hidden; and with imports,
signatures and docstrings public) and for the files that import them or get its names through others, the result has
the number of files and characters and the share that is hidden. --show prints hidden definitions of importers, drawn at
random with a fixed seed, with the names of the secret that their file imports, to look at by hand.
"""

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hush.scan.code import CodeSecret, CodeSettings, Imports, Repository
from hush.scan.code.imports import import_graph
from hush.scan.code.settings import Hides, PublicPart
from hush.scan.code.spread import Containment, Evidence, containment

ALL_PUBLIC: tuple[PublicPart, ...] = ("imports", "signatures", "docstrings")


def hidden_characters(found: Containment, texts: dict[str, str], paths: Iterable[str]) -> int:
    """Characters of these files that are hidden."""
    total = 0
    for path in paths:
        if path in found.reasons:
            spans = found.spans.get(path, {}).get(0)
            total += len(texts[path]) if spans is None else sum(end - begin for begin, end in spans)
    return total


def show(found: Containment, texts: dict[str, str], paths: list[str], number: int) -> None:
    """Prints hidden spans of importers, with the lines of their file's imports that name anything."""
    spans = [(path, span) for path in paths for span in found.spans.get(path, {}).get(0, ())]
    for path, (begin, end) in random.Random(0).sample(spans, min(number, len(spans))):
        print(f"\n=== {path}, characters {begin} to {end}\n{texts[path][begin:end][:1500]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--secret", action="append", required=True, help="globs of the secret's files, as in .gitignore"
    )
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "definitions.json")
    options = parser.parse_args()
    repository = Repository.open(options.path)
    texts = {path: repository.read(path) for path in repository.files}
    secret = CodeSecret(name="secret", paths=tuple(options.secret))
    graph = import_graph(repository)
    choices: list[tuple[str, Hides, tuple[PublicPart, ...]]] = [
        ("file", "file", ()),
        ("definitions", "definitions", ()),
        ("definitions, with imports, signatures and docstrings of own files public", "definitions", ALL_PUBLIC),
        ("lines", "lines", ()),
    ]
    found: dict[str, Containment] = {}
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"benchmarks/definitions.py {options.path.name} --depth {options.depth} "
        + " ".join(f"--secret '{each}'" for each in options.secret),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "versions": {"python": platform.python_version(), "hush": version("hush")},
        "files": len(repository.files),
        "characters": sum(map(len, texts.values())),
        "choices": {},
    }
    seconds: dict[str, float] = {}
    for name, hides, public in choices:
        settings = CodeSettings(secrets=(secret,), imports=Imports(depth=options.depth), hides=hides, public=public)
        begin = time.perf_counter()
        found[name] = containment(repository, settings, graph)
        seconds[name] = time.perf_counter() - begin
    own = set(Evidence(repository, CodeSettings(secrets=(secret,))).own_files(secret)) & set(texts)
    importers = sorted({path for each in found.values() for path in each.reasons if path in texts} - own)
    direct = sorted(path for path in found["file"].reasons if path in texts and path not in own)
    groups = {"own files": sorted(own), "importing files": direct, "all files with secret text": importers}
    for name, _, _ in choices:
        row: dict[str, Any] = {"seconds": round(seconds[name], 2)}
        for group, paths in groups.items():
            total, hidden = sum(len(texts[path]) for path in paths), hidden_characters(found[name], texts, paths)
            row[group] = {
                "files": len(paths),
                "files with hidden text": sum(path in found[name].reasons for path in paths),
                "characters": total,
                "share hidden": round(hidden / total, 4) if total else None,
            }
        row["share of the repository hidden"] = round(
            hidden_characters(found[name], texts, texts) / result["characters"], 4
        )
        result["choices"][name] = row
        print(name, json.dumps(row, indent=1))
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    show(found["definitions"], texts, importers, options.show)


if __name__ == "__main__":
    main()
