r"""What counts as a word: tokenisation, stated exactly and compiled; first step of the words rule.

A word is a run of letters, or several such runs with exactly one joiner between them; everything else only separates.

- ``letters="ascii"``: letters are a to z and A to Z. With ``lower``, the words of a text are exactly
  ``re.findall(r"[a-z]+(?:[-'][a-z]+)*", re.sub(r"\$[^$]*\$", " ", text.lower()))``. As ``str.lower`` has it, the Kelvin
  sign (U+212A) is a k, and İ (U+0130) an i with a separator behind it.
- ``letters="unicode"``: letters are the code points of which ``str.isalpha`` is true, each with the combining marks
  that follow it. A word with é as two characters is another than with é as one, so texts are best composed (NFC)
  beforehand. With ``lower`` each code point is replaced by its own lower case where that is one character: İ stays, and
  Σ becomes σ also at the end of a word.
- ``skip_formulas``: from a dollar sign to the next one, both included, nothing is a word; a last one without partner
  only separates.
"""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.scan.finders.characters import folded, token_table
from hush.scan.finders.utf8 import bytes_of, strings_of

__all__ = ["Tokens"]


@final
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How texts are cut into words.

    >>> Tokens().words("The state-of-the-art $x^2$ isn't Caf\u00e9-'s")
    ['the', 'state-of-the-art', "isn't", 'caf', 's']
    >>> Tokens(letters="unicode", lower=False, joiners="", skip_formulas=False).words("Caf\u00e9 $x^2$ isn't")
    ['Café', 'x', 'isn', 't']
    """

    letters: Literal["ascii", "unicode"] = "ascii"
    lower: bool = True
    joiners: str = "-'"
    skip_formulas: bool = True

    def __post_init__(self) -> None:
        if self.letters not in ("ascii", "unicode"):
            raise InvalidInput(f"letters={self.letters!r} names no set of letters; pass 'ascii' or 'unicode'")
        for index, joiner in enumerate(self.joiners):
            if joiner.isalpha() or (joiner == "$" and self.skip_formulas) or folded(joiner) != joiner:
                raise InvalidInput(
                    f"joiners: entry {index} is a letter, has a lower case, or is the dollar sign around formulas; "
                    "pass signs that only stand between letters, such as -'"
                )

    @property
    def table(self) -> NDArray[np.uint32]:
        """What each code point does, for the compiled loops."""
        return token_table(self.letters, self.lower, self.joiners, self.skip_formulas)

    def words(self, text: str) -> list[str]:
        """The words of one text, in order and with repetitions; to look at, since blocks are read without it."""
        from hush.scan.finders.token_kernels import split_words

        data, offset_N = bytes_of(pa.array([text], pa.large_string()))
        return strings_of(*split_words(data, offset_N, self.table)).to_pylist()
