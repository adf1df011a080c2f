"""How much of the traffic repeats, what a cache of each size would find, and what that is worth."""
