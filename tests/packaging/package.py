"""What `make package` does: build the wheel and the sdist, then install the wheel for each Python and try it there.

    python tests/packaging/package.py [--python PATH ...] [--without-torch] [--output dist]

The sdist must build the same wheel as the checkout, and the wheel must hold every file of src/hush and nothing else.
Then for each Python of VERSIONS that is found, on PATH or among those of pyenv, an empty environment gets the wheel
with the versions of constraints.txt, and installed.py runs in it. Where the pinned torch has no wheel for a Python, the
smoke run leaves training out, and this says so. An environment takes up to 6 GB, and is removed before the next one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
VERSIONS = ("3.11", "3.12", "3.13")  # those that the metadata of the package name
GENERATED = "__pycache__"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, action="append", help="a Python to try, instead of those that are found")
    parser.add_argument("--without-torch", action="store_true", help="install no torch; leave training out everywhere")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where wheel and sdist are left")
    asked = parser.parse_args()
    if asked.python is None:
        pythons = {version: python for version in VERSIONS if (python := found(version)) is not None}
        for version in VERSIONS:
            if version not in pythons:
                print(f"==> Python {version} was not found, neither on PATH nor among those of pyenv: not tried")
    else:
        pythons = {version_of(python) or f"{python}, which does not run": python for python in asked.python}
    if not pythons:
        sys.exit("FAILED: none of the Pythons was found; install one of them, or pass --python")
    wheel = built(asked.output)
    tried = [f"Python {version}{smoke(python, wheel, asked.without_torch)}" for version, python in pythons.items()]
    print(f"==> {wheel.name} works in an empty environment with {', '.join(tried)}")


def found(version: str) -> Path | None:
    """A Python of this version: this one, one on PATH that runs, or the newest of pyenv."""
    on_path = [Path(folder, f"python{version}") for folder in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    of_pyenv = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda path: numbers(path.parts[-3]), reverse=True)
    candidates = (Path(sys.executable), *on_path, *of_pyenv)
    return next((path for path in candidates if path.is_file() and version_of(path) == version), None)


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def version_of(python: Path) -> str | None:
    """Its major and minor version; None if it does not run, as a shim of pyenv for a version that is not selected."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def built(output: Path) -> Path:
    """The wheel, made from the sdist, which lies beside it; both are checked."""
    print("==> building the sdist, and the wheel from it", flush=True)
    with TemporaryDirectory() as folder:
        from_sdist, from_checkout = Path(folder, "sdist"), Path(folder, "checkout")
        run(sys.executable, "-m", "build", "--outdir", from_sdist, ROOT)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", from_checkout, ROOT)
        (wheel,), (other,) = from_sdist.glob("*.whl"), from_checkout.glob("*.whl")
        check(
            wheel.name == other.name and content(wheel) == content(other),
            f"the sdist builds another wheel than the checkout: {differing(content(wheel), content(other))}",
        )
        check_content(content(wheel))
        output.mkdir(parents=True, exist_ok=True)
        for path in from_sdist.iterdir():
            shutil.move(path, output / path.name)
            print(f"    {output / path.name}: {(output / path.name).stat().st_size / 1e6:.1f} MB")
    return output / wheel.name


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def check_content(files: dict[str, bytes]) -> None:
    """Refuse a wheel that lacks a file of the package, such as a template or a script of the report, or has others."""
    source = ROOT / "src"
    paths = (path for path in (source / "hush").rglob("*") if path.is_file() and GENERATED not in path.parts)
    expected = {path.relative_to(source).as_posix(): path.read_bytes() for path in paths}
    of_package = {name: data for name, data in files.items() if ".dist-info/" not in name}
    check(of_package == expected, f"the wheel does not hold src/hush as it is: {differing(of_package, expected)}")
    about = {name.split(".dist-info/")[1] for name in files if name not in of_package}
    lacking = {"METADATA", "entry_points.txt", "licenses/LICENSE"} - about
    check(not lacking, f"the wheel lacks {', '.join(sorted(lacking))}")


def differing(ours: dict[str, bytes], theirs: dict[str, bytes]) -> str:
    return ", ".join(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def smoke(python: Path, wheel: Path, without_torch: bool) -> str:
    """Install the wheel for this Python and try it. Returns what to add to the name of the Python."""
    with TemporaryDirectory() as folder:
        environment, desk = Path(folder, "environment"), Path(folder, "desk")
        print(f"==> {python}: an empty environment", flush=True)
        run(python, "-m", "venv", environment)
        bin_ = environment / "bin"
        pip = (bin_ / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        constrained = (*pip, "--constraint", CONSTRAINTS)
        has_torch = not without_torch and succeeds(*constrained, "--dry-run", "--no-deps", "torch")
        if not has_torch and not without_torch:
            print("    torch of constraints.txt cannot be had for this Python here: training is left out", flush=True)
        run(*constrained, f"{wheel}[{'hf,scan' if has_torch else 'scan'}]")
        desk.mkdir()
        version = wheel.name.split("-")[1]
        run(bin_ / "python", "-I", ROOT / "tests" / "packaging" / "installed.py", version, folder=desk, shown=True)
    return "" if has_torch else " (without torch)"


def run(*command: str | Path, folder: Path | None = None, shown: bool = False) -> None:
    """Run a command, which must succeed. shown: print what it prints as it does so; otherwise only if it fails."""
    streams = None if shown else subprocess.PIPE
    done = subprocess.run(
        command, cwd=folder, env=plain_environment(), stdout=streams, stderr=subprocess.STDOUT, text=True
    )
    check(done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout or ''}")


def succeeds(*command: str | Path) -> bool:
    return subprocess.run(command, env=plain_environment(), capture_output=True).returncode == 0


def plain_environment() -> dict[str, str]:
    """Ours without what would make another Python import from a source tree or from this environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def check(holds: bool, problem: str) -> None:
    if not holds:
        sys.exit(f"FAILED: {problem}")


if __name__ == "__main__":
    main()
