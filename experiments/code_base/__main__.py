"""Study 4 in one command, or in parts: prepare where the code base is, train where the GPU is, figures anywhere.

python -m experiments.code_base                                  Python's library, on a CPU, in minutes
python -m experiments.code_base --scale full --root CHECKOUT --projects FOLDER --part prepare
python -m experiments.code_base --scale full --part train        needs the prepared folder alone
python -m experiments.code_base --scale full --part figures
"""

import argparse
import logging
from pathlib import Path

from experiments.code_base.scales import SCALES

HERE = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a checkout, with its git history if it has one; default: Python's")
    parser.add_argument("--projects", default="", help="the folder below it whose entries are projects")
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--part", choices=("all", "prepare", "train", "figures"), default="all")
    parser.add_argument("--prepared", type=Path, help="folder of what is prepared; default: build/code-base/SCALE")
    parser.add_argument("--output", type=Path, help="folder of results; default: results/code_base/full, or in build/")
    parser.add_argument("--minutes", type=float, help="how long new runs may still be begun; the next call goes on")
    parser.add_argument("--no-compile", action="store_true", help="on a GPU: slower, without waiting for the compiler")
    options = parser.parse_args(arguments)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    full = options.scale == "full"
    prepared = options.prepared or HERE.parent / "build" / "code-base" / options.scale
    # What is committed would pass for runs of this machine: only the full scale goes on with it.
    output = options.output or (HERE / "results" / "code_base" / "full" if full else prepared / "results")
    if options.part == "prepare" or (options.part == "all" and not (prepared / "study.json").exists()):
        from experiments.code_base.prepare import prepare
        from hush.demo.company import standard_library

        root = (options.root or standard_library()).resolve()
        made = prepare(root, SCALES[options.scale], projects=options.projects)
        made.save(prepared)
        print(made, {name: plan.noise_multiplier for name, plan in made.plans.items()}, flush=True)
    elif options.part == "all":
        print(f"goes on with what is prepared in {prepared}; --part prepare makes it anew", flush=True)
    if options.part in ("all", "train"):
        from experiments.code_base.prepared import Prepared
        from experiments.code_base.study import run_study

        run_study(Prepared.load(prepared), output, minutes=options.minutes, compile=not options.no_compile)
    if options.part in ("all", "figures"):
        from experiments.code_base.figures import draw

        shown = full and options.output is None  # in the documentation
        draw(output, HERE.parent / "docs" / "images" / "studies" if shown else output)


if __name__ == "__main__":
    main()
