"""What a cache's dtype does to a model's answers, token by token, as the context grows."""
