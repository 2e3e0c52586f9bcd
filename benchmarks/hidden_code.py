"""The loss on files that import a secret package if a rule for code hides files, definitions or lines.

    python benchmarks/hidden_code.py --prepare django-5.2.8 --secret 'django/db/**' --prepared FOLDER
    python benchmarks/hidden_code.py --prepared FOLDER [--scale full] [--parallel 12] [--output FILE]

The first command scans a folder of code and writes its Python files with what each choice hides. The second needs only
that folder, NumPy and PyTorch. It trains a small model of bytes, from random weights, on what is public under each
choice (files without a secret, and skeletons with a placeholder for each hidden span), without clipping and without
noise, and once on the full text: no protection. Every run of one seed leaves out the same files: a fifth of the
importers of the secret package, and two groups of files without a secret. One of these chooses the step of the
training that is evaluated, so the choice uses public text only. Losses are in nats per byte, in the full text of the
files left out.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

CHOICES = ("file", "definitions", "lines")
ARMS = ("no protection", *CHOICES)
FILE_END, PLACEHOLDER, VOCABULARY = 256, 257, 258
HELD_OUT = {"importers": 0.2, "selection": 0.05, "elsewhere": 0.1}  # shares of the files of each kind
T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of Student's t, by the number of seeds


class Scale(NamedTuple):
    """How much a run does."""

    steps: int
    batch: int
    length: int
    layers: int
    width: int
    evaluations: int
    seeds: int
    test_bytes: int  # of each group of files left out, at most


SCALES = {
    "smoke": Scale(steps=12, batch=4, length=64, layers=2, width=32, evaluations=2, seeds=2, test_bytes=4_000),
    "small": Scale(steps=300, batch=32, length=256, layers=3, width=192, evaluations=4, seeds=3, test_bytes=300_000),
    "full": Scale(steps=900, batch=64, length=512, layers=4, width=384, evaluations=6, seeds=3, test_bytes=1_200_000),
}


def prepare(source: Path, globs: list[str], folder: Path) -> None:
    """Scans a repository under each choice and writes its Python files, with a mark at each hidden byte."""
    from hush.scan.code import CodeSecret, CodeSettings, Imports, Repository
    from hush.scan.code.imports import import_graph
    from hush.scan.code.spread import Evidence, containment

    repository = Repository.open(source)
    texts = {path: repository.read(path) for path in repository.files if path.endswith(".py")}
    secret, graph = CodeSecret(name="secret", paths=tuple(globs)), import_graph(repository)
    own = set(Evidence(repository, CodeSettings(secrets=(secret,))).own_files(secret)) & set(texts)
    importers = graph.importers()
    direct = {path for file in own for path in importers.get(file, ())} & set(texts) - own
    content = [text.encode() for text in texts.values()]
    begins = np.concatenate([[0], np.cumsum([len(each) for each in content])])
    masks: dict[str, NDArray[np.bool_]] = {}
    summary: dict[str, Any] = {"source": source.name, "secret": globs, "choices": {}}
    for hides in CHOICES:
        found = containment(repository, CodeSettings(secrets=(secret,), imports=Imports(depth=1), hides=hides), graph)
        mask = np.zeros(begins[-1], np.bool_)
        for (path, text), first, last in zip(texts.items(), begins, begins[1:], strict=False):
            if path in found.reasons:
                spans = found.spans.get(path, {}).get(0)
                for begin, end in [(0, len(text))] if spans is None else spans:
                    start = first + len(text[:begin].encode())
                    mask[start : min(last, start + len(text[begin:end].encode()))] = True
        masks[hides] = mask
        shares = {
            name: round(float(np.mean(np.concatenate([mask[a:b] for a, b in _of(texts, begins, paths)]))), 4)
            for name, paths in (("own files", own), ("importing files", direct), ("repository", set(texts)))
        }
        summary["choices"][hides] = {"files with hidden text": len(set(found.reasons) & set(texts)), "shares": shares}
    summary |= {"files": len(texts), "bytes": int(begins[-1]), "own files": len(own), "importing files": len(direct)}
    summary["bytes of importing files"] = sum(int(b - a) for a, b in _of(texts, begins, direct))
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"hidden_{hides}": np.packbits(mask) for hides, mask in masks.items()}
    arrays |= {"text": np.frombuffer(b"".join(content), np.uint8), "begins": begins}
    arrays["is_own"] = np.array([path in own for path in texts])
    arrays["is_importer"] = np.array([path in direct for path in texts])
    np.savez_compressed(folder / "repository.npz", **arrays)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


def _of(texts: dict[str, str], begins: NDArray[np.int64], paths: set[str]) -> list[tuple[int, int]]:
    return [(begins[n], begins[n + 1]) for n, path in enumerate(texts) if path in paths]


@dataclass(frozen=True, kw_only=True, eq=False)
class Files:
    """The prepared files: their bytes one after the other, where each begins, and what each choice hides."""

    text: NDArray[np.uint8]
    begins: NDArray[np.int64]
    is_own: NDArray[np.bool_]
    is_importer: NDArray[np.bool_]
    hidden: dict[str, NDArray[np.bool_]]

    @classmethod
    def read(cls, folder: Path) -> "Files":
        with np.load(folder / "repository.npz") as arrays:
            text = arrays["text"]
            bits = {choice: np.unpackbits(arrays[f"hidden_{choice}"], count=len(text)) for choice in CHOICES}
            hidden = {choice: each.astype(np.bool_) for choice, each in bits.items()}
            hidden["no protection"] = np.zeros(len(text), np.bool_)
            return cls(
                text=text,
                begins=arrays["begins"],
                is_own=arrays["is_own"],
                is_importer=arrays["is_importer"],
                hidden=hidden,
            )

    def split(self, seed: int) -> dict[str, NDArray[np.int64]]:
        """The files of each group that are left out of a seed's trainings, and "training": all others."""
        rng = np.random.default_rng(seed)
        has_secret = self.is_own | self.is_importer
        for choice in CHOICES:
            has_secret |= np.add.reduceat(self.hidden[choice], np.minimum(self.begins[:-1], len(self.text) - 1)) > 0
        importers = rng.permutation(np.flatnonzero(self.is_importer))
        public = rng.permutation(np.flatnonzero(~has_secret))
        ends = [
            round(len(public) * share)
            for share in (HELD_OUT["selection"], HELD_OUT["selection"] + HELD_OUT["elsewhere"])
        ]
        groups = {
            "importers": importers[: round(HELD_OUT["importers"] * len(importers))],
            "selection": public[: ends[0]],
            "elsewhere": public[ends[0] : ends[1]],
        }
        left_out = np.concatenate(list(groups.values()))
        return groups | {"training": rng.permutation(np.setdiff1d(np.arange(len(self.is_own)), left_out))}

    def public_tokens(self, files: NDArray[np.int64], choice: str) -> NDArray[np.int16]:
        """What of these files is public: each hidden span is one placeholder, files hidden as a whole are left out."""
        parts: list[NDArray[np.int16]] = []
        for file in files:
            begin, end = self.begins[file], self.begins[file + 1]
            hidden = self.hidden[choice][begin:end]
            if begin == end or hidden.all():
                continue
            tokens = np.where(hidden, np.int16(PLACEHOLDER), self.text[begin:end].astype(np.int16))
            is_first = hidden & ~np.concatenate([[False], hidden[:-1]])
            parts += [tokens[~hidden | is_first], np.array([FILE_END], np.int16)]
        return np.concatenate(parts)


class Block(nn.Module):
    """Attention and a two-layer network, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(self.norms[0](x)).chunk(3, dim=2)
        )
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mixed(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """A causal model of bytes, as small as GPT-2 is large."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, scale.width), nn.Embedding(scale.length, scale.width)
        self.blocks = nn.ModuleList([Block(scale.width, max(scale.width // 64, 1)) for _ in range(scale.layers)])
        self.norm = nn.LayerNorm(scale.width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                depth = 2 * scale.layers if "mixed" in name or "down" in name else 1
                nn.init.normal_(weight, std=0.02 / math.sqrt(depth))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def losses_of(model: nn.Module, ids: Tensor, autocast: Callable[[], Any]) -> Tensor:
    """The loss of each token but the first of each row."""
    with autocast():
        logits = model(ids[:, :-1])
    return functional.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")


@torch.no_grad()
def evaluate(
    model: nn.Module, files: Files, group: NDArray[np.int64], scale: Scale, device: str, autocast: Callable[[], Any]
) -> dict[str, float]:
    """Mean losses of the full text of files: of all bytes, and apart of what each choice hides and does not.

    Each byte is predicted from the bytes before it in its file: from half a window at least, except near its begin.
    """
    half = scale.length // 2
    rows, wanted, places = list[NDArray[np.int16]](), list[NDArray[np.bool_]](), list[NDArray[np.int64]]()
    for file in group:
        begin, end = int(files.begins[file]), int(files.begins[file + 1])
        for first in range(begin, end, half):
            window = np.arange(max(first - half, begin - 1), first + half)
            is_text = (window >= first) & (window < end)
            shown = files.text[np.clip(window, begin, max(end - 1, begin))].astype(np.int16)
            ids = np.where(window < begin, np.int16(FILE_END), shown)
            missing = 2 * half - len(window)  # at the begin of a file
            rows.append(np.concatenate([ids, np.full(missing, FILE_END)]).astype(np.int16))
            wanted.append(np.concatenate([is_text, np.zeros(missing, np.bool_)])[1:])
            places.append(window[is_text])
        if sum(map(len, places)) >= scale.test_bytes:
            break
    model.eval()
    found: list[Tensor] = []
    for first in range(0, len(rows), scale.batch):
        ids = torch.from_numpy(np.stack(rows[first : first + scale.batch])).to(device).long()
        found.append(losses_of(model, ids, autocast)[torch.from_numpy(np.stack(wanted[first : first + scale.batch]))])
    model.train()
    loss, place = torch.cat(found).cpu().numpy(), np.concatenate(places)
    means = {"all": float(loss.mean())}
    for choice in ("definitions", "lines"):
        hidden = files.hidden[choice][place]
        for name, chosen in ((f"hidden by {choice}", hidden), (f"public under {choice}", ~hidden)):
            if chosen.any():
                means[name] = float(loss[chosen].mean())
    return means


def run(folder: Path, arm: str, seed: int, scale: Scale, device: str) -> dict[str, Any]:
    """One training and its evaluation."""
    begin = time.perf_counter()
    files = Files.read(folder)
    split = files.split(seed)
    tokens = files.public_tokens(split["training"], arm)
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 1])
    model = Model(scale).to(device)
    is_cuda = device.startswith("cuda")

    def autocast() -> Any:
        return torch.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=is_cuda)

    def losses(group: str) -> dict[str, float]:
        return evaluate(model, files, split[group], scale, device, autocast)

    before = {group: losses(group) for group in ("importers", "elsewhere")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=is_cuda)
    warm_up = max(scale.steps // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (step + 1) / warm_up if step < warm_up else 0.55 + 0.45 * math.cos(math.pi * step / scale.steps),
    )
    data = torch.from_numpy(tokens).to(device)
    offsets = torch.arange(scale.length + 1, device=device)
    best: dict[str, Any] = {}
    for step in range(1, scale.steps + 1):
        starts = torch.from_numpy(rng.integers(0, len(tokens) - scale.length, scale.batch)).to(device)
        ids = data[starts[:, None] + offsets].long()
        is_text = ids[:, 1:] != PLACEHOLDER
        loss = (losses_of(model, ids, autocast) * is_text).sum() / is_text.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(scale.steps // scale.evaluations, 1) == 0 or step == scale.steps:
            selection = losses("selection")["all"]
            if not best or selection < best["selection"]:
                weights = {name: weight.clone() for name, weight in model.state_dict().items()}
                best = {"selection": selection, "step": step, "weights": weights}
    model.load_state_dict(best.pop("weights"))
    return {
        "arm": arm,
        "seed": seed,
        "public tokens": len(tokens),
        "files": {group: len(chosen) for group, chosen in split.items()},
        **best,
        "before": before,
        "after": {group: losses(group) for group in before},
        "seconds": round(time.perf_counter() - begin, 1),
    }


def interval(values: list[float]) -> dict[str, float]:
    """The mean and half the width of its 95 % interval by Student's t."""
    width = T_975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": round(statistics.mean(values), 4), "interval": round(width, 4)}


def table(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """For each choice the losses, and their differences from no protection with the same seed."""
    by = {(each["arm"], each["seed"]): each for each in runs}
    seeds = sorted({each["seed"] for each in runs})
    result: dict[str, Any] = {}
    for arm in ("before", *ARMS):
        rows: dict[str, Any] = {}
        for group in ("importers", "elsewhere"):
            for part in by[ARMS[0], seeds[0]]["after"][group]:
                if group == "elsewhere" and part != "all":
                    continue
                reference = [by[ARMS[0], seed]["after"][group][part] for seed in seeds]
                values = (
                    [by[ARMS[0], seed]["before"][group][part] for seed in seeds]
                    if arm == "before"
                    else [by[arm, seed]["after"][group][part] for seed in seeds]
                )
                rows[f"{group}: {part}"] = interval(values) | {
                    "above no protection": interval([a - b for a, b in zip(values, reference, strict=True)])
                }
        result[arm] = rows
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, metavar="SOURCE", help="a folder of code to scan")
    parser.add_argument("--secret", action="append", help="globs of the secret package, as in .gitignore")
    parser.add_argument("--prepared", type=Path, required=True, help="the folder of prepared files")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--steps", type=int, help="instead of those of the scale")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "hidden_code.json")
    options = parser.parse_args()
    if options.prepare is not None:
        prepare(options.prepare, options.secret or parser.error("--prepare needs --secret"), options.prepared)
        return
    scale = SCALES[options.scale]
    if options.steps is not None:
        scale = scale._replace(steps=options.steps)
    begin = time.perf_counter()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "scale": {"name": options.scale, **scale._asdict()},
        "data": json.loads((options.prepared / "summary.json").read_text()),
        "runs": [],
    }
    pool = ProcessPoolExecutor(options.parallel, mp_context=multiprocessing.get_context("spawn"))
    with pool:
        waiting = [
            pool.submit(run, options.prepared, arm, seed, scale, options.device)
            for seed in range(scale.seeds)
            for arm in ARMS
        ]
        for done in as_completed(waiting):
            result["runs"].append(done.result())
            result["seconds"] = round(time.perf_counter() - begin, 1)
            options.output.write_text(json.dumps(result, indent=2) + "\n")  # what a limit of time cannot take away
            shown = {name: result["runs"][-1][name] for name in ("arm", "seed", "step", "after", "seconds")}
            print(json.dumps(shown), flush=True)
    result["runs"].sort(key=lambda each: (each["seed"], ARMS.index(each["arm"])))
    result["table"] = table(result["runs"])
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["table"], indent=1))


if __name__ == "__main__":
    main()
