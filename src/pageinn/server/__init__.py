"""The OpenAI-compatible HTTP server. It knows the engine by its messages only."""
