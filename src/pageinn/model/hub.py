"""A model by its name on the Hugging Face hub, through the hub's own client: its cache, its tokens, its mirrors.

HF_ENDPOINT names another server of the same layout, HF_HOME another cache, HF_TOKEN an access token and
HF_HUB_OFFLINE=1 keeps to what is cached.
"""

from __future__ import annotations

import re
from pathlib import Path

from pageinn.model.config import ModelError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
#: All that is read but the weights.
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")


def is_name(model: str) -> bool:
    """Whether this may be a name on the hub: owner/name, and not the name of a file."""
    return _NAME.fullmatch(model) is not None and not model.endswith((".gguf", ".safetensors", ".bin"))


def fetch(name: str, *, weights: bool = True) -> Path:
    """The folder of the model in the local cache, brought there first where it is missing.

    weights: the large files too. Raises ModelError, one line that says what to do, if there is no such model,
    if it may not be read, or if the hub cannot be reached and the cache does not hold it.
    """
    # Imported when a name is given: a local file should not wait for an HTTP client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    patterns = [*_SMALL, *(_WEIGHTS if weights else ())]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError as error:
        raise ModelError(
            f"{name}: its owner asks that terms be accepted; accept them on the model's page on the hub, then set "
            "HF_TOKEN or run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name}: neither a file or folder here nor a model on the hub (for a private one set HF_TOKEN)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name}: no file or folder here, not complete in the hub's cache, and the hub cannot be reached; go "
            "online, or name a local file"
        ) from error
    except Exception as error:  # whatever the client's HTTP library raises, which changes with its version
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{name}: the hub's answer cannot be used: {reason}") from error
