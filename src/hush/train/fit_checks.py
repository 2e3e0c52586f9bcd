"""Refusals of ``fit``: another corpus than the plan's, a key that cannot tell, processes that were given different.

And those of a model or a device that does not fit, which are asked for before anything long begins.
"""

from hashlib import blake2b
from typing import Any

import torch

from hush.corpus import Corpus
from hush.errors import InvalidInput
from hush.keyed import DataKey, key_id_of
from hush.plan import Plan
from hush.plan.invariants import fingerprint
from hush.train.collate import Corpus as Tokens
from hush.train.distributed import Ranks
from hush.train.pretrained import unloaded
from hush.train.recipe import Recipe

__all__ = ["check_alike", "check_fits", "check_key", "check_rows", "usable_device"]


def check_rows(plan: Plan, corpus: Corpus) -> None:
    """Whether the data have as many rows as the plan has examples."""
    if len(corpus) != plan.incidence.num_examples:
        raise InvalidInput(
            f"{corpus.source} has {len(corpus)} rows but the plan {plan.incidence.num_examples} examples; pass the "
            "data that the plan was made for, or scan and plan again"
        )


def check_key(plan: Plan, key: DataKey | None, *, unchecked_data: bool) -> None:
    """Whether the plan says which data it is for, and whether this key can tell."""
    if plan.data_fingerprint is None:
        if not unchecked_data:
            raise InvalidInput(
                "the plan does not say which data it was made for; make it again with hush plan --data --key, or pass "
                "--unchecked-data, and the certificate will be marked"
            )
        return
    if unchecked_data:
        raise InvalidInput("the plan says which data it was made for, and it will be checked; drop --unchecked-data")
    if key is None:
        raise InvalidInput("the plan names its data by a keyed fingerprint; pass the key that it was made with: --key")
    if key.id != key_id_of(plan.data_fingerprint):
        raise InvalidInput(
            f"this key is {key.id}, but the plan's fingerprint was made with {key_id_of(plan.data_fingerprint)}; pass "
            "that key, or plan again with this one"
        )


def check_fits(recipe: Recipe) -> None:
    """Whether the recipe fits its model: all that can be told from files that are small."""
    pretrained = unloaded(recipe.model, task=recipe.task, max_length=recipe.max_length)
    if recipe.lora is not None:
        pretrained.with_lora(recipe.lora)


def usable_device(name: str | None) -> torch.device:
    """The device of this name; by default a GPU, if there is one."""
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(chosen)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(f"--device={chosen} cannot be used here ({str(error).splitlines()[0]})") from error
    return device


def check_alike(ranks: Ranks, plan: Plan, tokens: Tokens, *, settings: Any) -> None:
    """Refuse processes that would not train the same: each reads plan and data for itself, maybe on other machines."""
    digest = blake2b(digest_size=32)
    for row in range(len(tokens)):
        digest.update(tokens[row]["input_ids"].tobytes() + b"end")
    numbers = (plan.rounds, plan.batch_size, plan.clip_norm, plan.training_noise_multiplier, plan.data_fingerprint)
    mine = {
        "plan": (*numbers, plan.incidence.fingerprint, fingerprint(b"hush rates 1\n", plan.rates)),
        "settings": settings,
        "tokens": digest.hexdigest(),
    }
    found = ranks.gather(mine)
    for rank, theirs in enumerate(found):
        differ = [name for name in mine if theirs[name] != found[0][name]]
        if differ:
            raise InvalidInput(
                f"process {rank} has other {differ[0]} than the first one; give all of them the same plan, options, "
                "data and model"
            )
