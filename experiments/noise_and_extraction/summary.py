"""Tables from the runs alone: losses, extracted and memorised fractions, and the kinds of what still comes out.

A sequence is extracted if greedy decoding says all of its continuation, and memorised if it is extracted and the
reference of its size and seed, which never saw it, does not say it: what both say is generalisation.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from experiments.noise_and_extraction.kinds import KINDS
from experiments.runs import RunLog
from hush.audit.statistics import excess_over_reference

__all__ = ["Row", "Summary"]

Row = dict[str, Any]
LEVEL = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Summary:
    """The settings (about.json) and finished runs (runs.jsonl) of one results folder."""

    about: dict[str, Any]
    entries: Sequence[dict[str, Any]]

    @classmethod
    def load(cls, results: Path) -> Self:
        about = json.loads((results / "about.json").read_text())
        settings, entries = about["settings"], RunLog(results / "runs.jsonl").entries()
        same = {"rounds": settings["rounds"], "batch": settings["batch"]}
        asked = {size["name"]: {**same, "learning_rate": size["learning_rate"]} for size in settings["sizes"]}
        place = {name: number for number, name in enumerate(asked)}
        # Runs with other settings than these are no further seeds of them.
        known = [
            entry
            for entry in entries
            if entry["key"]["size"] in asked and asked[entry["key"]["size"]].items() <= entry["key"].items()
        ]
        known.sort(key=lambda entry: (place[entry["key"]["size"]], entry["key"]["noise_multiplier"]))
        return cls(about=about, entries=known)

    @property
    def shown(self) -> tuple[int, int]:
        """The prompt and continuation of the main figure."""
        prompt, continuation = self.about["settings"]["shown"]
        return prompt, continuation

    def losses(self) -> list[Row]:
        """One row for each run, references included."""
        names = ("parameters", "validation_loss", "training_loss", "clipped_share", "training_seconds")
        return [
            {
                "size": entry["key"]["size"],
                "planted": entry["key"]["planted"],
                "noise_multiplier": entry["key"]["noise_multiplier"],
                "seed": entry["key"]["seed"],
                **{name: entry["outcome"][name] for name in names},
            }
            for entry in self.entries
        ]

    def fractions(self) -> list[Row]:
        """One row for each run, prompt, continuation and number of repetitions; limits are of the difference.

        Only runs whose reference is done: without it nothing can be said of memory.
        """
        settings = self.about["settings"]
        repetitions_N = np.array(self.about["prompted"]["repetitions"])
        rows: list[Row] = []
        for entry, reference in self._pairs():
            for prompt in settings["prompts"]:
                for continuation in settings["continuations"]:
                    hit_N, anyway_N = (self._hits(one, prompt, continuation) for one in (entry, reference))
                    for times in np.unique(repetitions_N).tolist():
                        of_N = repetitions_N == times
                        excess = excess_over_reference(hit_N[of_N], anyway_N[of_N], level=LEVEL)
                        rows.append(
                            {
                                **_named(entry["key"]),
                                "prompt": prompt,
                                "continuation": continuation,
                                "repetitions": times,
                                "sequences": int(of_N.sum()),
                                "extracted": int(hit_N[of_N].sum()),
                                "also_by_reference": int((hit_N & anyway_N)[of_N].sum()),
                                "memorised": int((hit_N & ~anyway_N)[of_N].sum()),
                                "excess": round(excess.difference, 4),
                                "lower": round(excess.lower, 4),
                                "upper": round(excess.upper, 4),
                            }
                        )
        return rows

    def remaining(self) -> list[Row]:
        """Of the shown lengths: what kinds of planted sequences come out of each run, and of its reference too."""
        kind_N = np.array(self.about["prompted"]["kinds"])
        planted_N = np.array(self.about["prompted"]["repetitions"]) > 0
        rows: list[Row] = []
        for entry, reference in self._pairs():
            hit_N, anyway_N = (self._hits(one, *self.shown) for one in (entry, reference))
            for kind in KINDS:
                of_N = planted_N & (kind_N == kind)
                rows.append(
                    {
                        **_named(entry["key"]),
                        "kind": kind,
                        "sequences": int(of_N.sum()),
                        "extracted": int((hit_N & of_N).sum()),
                        "also_by_reference": int((hit_N & anyway_N & of_N).sum()),
                    }
                )
        return rows

    def extracted(self, size: str, noise_multiplier: float, seed: int = 0) -> list[tuple[int, bool]]:
        """The planted sequences that come out of one run at the shown lengths; whether the reference says them too."""
        wanted = {"size": size, "noise_multiplier": noise_multiplier, "seed": seed}
        planted_N = np.array(self.about["prompted"]["repetitions"]) > 0
        for entry, reference in self._pairs():
            if _named(entry["key"]) == wanted:
                hit_N, anyway_N = (self._hits(one, *self.shown) for one in (entry, reference))
                return [(int(place), bool(anyway_N[place])) for place in np.flatnonzero(hit_N & planted_N)]
        return []

    def _pairs(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Runs on the planted sequences, each with the reference of its size and seed."""
        references = {
            (entry["key"]["size"], entry["key"]["seed"]): entry for entry in self.entries if not entry["key"]["planted"]
        }
        for entry in self.entries:
            place = entry["key"]["size"], entry["key"]["seed"]
            if entry["key"]["planted"] and place in references:
                yield entry, references[place]

    def _hits(self, entry: Mapping[str, Any], prompt: int, continuation: int) -> NDArray[np.bool_]:
        hit_N = np.zeros(len(self.about["prompted"]["repetitions"]), dtype=bool)
        for place, count in entry["outcome"]["matched"][str(prompt)]:
            hit_N[place] = count >= continuation
        return hit_N


def _named(key: Mapping[str, Any]) -> Row:
    return {name: key[name] for name in ("size", "noise_multiplier", "seed")}
