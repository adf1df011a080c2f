"""What a tenant can find out about another one, measured from outside."""
