"""How much of a repository is secret if a rule for code hides files, definitions or lines.

    python benchmarks/definitions.py PATH --secret 'sub/package/**' [--depth 1] [--show 20] [--output FILE]

PATH is a folder of code, with or without git. For the secret's own files (everything hidden; and with imports,
signatures and docstrings public) and for the files that import them or get its names through others, the result has
the number of files and characters and the share that is hidden. For importers in Python also how many definitions are
hidden, and how many names that Python's parser sees bound by an import of the secret are not. --show prints so many
hidden and so many public definitions, drawn at random with a fixed seed, and those names, to look at by hand.
"""

import argparse
import ast
import itertools
import json
import os
import platform
import random
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from hush.scan.code import CodeSecret, CodeSettings, Imports, Repository
from hush.scan.code.imports import import_graph
from hush.scan.code.settings import Hides, PublicPart
from hush.scan.code.spread import Containment, Evidence, containment

HIDDEN = 0.9  # share of its characters from which a definition counts as hidden
SEED = 22
ALL_PUBLIC: tuple[PublicPart, ...] = ("imports", "signatures", "docstrings")


def hidden_characters(found: Containment, texts: dict[str, str], paths: Iterable[str]) -> int:
    """Characters of these files that are hidden."""
    total = 0
    for path in paths:
        if path in found.reasons:
            spans = found.spans.get(path, {}).get(0)
            total += len(texts[path]) if spans is None else sum(end - begin for begin, end in spans)
    return total


class Definition(NamedTuple):
    """A function or class of a Python file, its lines, and the hidden characters as a share of its own.

    The share may be above 1 by the white space around it.
    """

    path: str
    name: str
    first_line: int
    last_line: int
    hidden: float


class Importer:
    """A Python file that imports the secret, read by Python's parser alone: a second route to what it uses."""

    def __init__(self, path: str, text: str, spans: Sequence[tuple[int, int]]) -> None:
        self.path, self.tree, self.spans = path, ast.parse(text), spans
        self.lines = text.splitlines(keepends=True)
        self.begins = [0, *itertools.accumulate(map(len, self.lines))]

    def definitions(self) -> list[Definition]:
        """All functions and classes outside others; of a class that is not hidden, what is in it, too."""
        found: list[Definition] = []
        waiting = [("", node) for node in self.tree.body]
        while waiting:
            within, node = waiting.pop()
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            first, last = node.lineno, node.end_lineno or node.lineno
            begin, end = self.begins[first - 1], self.begins[last]
            covered = sum(max(0, min(end, stop) - max(begin, start)) for start, stop in self.spans)
            share = round(covered / len("".join(self.lines[first - 1 : last]).strip()), 2)
            found.append(Definition(self.path, within + node.name, first, last, share))
            if isinstance(node, ast.ClassDef) and share < HIDDEN:
                waiting += [(f"{within}{node.name}.", each) for each in node.body]
        return found

    def uses(self, secret_modules: frozenset[str]) -> list[tuple[int, bool]]:
        """The line of each name that an import of these modules binds in the file, and whether it is hidden."""
        names = {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in secret_modules
            for alias in node.names
        }
        found: list[tuple[int, bool]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id in names:
                line = self.lines[node.lineno - 1]
                place = self.begins[node.lineno - 1] + len(line.encode()[: node.col_offset].decode())
                found.append((node.lineno, any(begin <= place < end for begin, end in self.spans)))
        return found


def look(found: Containment, texts: dict[str, str], own: set[str], importers: list[str], number: int) -> dict[str, Any]:
    """Counts definitions and names of the importers in Python; prints what is to be looked at by hand."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in own}
    files = [
        Importer(path, texts[path], found.spans.get(path, {}).get(0, ()))
        for path in importers
        if path.endswith(".py") and (path in found.spans or path not in found.reasons)
    ]
    every = sorted(
        (each for file in files for each in file.definitions()), key=lambda each: (each.path, each.first_line)
    )
    hidden = [each for each in every if each.hidden >= HIDDEN]
    public = [each for each in every if each.hidden == 0]
    uses = [(file.path, *use) for file in files for use in file.uses(frozenset(modules))]
    rng = random.Random(SEED)
    for kind, chosen in (("hidden", hidden), ("public", public)):
        for each in rng.sample(chosen, min(number, len(chosen))):
            lines = texts[each.path].splitlines()[each.first_line - 1 : each.last_line]
            print(f"\n=== {kind}: {each.path}, {each.name}, line {each.first_line}", *lines, sep="\n")
    for path, line, is_hidden in uses if number else ():
        if not is_hidden:
            print(f"not hidden: {path}, line {line}: {texts[path].splitlines()[line - 1].strip()}")
    return {
        "definitions": len(every),
        "hidden": len(hidden),
        "public": len(public),
        "names bound by imports of the secret": len(uses),
        "of them not hidden": sum(not is_hidden for _, _, is_hidden in uses),
    }


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
    result["definitions of importing files in Python"] = look(found["definitions"], texts, own, direct, options.show)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
