"""The model hub's copy of a model, from the hub's own cache if it is there; a silent hub is given up in seconds."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from polysem.errors import PolysemError

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
PICKLES = "pytorch_model*.bin"
"""Fetched where a model has no safetensors: many have both, and one is enough."""
HUB_TIMEOUT = 5.0
"""Seconds to wait for the hub's first answer: without network the next source is tried at once."""


class HubError(PolysemError):
    """A model that the hub does not give, or a hub that cannot be reached; the message is the reason alone."""


def download_snapshot(name: str, *, offline: bool = False) -> Path:
    """The folder of a model of the hub.

    Args:
        name: `owner/model`; `owner/model@revision` asks for a branch, tag or commit.
        offline: take only what the hub's cache holds, as HF_HUB_OFFLINE does.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    model, _, revision = name.partition("@")
    try:
        cached = Path(snapshot_download(model, revision=revision or None, local_files_only=True))
        # sentence-transformers keeps the model in a folder of its own.
        if any(cached.rglob("config.json")) and any(
            path for kind in ("*.safetensors", PICKLES) for path in cached.rglob(kind)
        ):
            return cached
    except (OSError, HFValidationError):
        pass
    if offline or constants.is_offline_mode():
        raise HubError(f"not cached, and {'--offline is given' if offline else 'HF_HUB_OFFLINE is set'}")
    try:
        reach_hub(constants.ENDPOINT)
        names = HfApi().list_repo_files(model, revision=revision or None)
        wanted = HUB_FILES if any(each.endswith(".safetensors") for each in names) else [*HUB_FILES, PICKLES]
        return Path(
            snapshot_download(model, revision=revision or None, allow_patterns=wanted, etag_timeout=HUB_TIMEOUT)
        )
    except Exception as error:  # of the hub, of its HTTP client, of the network
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise HubError(reason[0]) from None


def reach_hub(address: str) -> None:
    """Raise an OSError unless somebody answers there in time: huggingface_hub's first question waits for ever."""
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=HUB_TIMEOUT).close()
    except urllib.error.HTTPError:
        pass  # an answer all the same
    except urllib.error.URLError as error:
        raise OSError(f"{address} cannot be reached: {error.reason}") from None
    except OSError as error:  # a timeout while reading
        raise OSError(f"{address} cannot be reached: {error}") from None
