"""`pageinn serve`: take the port, load the model, serve until a signal."""

from __future__ import annotations

import signal
import sys
import time
from argparse import Namespace
from dataclasses import fields
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from tqdm import tqdm

from pageinn.engine import build
from pageinn.engine.client import EngineClient
from pageinn.engine.config import EngineConfig
from pageinn.engine.messages import RefusedError
from pageinn.model.config import ModelError
from pageinn.scheduling.config import ConfigError
from pageinn.server.access import Access
from pageinn.server.app import create_app
from pageinn.server.run import PortError, address_of, bind, serve
from pageinn.server.served import Served
from pageinn.server.tenants import Keyring, KeysError
from pageinn.store.kv_store import StoreTooLargeError
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError

if TYPE_CHECKING:
    from pageinn.engine.engine import Engine

#: What can be wrong with what a person asked for; each says so in one line.
_KNOWN = (
    ConfigError,
    KeysError,
    ModelError,
    PortError,
    RefusedError,
    StoreTooLargeError,
    TemplateError,
    TokenizerError,
)


def serve_command(args: Namespace) -> int:
    """Serve until a signal; returns the exit code."""
    try:
        return _serve(args)
    except _KNOWN as error:
        print(f"pageinn: error: {error}", file=sys.stderr)
        return 1


def _serve(args: Namespace) -> int:
    began = time.monotonic()
    access = _access(args)
    sock = bind(args.host, args.port)
    _warn_if_open(access, sock)
    engine = _load(_config(args))
    client = EngineClient(engine)
    print(engine.description, file=sys.stderr)
    served = Served(
        client=client,
        tokenizer=engine.tokenizer,
        template=engine.template,
        model_name=engine.model_name,
        max_model_len=engine.max_model_len,
        vocab_size=engine.tokenizer.vocab_size,
        created=int(time.time()),
        cache_config=engine.cache_config,
    )
    complete = serve(
        create_app(served, access=access),
        sock,
        ready=lambda: _say_ready(began, sock),
        hangup=None if access.keyring is None else partial(_reload, access.keyring),
    )
    return 0 if complete else 1


def _access(args: Namespace) -> Access:
    """Raises KeysError."""
    given = vars(args)
    path: Path | None = given.get("api_keys")
    if path is not None:
        # Until the server listens for it: an early one must not end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Access(None if path is None else Keyring(path), given.get("metrics_key"))


def _warn_if_open(access: Access, sock: socket) -> None:
    host = sock.getsockname()[0]
    if access.keyring is None and not ip_address(host).is_loopback:
        print(
            f"pageinn: warning: no --api-keys, and other machines may reach {host}: whoever does is the same tenant, "
            "reads one cache with all others and may reset it",
            file=sys.stderr,
        )


def _reload(keyring: Keyring) -> None:
    """What SIGHUP asks for: the keys as the file has them now, or, if it is bad, as they were."""
    try:
        keyring.reload()
    except KeysError as error:
        print(f"pageinn: error: {error}; the keys stay as they were", file=sys.stderr, flush=True)
        return
    print(f"pageinn: keys of {keyring.num_tenants} tenants read", file=sys.stderr, flush=True)


def _config(args: Namespace) -> EngineConfig:
    """What was given on the command line; the rest keeps the engine's defaults."""
    given = {field.name: getattr(args, field.name) for field in fields(EngineConfig) if field.name in args}
    return EngineConfig(**given)


def _load(config: EngineConfig) -> Engine:
    with tqdm(desc="Loading", unit="B", unit_scale=True, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return build(config, progress)


def _say_ready(began: float, sock: socket) -> None:
    print(f"Ready in {time.monotonic() - began:.1f} s on {address_of(sock)}", file=sys.stderr, flush=True)
