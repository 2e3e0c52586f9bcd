"""Checks before the first stage: what a run would refuse after hours is refused at once.

They read small files, first rows, and the names of models on the hub, without loading a model. Every stage checks its
own inputs all the same, since they may change in between. torch and transformers take longer to import than all other
checks together, so they are imported only where a check needs them: for a model by name, and for a GPU by name.
"""

import socket
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.plan.attestations import Signer, check_signing
from hush.run.config import BASE_MODEL, Config
from hush.run.job import read_source
from hush.run.sections import AttestSection
from hush.run.stage_train import check_libraries

__all__ = ["check_reachable", "is_local", "preflight", "signer_of"]


FIRST_ROWS = 100  # of conversations, that are rendered


def preflight(config: Config, *, quickly: bool = False) -> None:
    """Refuse data, rules, a model, a device or an audit that some stage would refuse.

    It does not look at data on the hub, which it would have to download, nor at code, of which reading is most of the
    scan. quickly: it makes no modules of a model whose files tell that it fits.
    """
    check_libraries()
    _check_data(config)
    _check_training(config, quickly=quickly)
    _check_audit(config)
    if config.attest is not None:
        signer_of(config.attest, config.located)
        check_signing()


def signer_of(section: AttestSection, located: Callable[[str], str]) -> Signer:
    """Whose key the config names; refused if it is of another kind, or the certificate of another key."""
    certificate = None if section.certificate is None else Path(located(section.certificate))
    chain = tuple(Path(located(path)) for path in section.chain)
    return Signer(private_key=Path(located(section.private_key)), certificate=certificate, chain=chain)


def check_reachable(name: str) -> None:
    """Refuse a model that is neither a folder nor in the cache if the hub's address cannot be resolved.

    Loading such a model would retry for half a minute. Behind a proxy the address is not resolved here; in offline
    mode the libraries refuse at once by themselves.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    proxies = getproxies().keys() - {"no"}
    if Path(name).is_dir() or constants.HF_HUB_OFFLINE or proxies:
        return
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
    except HFValidationError:  # such as a misspelt path with a space in it
        raise InvalidInput(f"{name} is no folder here, and the hub has no such names; check the path") from None
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror:
        raise InvalidInput(
            f"{name} is no folder here and not in the cache, and the hub cannot be asked: the address of {host} is not "
            "known; check the name and the network, or pass a folder"
        ) from None


def _check_data(config: Config) -> None:
    """Refuse rules that cannot be prepared, a missing column, and files that no reader knows."""
    if config.about_code:
        return
    from hush.scan.scanner import prepare

    data, prepared = config.data, prepare(config.rules)
    if is_local(config.source):
        corpus = read_source(config)
        if not data.skip_bad and (corpus.rendering is not None or config.training.learn is not None):
            from hush.train.reading import learnt_texts  # only here: it imports torch

            for _ in islice(learnt_texts(corpus, config.training.learn), FIRST_ROWS):
                pass
        columns = [column for rule in prepared.rules for column in rule.finder.columns]
        corpus.check_columns([*columns, *([] if data.id_column is None else [data.id_column])])


def _check_training(config: Config, *, quickly: bool) -> None:
    """Refuse a device that this machine lacks and a model that does not fit; the config has checked a small one."""
    if config.training.device not in (None, "cpu"):
        from hush.train.pretrained import choose_device

        choose_device(config.training.device)
    if config.model.name is not None:
        from hush.train.pretrained import check_fits

        name = config.located(config.model.name)
        check_reachable(name)
        check_fits(config.training.recipe(name), quickly=quickly)


def _check_audit(config: Config) -> None:
    """Refuse held-out texts that cannot be read, and a reference that is missing or has another tokenizer."""
    audit = config.audit
    if audit is None:
        return
    if audit.held_out is not None and is_local(held_out := config.located(audit.held_out)):
        read_corpus(held_out)
    attacks_models = bool({"extraction", "exposure"} & set(audit.attacks))
    if audit.reference is None or audit.reference == BASE_MODEL or not attacks_models:
        return
    from hush.train.pretrained import unloaded

    name = config.located(audit.reference)
    if (Path(name) / "adapter_config.json").is_file():
        return  # adapters need their base model, which only the audit loads
    check_reachable(name)
    reference = unloaded(name).tokenizer
    if config.model.name is None:
        return
    trained = unloaded(config.located(config.model.name), task=config.training.task).tokenizer
    if reference.get_vocab() != trained.get_vocab():
        raise InvalidInput(
            f"it has another tokenizer, of {len(reference)} tokens and not the {len(trained)} of the model; pass a "
            f"model with the same one, or {BASE_MODEL}",
            setting="reference",
            value=name,
        )


def is_local(source: str) -> bool:
    """Whether data lies on this machine; SOURCE:SPLIT names a part of a saved data set."""
    return Path(source).exists() or Path(source.split(":")[0]).is_dir()
