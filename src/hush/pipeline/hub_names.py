"""Names of models on the hub, before they are loaded: where nobody can be asked, loading tries for half a minute."""

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from hush.errors import InvalidInput

__all__ = ["check_reachable"]


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
