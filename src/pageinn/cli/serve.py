"""`pageinn serve`: take the port, load the model, serve until a signal."""

from __future__ import annotations

import logging
import signal
import sys
import time
from argparse import Namespace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from socket import socket

from pageinn.cli.loading import LOAD_ERRORS, load
from pageinn.cli.serving_flags import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_QUEUE, as_asked
from pageinn.engine.client import EngineClient
from pageinn.server.access import Access
from pageinn.server.app import create_app
from pageinn.server.run import PortError, address_of, bind, serve
from pageinn.server.tenants import Keyring, KeysError


def serve_command(args: Namespace) -> int:
    """Serve until a signal; returns the exit code."""
    try:
        return _serve(args)
    except (*LOAD_ERRORS, KeysError, PortError) as error:
        print(f"pageinn: error: {error}", file=sys.stderr)
        return 1


def _serve(args: Namespace) -> int:
    began = time.monotonic()
    access = _access(args)
    given = vars(args)
    sock = bind(given.get("host", DEFAULT_HOST), given.get("port", DEFAULT_PORT))
    _warn_if_open(access, sock)
    served, description = load(Namespace(**{**DEFAULT_QUEUE, **given}))
    print(description, file=sys.stderr)
    _log_requests()
    if access.keyring is not None:
        served.client.configure_tenants(access.keyring.rules)
        print(f"tenants: {access.keyring.num_tenants}, by their keys", file=sys.stderr)
    complete = serve(
        create_app(as_asked(served, args), access=access),
        sock,
        ready=lambda: _say_ready(began, sock),
        hangup=None if access.keyring is None else partial(_reload, access.keyring, served.client),
    )
    if not complete:
        served.client.abandon()
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


def _reload(keyring: Keyring, client: EngineClient) -> None:
    """What SIGHUP asks for: keys and shares as the file has them now, or, if it is bad, as they were."""
    try:
        keyring.reload()
    except KeysError as error:
        print(f"pageinn: error: {error}; the keys stay as they were", file=sys.stderr, flush=True)
        return
    client.configure_tenants(keyring.rules)
    print(f"pageinn: keys of {keyring.num_tenants} tenants read", file=sys.stderr, flush=True)


def _log_requests() -> None:
    """Each request's line, and what goes wrong, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("pageinn")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _say_ready(began: float, sock: socket) -> None:
    print(f"Ready in {time.monotonic() - began:.1f} s on {address_of(sock)}", file=sys.stderr, flush=True)
