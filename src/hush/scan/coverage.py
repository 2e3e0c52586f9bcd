"""What of the text is secret: the spans of rules that hide spans, and the share of characters under each choice.

A pair of example and secret is covered by spans if its rule hides spans and every hit of the pair has one. Pairs that
only copies add have none. An example with a pair that is not covered is secret as a whole.
Shapes: N examples, S secrets by their provisional numbers, H hits, R rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hush.incidence import Incidence
from hush.scan.collect import Collector
from hush.scan.hits import PreparedRule
from hush.scan.reasons import RuleText, SecretText
from hush.slots import Spans, slots_of_spans

__all__ = ["FoundSpans"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FoundSpans:
    """All hits of secrets, column by column: example, rule, public number of the secret, begin and end (-1: none)."""

    example_H: NDArray[np.int64]
    rule_H: NDArray[np.int64]
    secret_H: NDArray[np.int64]
    begin_H: NDArray[np.int64]
    end_H: NDArray[np.int64]

    @classmethod
    def of(cls, collector: Collector, public_number_S: NDArray[np.int64]) -> Self:
        """The collected hits, without those of texts that were set aside (public number -1)."""
        offset_R = collector.offsets()
        parts = [np.empty((5, 0), dtype=np.int64)]
        for batch in collector.hits():
            columns = {name: batch.column(name).to_numpy().astype(np.int64) for name in batch.schema.names[:3]}
            secret_H = public_number_S[offset_R[columns["rule"]] + columns["number"]]
            spans = [batch.column(name).to_numpy() for name in ("begin", "end")]
            parts.append(np.stack([columns["example"], columns["rule"], secret_H, *spans])[:, secret_H >= 0])
        example_H, rule_H, secret_H, begin_H, end_H = np.concatenate(parts, axis=1)
        return cls(example_H=example_H, rule_H=rule_H, secret_H=secret_H, begin_H=begin_H, end_H=end_H)

    def spans(self, rules: Sequence[PreparedRule], incidence: Incidence) -> Spans:
        """The slots of all examples whose pairs are covered by spans."""
        hides_spans_R = np.array([rule.hides_spans for rule in rules], dtype=np.bool_)
        names = [rule.name for rule in rules if rule.hides_spans]
        if not names:
            return Spans.none(incidence)
        number_R = np.cumsum(hides_spans_R) - 1
        pair_H = self.example_H * incidence.num_secrets + self.secret_H
        covered_H = hides_spans_R[self.rule_H] & ~np.isin(pair_H, pair_H[self.begin_H < 0])
        spans = slots_of_spans(
            incidence,
            names,
            example=self.example_H[covered_H],
            begin=self.begin_H[covered_H],
            end=self.end_H[covered_H],
            rule=number_R[self.rule_H[covered_H]],
            secret=self.secret_H[covered_H],
        )
        return spans if len(spans.slots) else Spans.none(incidence)

    def secret_text(
        self, rules: Sequence[PreparedRule], incidence: Incidence, spans: Spans, characters_N: NDArray[np.int64]
    ) -> SecretText:
        """How much text is secret, by rule and in all."""
        rule_of_secret = np.zeros(incidence.num_secrets, dtype=np.int64)
        rule_of_secret[self.secret_H] = self.rule_H
        rule_E = np.repeat(rule_of_secret, incidence.examples_per_secret)  # of each pair of the graph
        secret_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
        pair_E = incidence.example_of_entry.astype(np.int64) * incidence.num_secrets + secret_E
        with_span_H = self.begin_H >= 0
        pair_H = self.example_H * incidence.num_secrets + self.secret_H
        bare_E = ~np.isin(pair_E, pair_H[with_span_H]) | np.isin(pair_E, pair_H[~with_span_H])
        rows: list[RuleText] = []
        for index, rule in enumerate(rules):
            of_rule_E = rule_E == index
            contains_N, whole_N = (
                np.bincount(incidence.example_of_entry[chosen_E], minlength=len(characters_N)) > 0
                for chosen_E in (of_rule_E, of_rule_E & bare_E)
            )
            chosen_H = with_span_H & (self.rule_H == index) & ~whole_N[self.example_H]
            in_spans = _covered(self.example_H[chosen_H], self.begin_H[chosen_H], self.end_H[chosen_H])
            rows.append(
                RuleText(
                    rule=rule.name,
                    find=rule.find,
                    hides="span" if rule.hides_spans else "example",
                    example=int(characters_N[contains_N].sum()),
                    span=int(characters_N[whole_N].sum()) + in_spans,
                )
            )
        whole = int(characters_N[spans.slots.whole_examples(incidence)].sum())
        secret = whole + int((spans.end_L - spans.begin_L).sum())
        return SecretText(characters=int(characters_N.sum()), secret=secret, rules=tuple(rows))

    def __repr__(self) -> str:
        return f"FoundSpans({len(self.example_H)} hits)"


def _covered(example_H: NDArray[np.int64], begin_H: NDArray[np.int64], end_H: NDArray[np.int64]) -> int:
    """The number of characters in the union of these spans."""
    order_H = np.lexsort((begin_H, example_H))
    stride = int(end_H.max(initial=0)) + 1
    first_H = (example_H * stride + begin_H)[order_H]
    last_H = (example_H * stride + end_H)[order_H]
    reach_H = np.append(0, np.maximum.accumulate(last_H))[:-1]
    return int(np.maximum(last_H - np.maximum(first_H, reach_H), 0).sum())
