"""Which keys a broker seals and opens secrets by: those of its settings, of the cluster's secret, and one it makes."""

import os

from penstock.errors import WrongSettings
from penstock.ports.randomness import Randomness
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.security.secret_files import load_key, read_key
from penstock.server.config import Security

_NEW_KEY = "'penstock security new-key FILE' makes one, once; all brokers need the same file"


def load_sealing_keys(
    settings: Security, randomness: Randomness, *, own: str | None = None, of_cluster: Secret | None = None
) -> SealingKeys:
    """One that seals: of the file in the settings, else the cluster's, else its own. All of them open, and the others.

    So whoever sets a file for the first time loses nothing that was sealed before. Blocks, and is for the start.

    Args:
        own: where a broker that is in no cluster keeps the one it makes.
        of_cluster: made of the cluster's secret.

    Raises:
        StartupError: a file is missing or damaged. A broker of a cluster makes none: each would have another key.
    """
    others = [read_key(str(path)) for path in settings.other_seal_key_files]
    path = settings.seal_key_file
    if path is not None:
        if own is None and not path.exists():
            raise WrongSettings(f"security.seal_key_file: there is no {path}; {_NEW_KEY}")
        sealing = load_key(str(path), randomness)
        if of_cluster is not None:
            others.append(of_cluster)
        if own is not None and os.path.exists(own):
            others.append(read_key(own))
    elif of_cluster is not None:
        sealing = of_cluster
    elif own is not None:
        sealing = load_key(own, randomness)
    else:
        raise WrongSettings(
            "security.seal_key_file is not set: where brokers know each other by certificates alone, all of them need "
            f"a key; {_NEW_KEY}"
        )
    return SealingKeys(sealing, others)
