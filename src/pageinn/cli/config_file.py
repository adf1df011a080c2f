"""`--config FILE`: the flags of `pageinn serve` in YAML, named as on the command line, which wins."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


class ConfigFileError(ValueError):
    """A file that cannot be read, or says what no flag says; one line names the key."""


class RaisingParser(argparse.ArgumentParser):
    """A parser whose errors are those of a file, not of the command line."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigFileError."""
        raise ConfigFileError(message)


def with_config(args: Namespace, make_parser: Callable[[], argparse.ArgumentParser]) -> Namespace:
    """What the command line says, and where it is silent what its `--config` says.

    make_parser: makes one whose errors are raised. Raises ConfigFileError.
    """
    given = {name: value for name, value in vars(args).items() if value is not None}
    path: Path | None = given.pop("config", None)
    if path is None:
        return args
    parser = make_parser()
    merged: dict[str, Any] = {}
    for key, value in _read(path).items():
        try:
            merged |= _flag(parser, args.command, key, value)
        except ConfigFileError as error:
            raise ConfigFileError(f"{path}: {error}") from error
    return Namespace(**{**vars(args), **merged, **given})


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigFileError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if read is None:
        return {}
    if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
        raise ConfigFileError(f"{path} must hold flags and their values, such as 'port: 8000'")
    return read


def _flag(parser: argparse.ArgumentParser, command: str, key: str, value: Any) -> dict[str, Any]:
    """What a key and its value set, checked as the flag's value would be."""
    name = key.replace("_", "-")
    if name in ("config", "help"):
        raise ConfigFileError(f"unknown key '{key}'")
    said, unknown = parser.parse_known_args([command, *_words(name, value)])
    if unknown:
        raise ConfigFileError(f"'{key}' cannot be false" if value is False else f"unknown key '{key}'")
    return {name: set_to for name, set_to in vars(said).items() if name != "command" and set_to is not None}


def _words(name: str, value: Any) -> list[str]:
    """A key and its value as words of a command line."""
    if value is None or isinstance(value, dict):
        raise ConfigFileError(f"'{name}' has no value" if value is None else f"'{name}' cannot be a mapping")
    if name == "model":
        return [str(value)]
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}={value}"]
