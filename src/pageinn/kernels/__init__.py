"""The operations that the decoder calls, and their backends."""
