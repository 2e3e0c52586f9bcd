"""What is hidden, shown as boxes in a few texts: for the owner's report only.

The texts around the boxes are skeletons. The model learns them without noise, but they are the owner's data all the
same and are not published. A box shows the name of the rule that found the secret, and the secret itself only if the
owner asks for the texts of secrets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from hush.numbers import counted
from hush.report.markup import shown
from hush.report.page import Section
from hush.slots import Spans

__all__ = ["HiddenExample", "hidden_examples", "hidden_section"]


NUM_SHOWN = 3  # examples
MAX_CHARACTERS = 1200  # of a shown text; the rest is left out


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenExample:
    """One example cut at its slots. parts: text and, for a slot, the name of its rule; None for public text."""

    example: int
    parts: tuple[tuple[str, str | None], ...] = field(repr=False)


def hidden_examples(spans: Spans, texts: Iterable[str], number: int = NUM_SHOWN) -> tuple[HiddenExample, ...]:
    """The first examples with slots, cut at their slots. texts: of all examples, in order; read as far as needed."""
    chosen = spans.slots.has_slots_N.nonzero()[0][:number].tolist()
    found: list[HiddenExample] = []
    for example, text in enumerate(texts):
        if len(found) == len(chosen):
            break
        if example == chosen[len(found)]:
            found.append(HiddenExample(example=example, parts=_parts(spans, example, text)))
    return tuple(found)


def _parts(spans: Spans, example: int, text: str) -> tuple[tuple[str, str | None], ...]:
    parts, done = list[tuple[str, str | None]](), 0
    for slot, (begin, end) in zip(spans.slots.of_example(example), spans.of_example(example), strict=True):
        rule = spans.slots.rules[int(spans.slots.rule_L[slot])]
        parts += [(text[done:begin], None), (text[begin:end], rule)]
        done = end
    return tuple(part for part in (*parts, (text[done:], None)) if part[0])


def hidden_section(examples: Sequence[HiddenExample], *, show_text: bool) -> Section:
    """The section of the owner's report that shows these examples."""
    figures = "".join(_figure(example, show_text=show_text) for example in examples)
    html = (
        "<p>The promise covers what is in the boxes, given everything outside them. Text outside the boxes is learnt "
        "without noise and may be extracted from the model. A text without a secret has no box; a text that is secret "
        "as a whole is not shown here.</p>\n" + figures
    )
    return Section(name="hidden", link="Hidden", title="What is hidden", html=html)


def _figure(example: HiddenExample, *, show_text: bool) -> str:
    left, boxes, html = MAX_CHARACTERS, 0, ""
    for text, rule in example.parts:
        if left <= 0:
            html += " …"
            break
        if rule is None:
            html += _lines(text[:left])
            left -= len(text)
        else:
            inside = text if show_text else rule
            html += f'<span class="slot" title="rule {shown(rule)}">{_lines(inside)}</span>'
            boxes += 1
            left -= len(inside)
    caption = f"Example {example.example:,}, {counted(boxes, 'box', 'boxes')}"
    return f'<figure class="hidden"><blockquote>{html}</blockquote><figcaption>{caption}</figcaption></figure>\n'


def _lines(text: str) -> str:
    """Escaped text that keeps its line breaks and tabs as white space."""
    return "\n".join(shown(line.replace("\t", "    ")) for line in text.split("\n"))
