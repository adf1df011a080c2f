"""What a child says and hears, a JSON object a line.

It hears {"id", "prompt": token ids, "max_tokens"}; it says {"ready": its version, "precision"} once, then for each
request {"id"} with the first token and {"id", "tokens"} at its end.
"""

import json
import queue
import sys
import threading

#: What a library prints must not stand among the answers.
_out, sys.stdout = sys.stdout, sys.stderr


def say(**event: object) -> None:
    print(json.dumps(event), file=_out, flush=True)


def heard() -> "queue.Queue[dict | None]":
    """The requests as they come, then None. A thread reads them while the engine computes."""
    requests: queue.Queue[dict | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        requests.put(None)

    threading.Thread(target=read, daemon=True).start()
    return requests
