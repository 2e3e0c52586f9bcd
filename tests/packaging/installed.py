"""Smoke run of an installed hush, in the environment whose Python runs this file and in the current, empty folder.

    python -I installed.py VERSION

Imports every module and runs the commands from data to report, as a user would: from site-packages, never from a source
tree. Training is left out where torch is not installed. Ends with an error at the first thing that fails, and also if
hush itself causes a warning.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

# Libraries without which some modules cannot be imported: those of extras that the smoke run does not install, and
# those of training where there is no torch.
OPTIONAL = {"ray", "presidio_analyzer", "optuna", "model_signing", "re2", "trl"}
LEARNING = {"torch", "transformers", "tokenizers", "accelerate", "peft", "datasets", "safetensors"}

RULES = """
version: 1
defaults: {prior: 1e-10, ceiling: 1e-3}
rules:
  - {name: codes, find: patterns, patterns: ['GX-[0-9]{8}'], promise: {prior: 1e-8, ceiling: 1e-3}}
  - {name: customers, find: literals, values: [Acme, Globex], promise: {prior: 0.01, ceiling: 0.2}}
  - {name: keys, find: credentials}
  - {name: copies, find: copies, similarity: 0.8}
"""
CODE_RULES = """
version: 1
defaults: {prior: 1e-10, ceiling: 1e-3}
chunks: {lines: 80}
rules:
  - {name: projects, find: code, secrets: [{name: billing, paths: ["billing/**"]}], imports: {depth: 1}}
"""
CODE = {"billing/core.py": "RATE = 3\n", "shop/cart.py": "from billing import core\n", "hello.py": "print('hello')\n"}
SMALLER = {  # lines of the config that hush init writes, and what makes its run one of seconds
    "source: data.jsonl": "source: notes.jsonl",
    "{format: {alphabet: 10, length: 4}, ceiling: 1e-2}": "{prior: 1e-8, ceiling: 1e-3}",
    "batch_size: auto": "batch_size: 2",
    "rounds: auto": "rounds: 4",
    "width: 64": "width: 16",
    "private_part: auto": "private_part: true",
    "trials: 2000": "trials: 100",
}


def main(version: str) -> None:
    """Everything, in order."""
    location, installed = Path(import_module("hush").__file__ or ""), Path(sysconfig.get_paths()["purelib"])
    check(location.is_relative_to(installed), f"hush was imported from {location}, not from {installed}")
    check(import_module("hush").__version__ == version, f"hush says it is {import_module('hush').__version__}")
    missing = import_every_module()
    check(hush("--version") == f"hush {version}\n", "hush --version says something else")
    check("Step by step" in hush("--help"), "hush --help does not list the commands")
    write_data()
    run_without_torch()
    if "torch" not in missing:
        run_with_torch()


def check(holds: bool, problem: str) -> None:
    if not holds:
        sys.exit(f"FAILED: {problem}")


def import_every_module() -> set[str]:
    """Import all of hush; a warning that it causes is an error. Returns the libraries that are not installed."""
    warnings.filterwarnings("error", module=r"hush\b")
    missing = {name for name in OPTIONAL | LEARNING if find_spec(name) is None}
    package, count = import_module("hush"), 0
    for module in walk_packages(package.__path__, "hush."):
        if module.name.endswith("__main__"):
            continue
        try:
            import_module(module.name)
        except ImportError as error:
            library = re.findall(r"\w+", f"{error.name} {error}")
            check(bool(missing.intersection(library)), f"{module.name} cannot be imported: {error}")
            continue
        count += 1
    print(f"  {count} modules imported; not installed: {', '.join(sorted(missing)) or 'nothing'}", flush=True)
    return missing


def hush(*arguments: str) -> str:
    """What the console script prints; it must succeed, and hush must cause no warning."""
    print(f"  $ hush {' '.join(arguments)}", flush=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("hush")), *arguments],
        capture_output=True,
        text=True,
        env=variables | {"PYTHONWARNINGS": "default", "HF_HUB_OFFLINE": "1"},
    )
    shown = f"\n{done.stdout}{done.stderr}"
    check(done.returncode == 0, f"exit code {done.returncode}{shown}")
    check(not re.search(r"\bhush/\S+\.py:\d+: \w*Warning", done.stderr), f"hush causes a warning{shown}")
    return done.stdout


def write_data() -> None:
    """Sixty notes, some with secrets, and a repository of three files."""
    with Path("notes.jsonl").open("w") as file:
        for number in range(60):
            text = f"Note {number}. The pump in hall {number % 7} was checked and runs well."
            text += f" Gate code: GX-{48203715 + number % 2}. Access AB-1234." if number % 15 == 0 else ""
            text += " Seen by Acme." if number % 20 == 7 else ""
            file.write(json.dumps({"text": text}) + "\n")
    for name, text in CODE.items():
        Path("code", name).parent.mkdir(parents=True, exist_ok=True)
        Path("code", name).write_text(text)
    Path("rules.yaml").write_text(RULES)
    Path("code-rules.yaml").write_text(CODE_RULES)


def run_without_torch() -> None:
    """Numbers, a scan of texts and one of code, a plan, its proof and its report."""
    hush(
        "posterior",
        "--rate",
        "0.0012",
        "--examples",
        "100",
        "--noise-multiplier",
        "2",
        "--rounds",
        "2000",
        "--prior",
        "1e-10",
    )
    for kind in ("text", "code"):
        hush("init", "--kind", kind, "--output", f"{kind}.yaml")
    hush("scan", "code", "--rules", "code-rules.yaml", "--output", "found-code")
    hush("scan", "notes.jsonl", "--rules", "rules.yaml", "--output", "found", "--key", "data.key")
    public = ("found/public/incidence.parquet", "--secrets", "found/public/secrets.parquet")
    data = ("--data", "notes.jsonl", "--key", "data.key")
    hush("plan", *public, *data, "--batch-size", "4", "--rounds", "10", "--output", "my-plan")
    hush("frontier", *public, "--batch-size", "4", "--rounds", "10", "--plot", "frontier.png")
    hush("verify", "my-plan", "--incidence", *public)
    hush("report", "my-plan", "--scan", "found", "--output", "plan.html")
    check("plotly" in Path("plan.html").read_text(), "the report has no plots")


def run_with_torch() -> None:
    """A whole run of a config, and a training of the plan with its model."""
    config = Path("text.yaml").read_text()
    for line, smaller in SMALLER.items():
        check(line in config, f"hush init wrote no {line!r}")
        config = config.replace(line, smaller)
    Path("small.yaml").write_text(config)
    hush("run", "small.yaml", "--dry-run")
    hush("run", "small.yaml", "--output", "run")
    hush("verify", "run/release")
    (model,) = Path("run/owner/base-model").iterdir()
    data = ("--data", "notes.jsonl", "--key", "data.key")
    hush("train", "my-plan", "--model", str(model), *data, "--output", "trained")
    hush("verify", "trained/release")
    hush("audit", "trained", *data, "--scan", "found", "--attack", "mechanism", "--trials", "100", "--output", "audit")
    hush("report", "trained", "--scan", "found", "--audit", "audit", "--output", "trained.html")


if __name__ == "__main__":
    main(sys.argv[1])
