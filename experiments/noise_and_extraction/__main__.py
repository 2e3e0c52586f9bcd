"""Noise against extraction in pretraining (the paper's Figures 2 and 3).

    python -m experiments.noise_and_extraction --data FOLDER --tokenizer tokenizer.json [--scale small|full]

FOLDER holds openstax_textbooks.jsonl.gz and gutenberg_books.jsonl.gz, each line a JSON object with a "text". The
tokenizer is a BPE tokenizer.json, such as Gemma-2's. Stages can be run alone: prepare needs the texts and the
tokenizer, run needs the prepared file alone, figures and examples need the results.
"""

import argparse
from pathlib import Path

from experiments.noise_and_extraction.scales import SCALES, Scale

HERE = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", default="all", choices=["all", "prepare", "run", "figures", "examples"])
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--data", type=Path, help="folder of the texts")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument(
        "--prepared", type=Path, help="file between prepare and run (.npz), with text; default: in build/"
    )
    parser.add_argument("--results", type=Path, help="folder; default: results/noise_and_extraction/full, or in build/")
    parser.add_argument("--images", type=Path, help="folder of the figures; by default the results'")
    parser.add_argument("--device", help="cuda or cpu; by default what there is")
    parser.add_argument("--no-compile", action="store_true", help="eager training; on a CPU always")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", default=[], help="only these")
    parser.add_argument("--minutes", type=float, help="begin no run after so long")
    parser.add_argument("--noise", type=float, default=1e-1, help="examples: of the run with this multiplier")
    args = parser.parse_args()
    scale = SCALES[args.scale]
    build = HERE.parent / "build" / "noise-and-extraction"
    prepared = args.prepared or build / f"{scale.name}.npz"
    # What is committed is of the full scale; a smaller one does not mix with it.
    results = args.results or (
        HERE / "results" / "noise_and_extraction" / "full" if scale.name == "full" else build / scale.name
    )
    if args.stage in ("all", "prepare") and not (args.stage == "all" and prepared.exists()):
        if args.data is None or args.tokenizer is None:
            parser.error("prepare needs --data and --tokenizer")
        prepare_stage(args.data, args.tokenizer, prepared, scale)
    elif args.stage == "all":
        print(f"goes on with what is prepared in {prepared}; the stage prepare makes it anew", flush=True)
    if args.stage in ("all", "run"):
        run_stage(args, prepared, results, scale)
    if args.stage in ("all", "figures"):
        figures_stage(results, args.images or results)
    if args.stage == "examples":
        examples_stage(args, prepared, results)


def prepare_stage(data: Path, tokenizer: Path, prepared: Path, scale: Scale) -> None:
    from experiments.noise_and_extraction.corpus import prepare

    made = prepare(data, tokenizer, scale)
    made.save(prepared)
    print(f"{prepared}: {prepared.stat().st_size / 1e6:.1f} MB, {made.facts}")


def run_stage(args: argparse.Namespace, prepared: Path, results: Path, scale: Scale) -> None:
    import torch

    from experiments.noise_and_extraction.corpus import Prepared
    from experiments.noise_and_extraction.study import run

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    run(
        Prepared.load(prepared),
        scale,
        results,
        device=device,
        compile=device == "cuda" and not args.no_compile,
        seeds=args.seeds,
        sizes=args.sizes,
        minutes=args.minutes,
    )


def figures_stage(results: Path, images: Path) -> None:
    from experiments.noise_and_extraction.drawing import draw
    from experiments.noise_and_extraction.summary import Summary
    from experiments.noise_and_extraction.tables import markdown, write_csv

    summary = Summary.load(results)
    write_csv(summary.losses(), results / "losses.csv")
    write_csv(summary.fractions(), results / "fractions.csv")
    write_csv(summary.remaining(), results / "remaining.csv")
    (results / "table.md").write_text(markdown(summary))
    draw(summary, images)
    print(f"tables in {results}, figures in {images}")


def examples_stage(args: argparse.Namespace, prepared: Path, results: Path) -> None:
    """On the terminal only: what still comes out, for the reader who may see the corpus."""
    from experiments.noise_and_extraction.corpus import Prepared
    from experiments.noise_and_extraction.summary import Summary

    summary, corpus = Summary.load(results), Prepared.load(prepared)
    prompt, continuation = summary.shown
    for size in summary.about["settings"]["sizes"]:
        for sequence, anyway in summary.extracted(size["name"], args.noise):
            times, kind = corpus.repetitions_N[sequence], corpus.kind_N[sequence]
            print(f"\n{size['name']}, repeated {times} times, {kind}, {'reference too' if anyway else 'not reference'}")
            print(
                f"  {corpus.text(sequence, 0, prompt)!r}\n  -> {corpus.text(sequence, prompt, prompt + continuation)!r}"
            )


if __name__ == "__main__":
    main()
