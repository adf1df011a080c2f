"""The `pageinn` command. Nothing heavy is imported before a command asks for it."""

from pageinn.cli.main import main

__all__ = ["main"]
