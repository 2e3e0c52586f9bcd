"""What a message may say about an exception of the model: its type, where it was raised, and known words of torch.

A model may put anything into the message of an exception, also values of the private example that it failed on, and
torch itself names the index that is out of range. So no message of hush repeats another's. Sentences of torch that
consist of fixed words and of sizes of tensors are shown, since they tell what to change. The owner finds the exception
itself in ``__context__`` of the error that hush raises in its place; tracebacks leave it out.
"""

import re
from pathlib import Path
from types import FrameType

import torch

__all__ = ["described"]

_SIZES = r"[\[(][\d, x]*[\])]"
# Fixed words, names of operators and sizes: nothing that depends on the values of a tensor.
_KNOWN = re.compile(
    "|".join(
        (
            r"vmap: It looks like you're calling \.item\(\) on a Tensor",
            r"vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow",
            r"vmap: We do not support batching operators that can output dynamic shape\. Attempted to vmap over "
            r"aten::[a-z_]{1,40}",
            r"vmap: inplace arithmetic\(self, \*extra_args\) is not possible",
            r"vmap: called random operation while in randomness error mode",
            r"Cannot access data pointer of Tensor that doesn't have storage",
            r"In order to use an autograd\.Function with functorch transforms",
            rf"The expanded size of the tensor {_SIZES} must match the existing size {_SIZES} at non-singleton "
            rf"dimension \d+\. +Target sizes: {_SIZES}\. +Tensor sizes: {_SIZES}",
            rf"The size of tensor a {_SIZES} must match the size of tensor b {_SIZES} at non-singleton dimension \d+",
            r"shape '\[[-\d, ]*\]' is invalid for input of size \d+",
            r"mat1 and mat2 shapes cannot be multiplied \(\d+x\d+ and \d+x\d+\)",
            r"Sizes of tensors must match except in dimension \d+",
            r"index out of range in self",
        )
    )
)
_TORCH = Path(torch.__file__).parent
_HUSH = Path(__file__).parents[2]


def described(error: BaseException) -> str:
    """Type and place of an exception, with what torch says about shapes and transforms; nothing of the data.

    >>> try:
    ...     raise ValueError("patient 4711")
    ... except ValueError as error:
    ...     print(described(error).partition(" at ")[0])
    ValueError
    """
    said = _KNOWN.match(str(error).strip())
    return f"{type(error).__name__}{_place(error)}{f': {said[0]}' if said else ''}"


def _place(error: BaseException) -> str:
    """Where the exception left the model: the innermost line of code that is neither torch's nor hush's."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            found = trace
        trace = trace.tb_next
    if found is None:
        return ""
    code = found.tb_frame.f_code
    return f" at line {found.tb_lineno} of {Path(code.co_filename).name}, in {code.co_name}"


def _is_ours(frame: FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return path.is_relative_to(_TORCH) or path.is_relative_to(_HUSH)
