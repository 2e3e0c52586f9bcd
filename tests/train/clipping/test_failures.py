"""Exceptions of the model: clipping names their type and place, never what they say about an example."""

import traceback

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.clipping.failures import described

SECRET = "4711.25"  # the value of an example


class Telling(nn.Module):
    """Fails on some batches, with the values of an example in the message."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.out = case, nn.Linear(3, 1)
        if case == "under vmap":
            self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.case == "more examples" and len(x) > 2:
            raise ValueError(f"cannot work with {x[0, 0].item()} and its neighbours")
        if self.case == "under vmap":
            if is_batchedtensor(x):  # as a check that reads a value
                raise ValueError(f"{SECRET} cannot be read here")
            x = x * self.gain
        return self.out(x).squeeze(-1)


def clip(case: str) -> None:
    torch.manual_seed(0)
    model = Telling(case)
    clipper = Clipper(model, loss=lambda model, batch: model(batch["x"]).square(), clip_norm=1.0)
    clipper.accumulate({"x": torch.full((2, 3), float(SECRET))}, torch.ones(2, dtype=torch.bool))


def test_a_loss_that_fails_for_more_examples_is_refused_without_what_it_said() -> None:
    with pytest.raises(InvalidInput, match=r"fails for 3 \(ValueError at line \d+ of test_failures") as e:
        clip("more examples")
    assert SECRET not in "".join(traceback.format_exception(e.value))
    assert SECRET in str(e.value.__context__)  # where the owner finds it


def test_a_module_that_fails_for_single_examples_is_named_without_what_it_said() -> None:
    with pytest.warns(UserWarning, match=r"torch\.vmap, which fails \(ValueError at line \d+ of test_failures") as said:
        clip("under vmap")
    assert not any(SECRET in str(warning.message) for warning in said)


@given(message=st.text(max_size=60))
def test_no_message_is_repeated(message: str) -> None:
    with pytest.raises(RuntimeError) as found:
        raise RuntimeError(message)
    line = found.tb.tb_lineno
    assert described(found.value) == f"RuntimeError at line {line} of test_failures.py, in test_no_message_is_repeated"


KNOWN = {
    "vmap: It looks like you're calling .item() on a Tensor. 4711": "calling .item() on a Tensor",
    "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1": "dimension 1",
    "shape '[2, -1]' is invalid for input of size 9": "input of size 9",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)": "(2x3 and 4x5)",
}


@pytest.mark.parametrize("message", KNOWN)
def test_what_torch_says_about_shapes_and_transforms_is_shown(message: str) -> None:
    assert described(RuntimeError(message)).endswith(KNOWN[message])
    assert "4711" not in described(RuntimeError(message))


def test_torchs_own_errors_name_no_index() -> None:
    with pytest.raises(IndexError, match="4711") as found:
        torch.zeros(3)[4711]
    assert "4711" not in described(found.value)
