"""The ground floor: blocks, the prefix tree, scopes and accounts.

Block numbers and token ids only: no tensor, no clock, no socket.
"""
