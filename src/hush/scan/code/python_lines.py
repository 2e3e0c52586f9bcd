r"""The lines of a Python file as Python counts them: physical lines, logical lines and comments, with their characters.

Python ends a line after "\n", "\r\n" and "\r". A logical line is a statement, or the head of a compound one; several
simple statements on one line are one logical line. Line numbers begin at 1.
"""

import ast
import re
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self, final

__all__ = ["PythonLines"]


_LINE_END = re.compile(r"\r\n|\r|\n")


@final
@dataclass(frozen=True, eq=False, repr=False)
class PythonLines:
    """starts, ends: the characters of each physical line without its end. logical: first and last physical line of each
    logical line. comment_spans: the characters of each comment. comment_lines: lines with nothing but a comment, each
    with the comment's span.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    logical: tuple[tuple[int, int], ...]
    comment_spans: tuple[tuple[int, int], ...]
    comment_lines: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, text: str) -> Self:
        """The lines of a valid Python file; SyntaxError if it cannot be read token by token."""
        first = len(text) - len(text.removeprefix("\ufeff"))
        breaks = list(_LINE_END.finditer(text))
        starts = (first, *(each.end() for each in breaks))
        ends = (*(each.start() for each in breaks), len(text))
        source = iter([text[begin:end] + "\n" for begin, end in zip(starts, ends, strict=True)])
        logical: list[tuple[int, int]] = []
        comment_spans: list[tuple[int, int]] = []
        comment_lines: dict[int, tuple[int, int]] = {}
        open_line: int | None = None
        try:
            for token in tokenize.generate_tokens(lambda: next(source, "")):
                line, column = token.start
                if token.type == tokenize.COMMENT:
                    span = (starts[line - 1] + column, starts[line - 1] + token.end[1])
                    comment_spans.append(span)
                    if not text[starts[line - 1] : span[0]].strip():
                        comment_lines[line] = span
                elif token.type == tokenize.NEWLINE:
                    if open_line is not None:
                        logical.append((open_line, line))
                    open_line = None
                elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
                    open_line = line if open_line is None else open_line
        except (tokenize.TokenError, IndentationError) as error:
            raise SyntaxError("Python cannot read the tokens of this file") from error
        return cls(text, starts, ends, tuple(logical), tuple(comment_spans), comment_lines)

    def logical_at(self, line: int) -> int:
        """The number of the logical line that has this physical line."""
        return max(bisect_right(self.logical, (line, len(self.starts) + 1)) - 1, 0)

    def logical_between(self, first: int, last: int) -> range:
        """The numbers of the logical lines from one physical line to another."""
        return range(self.logical_at(first), self.logical_at(last) + 1)

    def spans(self, chosen: Iterable[int], *, above: bool = True) -> list[tuple[int, int]]:
        """The characters of logical lines, with the comment lines right above if so asked; neighbours become one."""
        spans: list[tuple[int, int]] = []
        numbers = sorted(chosen)
        previous: int | None = None
        for number in numbers:
            first, last = self.logical[number]
            end = self._trimmed_end(last)
            if previous is not None and previous == number - 1:
                spans[-1] = (spans[-1][0], end)
            else:
                while above and first - 1 in self.comment_lines:
                    first -= 1
                begin = self.starts[first - 1]
                while begin < end and self.text[begin] in " \t\f":
                    begin += 1
                spans.append((begin, end))
            previous = number
        return [(begin, end) for begin, end in spans if begin < end]

    def _trimmed_end(self, line: int) -> int:
        begin, end = self.starts[line - 1], self.ends[line - 1]
        return begin + len(self.text[begin:end].rstrip())

    def span_of(self, node: ast.AST) -> tuple[int, int]:
        """The characters of a node, whose columns count bytes."""
        line, column, last, end = (getattr(node, f"{name}_offset" if "col" in name else name)
                                   for name in ("lineno", "col", "end_lineno", "end_col"))  # fmt: skip
        return self._character(line, column), self._character(last, end)

    def _character(self, line: int, column: int) -> int:
        begin, end = self.starts[line - 1], self.ends[line - 1]
        return begin + len(self.text[begin:end].encode()[:column].decode())

    def comments(self, is_hidden: Callable[[str], bool]) -> list[tuple[int, int]]:
        """The spans of the comments whose text is to be hidden."""
        return [(begin, end) for begin, end in self.comment_spans if is_hidden(self.text[begin:end])]
