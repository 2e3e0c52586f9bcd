"""What a run would refuse in hours is refused before its first stage, as far as small files and first rows tell.

A stage checks its own inputs all the same: between this and the stage they may have changed.

Names of models on the hub, before they are loaded: where nobody can be asked, loading tries for half a minute.

Errors of a run in the words of its config: the stages speak of options of the commands that they stand for.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from hush.data import read_corpus
from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput
from hush.run.config import BASE_MODEL, Config
from hush.run.stage_train import check_libraries, recipe_of, runtime_of

__all__ = ["check_beforehand", "check_reachable", "in_words_of_config"]


def check_reachable(name: str) -> None:
    """Refuse a model that is neither here nor in the cache where the hub's address cannot be looked up.

    Behind a proxy nothing is looked up here; and told to stay offline, the libraries refuse at once by themselves.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    proxies = getproxies().keys() - {"no"}
    if Path(name).is_dir() or constants.HF_HUB_OFFLINE or proxies:
        return
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
    except HFValidationError:  # such as a folder's name with a space in it, misspelt
        raise InvalidInput(f"{name} is no folder here, and the hub has no such names; check the path") from None
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror:
        raise InvalidInput(
            f"{name} is no folder here and not in the cache, and the hub cannot be asked: the address of {host} is not "
            "known; check the name and the network, or pass a folder"
        ) from None


def check_beforehand(config: Config) -> None:
    """Refuse data, rules, a model, a device or an audit that some stage would refuse.

    Not looked at: data on the hub, which would be fetched, and code, whose reading is most of its scan.
    """
    check_libraries()
    _check_data(config)
    _check_training(config)
    _check_audit(config)


def _check_data(config: Config) -> None:
    """Rules that cannot be prepared, a column that is not there, files of which nobody knows how to read them."""
    if config.rules.about_code:
        return
    from hush.scan.scanner import prepare

    data, ready = config.data, prepare(config.rules)
    if _is_here(config.source):
        corpus = read_corpus(config.source, column=data.column, unit=data.unit)
        asked = [column for rule in ready.rules for column in rule.finder.columns]
        corpus.check_columns([*asked, *([] if data.id_column is None else [data.id_column])])


def _check_training(config: Config) -> None:
    """A device that is not here, a model that does not fit; a small one fits whatever its config let pass."""
    from hush.train.fit import check_fits
    from hush.train.pretrained import choose_device

    choose_device(runtime_of(config).device)
    if config.model.name is not None:
        name = config.located(config.model.name)
        check_reachable(name)
        check_fits(recipe_of(config, name))


def _check_audit(config: Config) -> None:
    """Held-out texts that cannot be read, a reference that is not there or reads texts in another way."""
    audit = config.audit
    if audit is None:
        return
    if audit.held_out is not None and _is_here(held_out := config.located(audit.held_out)):
        read_corpus(held_out)
    attacks_models = bool({"extraction", "exposure"} & set(audit.attacks))
    if audit.reference is None or audit.reference == BASE_MODEL or not attacks_models:
        return
    from hush.train.pretrained import unloaded

    name = config.located(audit.reference)
    if (Path(name) / "adapter_config.json").is_file():
        return  # adapters lie upon another model, which only the audit puts together
    check_reachable(name)
    reference = unloaded(name).tokenizer
    if config.model.name is None:
        return
    own = unloaded(config.located(config.model.name), task=config.training.task).tokenizer
    if reference.get_vocab() != own.get_vocab():
        raise InvalidInput(
            f"audit.reference: {name} has another tokenizer, of {len(reference)} tokens and not the {len(own)} of the "
            f"model; pass a model with the same one, or {BASE_MODEL}"
        )


def _is_here(source: str) -> bool:
    """Whether data lies on this machine; of a saved data set, SOURCE:SPLIT is a part."""
    return Path(source).exists() or Path(source.split(":")[0]).is_dir()


FAMILY = (InvalidInput, InfeasiblePlan, CannotCertify, HushError)  # those that callers tell apart
KEYS: Mapping[str, str] = {
    "hush scan --skip-bad": "data.skip_bad: true",
    "--column": "data.column",
    "--key": "data.key",
    "--task ": "training.task: ",
    "--max-length=": "training.max_length: ",
    "--device=": "training.device: ",
    "--lora-target": "training.lora.targets",
    "; ask for less": "; lower audit.prompts or audit.continuations",
}


@contextmanager
def in_words_of_config() -> Iterator[None]:
    """What hush raises on purpose inside is raised with keys of a config in place of options."""
    try:
        yield
    except HushError as error:
        said = str(error)
        for option, key in KEYS.items():
            said = said.replace(option, key)
        if said == str(error):
            raise
        raise next(kind for kind in FAMILY if isinstance(error, kind))(said) from error
