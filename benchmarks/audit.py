"""Throughput of extraction, beside a plain loop over generate on the same sequences in the same run.

    PYTHONPATH=src python benchmarks/audit.py [--device cuda|cpu] [--bf16] [--model small …] [--sequences 512]

Models have random weights: `small` (GPT-2, 4 layers of 256, 8,192 words), `gpt2` (124 M parameters), `gemma2` (225 M
parameters, 256,000 words, sliding window). Of the sequences a share was said by the model itself, and so counts as
memorised; the others are random. The plain loop prompts with one sequence at a time, `do_sample=False`, with its cache
and no early end; it runs on the first few sequences, and its rate is compared. Both must find the same matches, which
is checked in float32 and counted in bfloat16, where rounding decides between near-ties.

exact: matches only. similarity: decoded in full, edits counted as well. discoverable: probabilities, which the plain
loop could only estimate. Rates are of the median of several repeats after one warm-up, by the clock; on a machine with
other work, look at those by processor time.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

from hush.audit.extraction import discover, extract
from hush.audit.models import Subject, greedy_tokens
from hush.audit.sequences import Sequences

SHARES = (0.0, 0.5, 1.0)


def make_model(name: str, device: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    quiet: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if name == "small":
        config = transformers.GPT2Config(vocab_size=8192, n_embd=256, n_layer=4, n_head=4, n_positions=512, **quiet)
        model: Any = transformers.GPT2LMHeadModel(config)
    elif name == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**quiet))
    else:
        config = transformers.Gemma2Config(
            vocab_size=256_000, hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, head_dim=96, sliding_window=64, max_position_embeddings=1024, **quiet,
        )  # fmt: skip
        model = transformers.Gemma2ForCausalLM(config)
    model.generation_config.eos_token_id = None
    return model.to(device, dtype).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sequences, a share of which the model says itself."""

    model: Any
    subject: Subject
    rows: list[list[int]]
    prompt: int
    length: int

    @property
    def sequences(self) -> Sequences:
        return Sequences.of(self.rows, begin=self.prompt)


def make_case(model: Any, *, count: int, prompt: int, length: int, share: float) -> Case:
    subject = Subject.of(model)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(subject.vocabulary_size, (count, prompt), generator=generator)
    target = torch.randint(subject.vocabulary_size, (count, length), generator=generator)
    known = torch.arange(count) < share * count
    known = known[torch.randperm(count, generator=generator)]
    size = subject.batch_rows(prompt + length)
    for rows in known.nonzero().squeeze(1).split(size) if known.any() else ():
        target[rows] = greedy_tokens(subject, prompts[rows], length)
    return Case(
        model=model, subject=subject, rows=torch.cat([prompts, target], 1).tolist(), prompt=prompt, length=length
    )


def plain_loop(case: Case, count: int) -> list[list[int]]:
    """What generate says after each of the first prompts."""
    said = []
    for row in case.rows[:count]:
        shown = torch.tensor([row[: case.prompt]], device=case.subject.device)
        with torch.no_grad():
            out = case.model.generate(
                shown,
                attention_mask=torch.ones_like(shown),
                do_sample=False,
                max_new_tokens=case.length,
                pad_token_id=0,
            )
        said.append(out[0, case.prompt :].tolist())
    return said


def timed(work: Callable[[], Any], repeats: int, device: str, count: int) -> tuple[dict[str, Any], Any]:
    """Seconds by the clock and of all processors, of each repeat; and what was made."""
    clock, processor, made = [], [], None
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        begin, begin_processor = time.perf_counter(), time.process_time()
        made = work()  # its result is on the CPU, so the device is done
        clock.append(time.perf_counter() - begin)
        processor.append(time.process_time() - begin_processor)
    row = {
        "sequences": count,
        "sequences_per_second": count / statistics.median(clock[1:]),
        "sequences_per_processor_second": count / statistics.median(processor[1:]),
        "seconds": clock[1:],
        "processor_seconds": processor[1:],
    }
    return row, made


def run_case(case: Case, *, plain_count: int, repeats: int, device: str, exactly: bool) -> dict[str, Any]:
    count = len(case.rows)
    options: dict[str, Any] = {"prompts": [case.prompt], "continuations": [case.length]}
    plain, said = timed(lambda: plain_loop(case, plain_count), repeats, device, plain_count)
    row: dict[str, Any] = {"batch": case.subject.batch_rows(case.prompt + case.length), "plain": plain}
    works: dict[str, Callable[[], Any]] = {
        "exact": lambda: extract(case.subject, case.sequences, **options),
        "similarity": lambda: extract(case.subject, case.sequences, **options, similarity=True),
        "discoverable": lambda: discover(case.subject, case.sequences, **options),
    }
    for name, work in works.items():
        row[name], found = timed(work, repeats, device, count)
        for unit in ("second", "processor_second"):
            over = row[name][f"sequences_per_{unit}"] / plain[f"sequences_per_{unit}"]
            row[name]["over_plain" if unit == "second" else "over_plain_by_processor_time"] = over
        if name == "discoverable":
            continue
        same = [one == full[case.prompt :] for one, full in zip(said, case.rows, strict=False)]
        differing = int((found.hits(case.prompt, case.length)[:plain_count] != same).sum())
        assert not (exactly and differing), f"{differing} of {plain_count} sequences differ from the plain loop"
        row[name] |= {"extracted": found.cell(case.prompt, case.length).success.rate, "differing": differing}
    return row


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def commit() -> str | None:
    """Of the checkout; a copy without its history has none."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return done.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--model", action="append", choices=("small", "gpt2", "gemma2"), help="several times")
    parser.add_argument("--sequences", type=int, help="default: 512 on a CPU, 4096 on a GPU")
    parser.add_argument("--plain", type=int, default=16, help="sequences for the plain loop")
    parser.add_argument("--prompt", type=int, default=50)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of a CPU; default: as many as it has")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device, dtype = options.device, torch.bfloat16 if options.bf16 else torch.float32
    count = options.sequences or (4096 if device == "cuda" else 512)
    output = options.output or Path(__file__).parent / "results" / f"audit_{device}{'_bf16' * options.bf16}.json"
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": " ".join(sys.argv),
        "hardware": hardware(device),
        "load": os.getloadavg(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("torch", "transformers")},
        "prompt": options.prompt,
        "length": options.length,
        "dtype": str(dtype).removeprefix("torch."),
        "models": {},
    }
    for name in options.model or (["small", "gpt2"] if device == "cpu" else ["small", "gpt2", "gemma2"]):
        model = make_model(name, device, dtype)
        rows = result["models"][name] = {}
        for share in SHARES:
            case = make_case(model, count=count, prompt=options.prompt, length=options.length, share=share)
            row = rows[f"{share:.0%} memorised"] = run_case(
                case, plain_count=options.plain, repeats=options.repeats, device=device, exactly=not options.bf16
            )
            print(
                f"{name}, {share:.0%} memorised: plain {row['plain']['sequences_per_second']:.1f} sequences/s; "
                + ", ".join(
                    f"{kind} {row[kind]['sequences_per_second']:.0f} ({row[kind]['over_plain']:.1f} times as many, "
                    f"{row[kind]['over_plain_by_processor_time']:.1f} by processor time)"
                    for kind in ("exact", "similarity", "discoverable")
                ),
                flush=True,
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=2) + "\n")  # after each model: a run cut short keeps its own


if __name__ == "__main__":
    main()
