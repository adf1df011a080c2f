"""What models and accelerators are, in published numbers, and the arithmetic of bytes and FLOPs over them.

Pure functions and frozen dataclasses: no tensor, no file of weights, no clock. `shape` says what a decoder is,
`published` reads one from a config.json, `models` and `accelerators` are the tables, `memory` counts bytes, `compute`
counts FLOPs and seconds.
"""
