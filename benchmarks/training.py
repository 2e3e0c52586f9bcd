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
"""

import argparse
import gc
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from training_models import (
    BERT_TINY,
    Batch,
    Case,
    accepted_by_opacus,
    all_cases,
    flops,
    labelled_loss,
    labelled_positions,
    make_batches,
    make_model,
)

from hush.train.clipping import MARGIN, Clipper
from hush.train.language import IGNORED, token_losses

CLIP_NORM = 1.0
REFERENCES = ("non-private, eager", "non-private, compiled")
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Method:
    """Adds a micro-batch's gradients to a sum; `finish` drops the sum, as a round's end does."""

    step: Callable[[Batch], Any]
    finish: Callable[[], Any]
    about: dict[str, Any]
    opacus: Any = None


def moved(batch: Batch, device: str) -> dict[str, Tensor]:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def autocast(case: Case, device: str) -> torch.autocast:
    return torch.autocast(device, dtype=case.autocast, enabled=case.autocast is not None)


def ordinary(case: Case, device: str, *, compile: bool) -> Method:
    model = make_model(case, device)
    run = torch.compile(model, dynamic=False) if compile else model

    def step(batch: Batch) -> None:
        with autocast(case, device):
            loss = run(**moved(batch, device)).loss
        loss.backward()

    about: dict[str, Any] = {"attention": getattr(model.config, "_attn_implementation", None)}
    if not compile:
        batch = make_batches(case, device, size=case.micro_batch, count=1)[0]
        about["counted_flops"] = counted_flops(lambda: step(batch))
        model.zero_grad(set_to_none=True)
    return Method(step, lambda: model.zero_grad(set_to_none=True), about)


def ordinary_labelled(case: Case, device: str) -> Method:
    """Ordinary training that looks at labelled positions only, as hush does; transformers itself does not."""
    model = make_model(case, device)
    run = torch.compile(labelled_loss, dynamic=False)

    def step(batch: Batch) -> None:
        index = labelled_positions(batch["labels"]).to(device, non_blocking=True)
        with autocast(case, device):
            loss = run(model, moved(batch, device), index)
        loss.backward()

    return Method(step, lambda: model.zero_grad(set_to_none=True), {})


def hush(case: Case, device: str, *, compile: bool) -> Method:
    model = make_model(case, device)
    clipper = Clipper(model, case.loss, clip_norm=CLIP_NORM, compile=compile, autocast=case.autocast)
    real = torch.ones(case.micro_batch, dtype=torch.bool)
    about: dict[str, Any] = {}
    if not compile:
        batch = make_batches(case, device, size=case.micro_batch, count=1)[0]
        norms = clipper.accumulate(batch, real).norms  # the first of its shape has a look ahead, which does not count
        about["counted_flops"] = counted_flops(lambda: clipper.accumulate(batch, real))
        about |= {"clipped_share": float((norms > CLIP_NORM).float().mean()), "median_norm": float(norms.median())}
        try:  # looks inside the clipper, so that a change there costs this number only
            about["flops"] = flops(case, model, clipper, moved(batch, device))
        except (AttributeError, TypeError, KeyError) as error:
            about["flops"] = {"not counted": repr(error)}
        clipper.take()
    return Method(lambda batch: clipper.accumulate(batch, real), clipper.take, about)


def opacus(case: Case, device: str, *, ghost: bool, nearest: bool) -> Method:
    """Opacus' own hooks (per-example gradients) or ghost clipping (two backward passes), with its own accumulation."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    model = make_model(case, device)
    about: dict[str, Any] = {}
    if nearest:
        about["changed"] = accepted_by_opacus(case, model, ghost=ghost)
    kind = GradSampleModuleFastGradientClipping if ghost else GradSampleModule
    method = _opacus_on(
        kind(model, loss_reduction="sum"), case, device, clip_norm=CLIP_NORM, ghost=ghost, nearest=nearest
    )
    method.step(make_batches(case, device, size=case.micro_batch, count=1)[0])  # where it refuses, this says so
    method.finish()
    try:
        about["agreement"] = agreement(case, device, ghost=ghost, nearest=nearest)
    except Exception as error:  # a number missing, not a method
        about["not_compared"] = f"{type(error).__name__}: {error}"[:300]
    return Method(method.step, method.finish, about)


def _opacus_on(wrapped: Any, case: Case, device: str, *, clip_norm: float, ghost: bool, nearest: bool) -> Method:
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    if ghost:
        wrapped.max_grad_norm = clip_norm
    kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
    plain = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.0)
    optimizer: Any = kind(
        plain, noise_multiplier=0.0, max_grad_norm=clip_norm, expected_batch_size=1, loss_reduction="sum"
    )

    class PerExample:
        """Losses as hush has them; Opacus asks for this attribute."""

        reduction = "sum"

        def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
            labels = labels if case.masked else torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
            return token_losses(logits, labels)

    criterion: Any = PerExample()
    if ghost:
        criterion = DPLossFastGradientClipping(wrapped, optimizer, criterion, loss_reduction="sum")

    def step(batch: Batch) -> None:
        inputs = moved(batch, device)
        labels = inputs.pop("labels")
        if nearest and case.masked:
            ids = inputs["input_ids"]
            inputs["position_ids"] = torch.arange(ids.shape[1], device=device).expand(ids.shape).contiguous()
            inputs["token_type_ids"] = torch.zeros_like(ids)
        optimizer.zero_grad(set_to_none=True)
        with autocast(case, device):
            losses = criterion(wrapped(**inputs).logits, labels)
        (losses if ghost else losses.sum()).backward()
        optimizer.signal_skip_step(do_skip=True)  # one more micro-batch of the same round, as its memory manager says
        optimizer.pre_step()

    def finish() -> None:
        optimizer._is_last_step_skipped = False
        optimizer.zero_grad(set_to_none=True)

    return Method(step, finish, {}, opacus=wrapped)


def agreement(case: Case, device: str, *, ghost: bool, nearest: bool) -> dict[str, float]:
    """Relative differences from hush in float32 without dropout: of norms, and of sums with half clipped and with none.

    Clipped sums differ by some thousandths where hush scales down further, by what rounding may have done to norms.
    """
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    size = min(case.micro_batch, 4)
    case = replace(case, autocast=None, micro_batch=size)
    batch, real = make_batches(case, device, size=size, count=1)[0], torch.ones(size, dtype=torch.bool)
    kind: Any = GradSampleModuleFastGradientClipping if ghost else GradSampleModule
    found: dict[str, float] = {}
    clip_norm = 1e6
    for sums in ("unclipped_sums", "sums"):
        model = make_model(case, device, dropout=False)
        if nearest:
            accepted_by_opacus(case, model, ghost=ghost)
        clipper = Clipper(model, case.loss, clip_norm=clip_norm)
        norms, ours = clipper.accumulate(batch, real).norms, clipper.take()
        wrapped = kind(model, loss_reduction="sum")
        slightly_less = clip_norm * (1 - MARGIN)  # what hush clips to
        _opacus_on(wrapped, case, device, clip_norm=slightly_less, ghost=ghost, nearest=nearest).step(batch)
        trained: dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if ghost:
            theirs = wrapped.per_sample_gradient_norms
        else:
            theirs = torch.stack([p.grad_sample.flatten(1).square().sum(1) for p in trained.values()]).sum(0).sqrt()
        difference = sum(float((p.summed_grad - ours[name]).square().sum()) for name, p in trained.items())
        found[sums] = math.sqrt(difference / sum(float(value.square().sum()) for value in ours.values()))
        found["norms"] = float(((theirs - norms) / norms).abs().max())
        clip_norm = float(norms.median())
    return found


def counted_flops(run: Callable[[], Any]) -> float | str:
    """Products as torch itself counts them while they run: the second route to the formula of `flops`."""
    try:
        with FlopCounterMode(display=False) as counter:
            run()
    except AssertionError as error:  # some versions of torch cannot count attention with grouped queries
        return f"not counted: {error}"
    return float(counter.get_total_flops())


class PeakMemory:
    """Peak memory in GB since it was made: of the allocator on a GPU, resident on a CPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            Path("/proc/self/clear_refs").write_text("5")

    def gigabytes(self) -> float | None:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**30
        if sys.platform != "linux":
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def seconds_of(work: Callable[[], Any], device: str) -> float:
    if device != "cuda":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def measured(method: Method, batches: list[dict[str, Tensor]], device: str, repeats: int) -> dict[str, Any]:
    def block() -> None:
        for batch in batches:
            method.step(batch)
        method.finish()

    first, *_ = [seconds_of(block, device) for _ in range(WARM_UP)]
    memory = PeakMemory(device)
    seconds = [seconds_of(block, device) for _ in range(repeats)]
    examples = sum(len(batch["input_ids"]) for batch in batches)
    return {
        "examples_per_second": examples / statistics.median(seconds),
        "milliseconds_per_micro_batch": 1e3 * statistics.median(seconds) / len(batches),
        "peak_gb": memory.gigabytes(),
        "seconds_of_blocks": seconds,
        "first_block_seconds": first,
    }


def clean(device: str) -> None:
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def tried(make: Callable[[Case], Method], case: Case, device: str, repeats: int) -> dict[str, Any]:
    """The numbers of a method, or its exception; where memory runs out, of a quarter of the micro-batch."""
    row: dict[str, Any] = {}
    for part in (1, 4, 16):
        size = case.micro_batch // part
        if size < 1:
            break
        try:
            batches = make_batches(case, device, size=size, count=case.block)
            method = make(replace(case, micro_batch=size))
            return {"micro_batch": size} | measured(method, batches, device, repeats) | method.about
        except torch.OutOfMemoryError:
            row = {"failed": f"out of memory at a micro-batch of {size}"}
        except ImportError as error:
            return {"failed": f"not installed: {error}"}
        except Exception as error:  # whatever a peer raises is its result
            return {"failed": f"{type(error).__name__}: {error}"[:600]}
        finally:
            method = None
            clean(device)
    return row


def run_case(case: Case, device: str, repeats: int, only: list[str]) -> Iterator[dict[str, Any]]:
    """The case's result after each of its methods: one that hangs or is cut short does not take the others along."""
    methods: dict[str, Callable[[Case], Method]] = {
        REFERENCES[0]: lambda case: ordinary(case, device, compile=False),
        REFERENCES[1]: lambda case: ordinary(case, device, compile=True),
        "hush": lambda case: hush(case, device, compile=True),
        "hush, eager": lambda case: hush(case, device, compile=False),
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


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--case", action="append", choices=tuple(all_cases("cpu")), help="several times; default: all but tiny"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="a method's name; may be given several times")
    parser.add_argument("--growth", action="store_true", help="cost against logical batch and sequence length instead")
    parser.add_argument("--threads", type=int, help="of a CPU; default: as many as it has")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    device = options.device
    if options.threads:
        torch.set_num_threads(options.threads)
    output = options.output or Path(__file__).parent / "results" / f"training_{'growth_' * options.growth}{device}.json"
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
        for so_far in run_case(cases[name], device, options.repeats, options.only):
            result["cases"][name] = so_far
            print(f"{name}: {list(so_far['methods'])[-1]} is done", flush=True)
            output.write_text(json.dumps(result, indent=2) + "\n")
        print(table(result["cases"][name]), flush=True)


if __name__ == "__main__":
    main()
