"""The server's process: a socket, uvicorn, and signals that drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from pageinn.server.readiness import Phase

#: More objects made than dropped before they are looked through for garbage; Python's own value is 700.
_GARBAGE = 10_000


class PortError(RuntimeError):
    """The address cannot be listened on; one line says which and why."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, taken before anything slow begins; port 0 takes any free one.

    Raises PortError if the address is in use or not of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise PortError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        way_out = "choose another with --port" if port else "choose another --host"
        raise PortError(f"cannot listen on {host}:{port}: {error.strerror}; {way_out}") from error
    return sock


def address_of(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, with a word when it listens, and signals that end the process by its exit code.

    The first SIGTERM or SIGINT stops accepting and lets running requests finish; a second one does not wait.
    """

    def __init__(
        self, app: FastAPI, config: uvicorn.Config, ready: Callable[[], None], hangup: Callable[[], None] | None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready
        self._hangup = hangup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._hangup is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hangup)
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.phase = Phase.DRAINING
        self.force_exit = self.should_exit
        if self.force_exit:
            # It was asked for: otherwise each request that is cut short tells of it in a traceback.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.should_exit = True


def serve(
    app: FastAPI, sock: socket.socket, ready: Callable[[], None], hangup: Callable[[], None] | None = None
) -> bool:
    """Serve until a signal; `ready` is called once it listens. False if a second signal cut it short.

    What is there by now stays, so the collector of garbage does not look through it again: with a model's vocabulary it
    would hold up a step for tens of milliseconds. For the rest it wakes up seldom: it counts what is made against what
    is dropped, and rows and outcomes of a step live for that step, thousands of them that are no garbage.

    hangup: called on SIGHUP, which without it ends the process, as ever.

    Raises PortError if another process began to listen on the address meanwhile.
    """
    config = uvicorn.Config(app, http="httptools", lifespan="on", log_level="warning", access_log=False)
    server = _Server(app, config, ready, hangup)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    try:
        server.run(sockets=[sock])
    except OSError as error:
        raise PortError(f"cannot listen on {address_of(sock)}: {error.strerror}") from error
    return not server.force_exit
