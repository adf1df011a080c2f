"""pageinn: an LLM serving engine that runs its key-value cache like virtual memory."""

__version__ = "0.1.0"
