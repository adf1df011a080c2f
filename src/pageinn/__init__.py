"""pageinn: an LLM serving engine that runs its key-value cache like virtual memory."""
