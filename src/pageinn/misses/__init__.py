"""Why requests to a running server found no more of their prompts in the cache: bounded records, read when asked."""
