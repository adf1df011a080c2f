"""How many users fit on a card, what sharing saves, when moving beats recomputing: arithmetic with its reasoning shown.

`inputs` is what is asked, `lengths` how long sequences are, `local` reads a model's own files; `capacity`, `transfer`
and `pace` work the figures out; `report` puts them together, `flags` turns them into command lines, `plot` draws them.
"""
