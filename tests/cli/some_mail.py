"""Some mail with secrets in it, and rules that find them."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

TOKEN = "sk-Zq81xHunter2"  # a planted secret: nothing but the owner's texts may hold it
RULES = r"""
defaults: {prior: 1e-10, ceiling: 1e-3}
rules:
  - {name: keys, find: patterns, patterns: ['sk-\w{12}'], promise: {format: {alphabet: 62, length: 12}, ceiling: 1e-6}}
  - {name: customers, find: literals, values: [Acme, Globex, Initech], promise: {prior: 0.01, ceiling: 0.2}}
  - {name: team, find: fields, column: team, public_names: true}
"""
SCAN = ("scan", "mail.jsonl", "--rules", "rules.yaml", "--output", "found", "--id-column", "id")


def write_mail() -> None:
    """mail.jsonl and rules.yaml, in the folder where the command runs."""
    rows: list[dict[str, Any]] = [
        {"id": "m-0", "team": "sales", "text": f"Acme pays with {TOKEN} from May on."},
        {"id": "m-1", "team": "sales", "text": "Lunch with Globex?"},
        {"id": "m-2", "team": None, "text": f"{TOKEN} and again {TOKEN}, also for Acme"},
    ]
    rows += [{"id": f"m-{n}", "team": None, "text": f"machine {n} is fine"} for n in range(3, 40)]
    Path("mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rules.yaml").write_text(RULES)


def content_below(folder: Path) -> dict[str, str]:
    """What the files of a folder say; tables are compressed, so their cells are read."""

    def content(path: Path) -> str:
        if path.suffix != ".parquet":
            return path.read_text()
        table = pq.read_table(path)
        return f"{table.to_pydict()} {table.schema.metadata}"

    return {path.relative_to(folder).as_posix(): content(path) for path in folder.rglob("*") if path.is_file()}
