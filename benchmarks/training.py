"""Speed and memory of clipped sums, beside ordinary training and Opacus, on one device in one run.

    PYTHONPATH=src python benchmarks/training.py [--case a --case b512 …] [--device cuda|cpu] [--repeats 5]
    PYTHONPATH=src python benchmarks/training.py --growth [--device cuda|cpu] [--output FILE]

Cases: (a) BERT-Tiny MLM, logical batch 2048; (b) a tied Gemma-2 architecture of 225 M parameters, bf16, 16 × 512 and
8 × 1024 tokens; (c) LoRA of rank 16 on the same; `tiny` takes seconds. Every method turns the same micro-batches,
handed over on the CPU, into a sum of gradients: clipped for each example (hush, Opacus) or not (ordinary training); no
noise, no optimizer. Ordinary training uses the model's own loss, eager and compiled; the faster is the reference. A
block of micro-batches is timed as a whole after two blocks of warm-up; the median of several blocks counts. Memory is
the peak during those blocks. Where Opacus refuses the model its refusal is written down, and a line of its own has the
nearest model that it accepts. `agreement` compares Opacus' norms and sums with those of hush on the very same model.
--growth: time of hush and of ordinary training per round against logical batch and sequence length.
--metric: sums with a public metric against sums without, eager. Blocks of the two take turns, and on a CPU processor
time counts, so that other work on the machine hits both alike; the median of their ratios counts.
"""

import argparse
import json
import logging
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from training_measures import clean, hardware, installed, measured, seconds_of, tried
from training_methods import Method, hush, ordinary, ordinary_labelled
from training_models import BERT_TINY, Case, all_cases, make_batches
from training_opacus import opacus

REFERENCES = ("non-private, eager", "non-private, compiled")
METRIC = "hush, public metric"


def run_case(case: Case, device: str, repeats: int, only: list[str]) -> Iterator[dict[str, Any]]:
    """The case's result after each of its methods: one that hangs or is cut short does not take the others along."""
    methods: dict[str, Callable[[Case], Method]] = {
        REFERENCES[0]: lambda case: ordinary(case, device, compile=False),
        REFERENCES[1]: lambda case: ordinary(case, device, compile=True),
        "hush": lambda case: hush(case, device, compile=True),
        METRIC: lambda case: hush(case, device, compile=True, metric=True),
        "hush, eager": lambda case: hush(case, device, compile=False),
        f"{METRIC}, eager": lambda case: hush(case, device, compile=False, metric=True),
    }
    if case.masked:
        methods["non-private, compiled, head at labelled positions only"] = lambda case: ordinary_labelled(case, device)
    for name, ghost in (("Opacus hooks", False), ("Opacus ghost", True)):
        methods[name] = lambda case, ghost=ghost: opacus(case, device, ghost=ghost, nearest=False)
    nearest = ", nearest model that it accepts"
    rows: dict[str, dict[str, Any]] = {}
    for name, make in methods.items():
        if only and name not in only:
            continue
        rows[name] = tried(make, case, device, repeats)
        if name.startswith("Opacus") and "not installed" not in rows[name].get("failed", "not installed"):
            ghost = name.endswith("ghost")
            rows[name + nearest] = tried(
                lambda case, ghost=ghost: opacus(case, device, ghost=ghost, nearest=True), case, device, repeats
            )
        yield summed_up(case, rows)


def summed_up(case: Case, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A case's rows, with each method's speed over the reference's and hush's over Opacus'."""
    speeds = {name: row["examples_per_second"] for name, row in rows.items() if "examples_per_second" in row}
    reference = max((speeds[name] for name in REFERENCES if name in speeds), default=None)
    ratios = {name: speed / reference for name, speed in speeds.items()} if reference else {}
    ghost = next((speed for name, speed in speeds.items() if name.startswith("Opacus ghost")), None)
    result: dict[str, Any] = {
        "title": case.title,
        "shape": f"{case.micro_batch} × {case.length} tokens, {case.block} micro-batches a block",
        "methods": rows,
        "over_reference": ratios,
    }
    for suffix in ("", ", eager"):
        with_metric, without = speeds.get(METRIC + suffix), speeds.get("hush" + suffix)
        if with_metric and without:
            result[f"metric_over_none{suffix}"] = with_metric / without
    if ghost and "hush" in speeds:
        result["hush_over_opacus_ghost"] = speeds["hush"] / ghost
    return result


def table(result: dict[str, Any]) -> str:
    lines = [f"\n{result['title']}; {result['shape']}", f"{'':58}{'examples/s':>12}{'/ref.':>7}{'peak GB':>9}"]
    for name, row in result["methods"].items():
        if "failed" in row:
            lines.append(f"{name:58}{row['failed'][:90]}")
            continue
        ratio = result["over_reference"].get(name, math.nan)
        lines.append(f"{name:58}{row['examples_per_second']:12.1f}{ratio:7.2f}{row['peak_gb'] or math.nan:9.2f}")
        if "agreement" in row:
            lines.append(
                "".ljust(58)
                + "  differs from hush by {norms:.0e} (norms), {unclipped_sums:.0e} (sum)".format(**row["agreement"])
            )
    lines += [
        f"with a public metric over without{suffix}: {result[key]:.2f}"
        for suffix in ("", ", eager")
        if (key := f"metric_over_none{suffix}") in result
    ]
    count = result["methods"].get("hush, eager", {}).get("flops", {})
    if "overhead" in count:
        lines.append(
            f"products: clipping adds {count['overhead']:.1%}, labelled positions save "
            f"{count['saved'] / count['ordinary']:.1%}: arithmetic alone would put hush at "
            f"{count['ordinary_over_hush']:.2f} of ordinary training"
        )
    return "\n".join(lines)


def growth(device: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Seconds per round against logical batch and sequence length, the other held; eager on a CPU."""
    fast = device == "cuda"
    batches = (256, 512, 1024, 2048, 4096, 8192) if fast else (32, 64, 128, 256)
    lengths = (64, 128, 256, 512, 1024) if fast else (32, 64, 128, 256)
    most, round_size = (256, 1024) if fast else (32, 32)
    sweeps = [("logical batch", size, 128, size) for size in batches]
    sweeps += [("sequence length", length, length, round_size) for length in lengths]
    made: dict[str, Method] = {}
    last = 0
    for axis, value, length, size in sweeps:
        micro = min(
            most, most * 128 // length
        )  # long texts in smaller micro-batches: ordinary training keeps all logits
        case = Case(title="", family="bert", config=BERT_TINY, length=length, micro_batch=micro, block=size // micro)
        if length != last:
            made, last = {}, length
            clean(device)
            made = {name: make(case, device, compile=fast) for name, make in (("hush", hush), ("ordinary", ordinary))}
        data = make_batches(case, device, size=micro, count=min(case.block, 4))
        data = [data[k % len(data)] for k in range(case.block)]
        row: dict[str, Any] = {"axis": axis, "length": length, "logical_batch": size, "micro_batch": micro}
        for name, method in made.items():
            numbers = measured(method, data, device, repeats)
            row[name] = {"seconds": statistics.median(numbers["seconds_of_blocks"]), "peak_gb": numbers["peak_gb"]}
        yield row
        hush_s, ordinary_s = row["hush"]["seconds"], row["ordinary"]["seconds"]
        print(f"{axis} {value}: hush {hush_s:.3f} s, ordinary {ordinary_s:.3f} s a round", flush=True)


def metric_ratio(case: Case, device: str, repeats: int) -> dict[str, Any]:
    """The speed of clipped sums in a public metric, divided by that without."""
    batches = make_batches(case, device, size=case.micro_batch, count=case.block)
    methods = {metric: hush(case, device, compile=False, metric=metric) for metric in (False, True)}

    def seconds(metric: bool) -> float:
        def block() -> None:
            for batch in batches:
                methods[metric].step(batch)
            methods[metric].finish()

        begin = time.process_time()
        clock = seconds_of(block, device)
        return clock if device == "cuda" else time.process_time() - begin

    for metric in methods:
        seconds(metric)  # warm-up
    pairs = [(seconds(False), seconds(True)) for _ in range(repeats)]
    ratios = [without / with_metric for without, with_metric in pairs]
    return {
        "title": case.title,
        "seconds_without_and_with": pairs,
        "metric_over_none, eager": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--case", action="append", choices=tuple(all_cases("cpu")), help="several times; default: all but tiny"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="a method's name; may be given several times")
    parser.add_argument("--growth", action="store_true", help="cost against logical batch and sequence length instead")
    parser.add_argument("--metric", action="store_true", help="a public metric against none instead, taking turns")
    parser.add_argument("--threads", type=int, help="of a CPU; default: as many as it has")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    device = options.device
    if options.threads:
        torch.set_num_threads(options.threads)
    kind = f"{'growth_' * options.growth}{'metric_' * options.metric}"
    output = options.output or Path(__file__).parent / "results" / f"training_{kind}{device}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "hardware": hardware(device),
        "load": os.getloadavg(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()}
        | {name: installed(name) for name in ("torch", "transformers", "opacus", "peft")},
        "float32_products": torch.get_float32_matmul_precision(),
    }
    if options.growth:
        result["growth"] = []
        for row in growth(device, options.repeats):
            result["growth"].append(row)
            output.write_text(json.dumps(result, indent=2) + "\n")  # after each row, as below
        return
    cases = all_cases(device)
    result["cases"] = {}
    for name in options.case or [name for name in cases if name != "tiny"]:
        if options.metric:
            result["cases"][name] = row = metric_ratio(cases[name], device, options.repeats)
            print(f"{name}: with a public metric over without, eager: {row['metric_over_none, eager']:.3f}", flush=True)
            output.write_text(json.dumps(result, indent=2) + "\n")
            continue
        for so_far in run_case(cases[name], device, options.repeats, options.only):
            result["cases"][name] = so_far
            print(f"{name}: {list(so_far['methods'])[-1]} is done", flush=True)
            output.write_text(json.dumps(result, indent=2) + "\n")
        print(table(result["cases"][name]), flush=True)


if __name__ == "__main__":
    main()
