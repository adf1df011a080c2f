"""OpenVINO GenAI's continuous batching in process: `run_openvino.py GGUF THREADS`."""

import sys
from collections.abc import Iterator

import numpy as np
import openvino as ov
import openvino_genai as genai
from pipe import heard, say

CACHE_GIB, SEQS = 4, 16
PRECISIONS = (("INFERENCE", "_HINT"), ("KV_CACHE", ""))


def main() -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = SEQS
    options = {"INFERENCE_NUM_THREADS": int(sys.argv[2])}
    engine = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", options)
    core = ov.Core()
    computes, stores = (core.get_property("CPU", f"{what}_PRECISION{hint}") for what, hint in PRECISIONS)
    say(
        ready=genai.__version__,
        precision=f"GGUF's weights, {computes.get_type_name()}, {stores.get_type_name()} cache",
    )
    requests, running = heard(), {}
    for request in arrivals(requests, running):
        if request is not None:
            running[request["id"]] = Request(engine, request)
        else:
            engine.step()
            for name, one in list(running.items()):
                if one.read():
                    say(id=name, tokens=one.tokens)
                    del running[name]


def arrivals(requests, running) -> Iterator[dict | None]:
    """What has come, then None for a step; waits where nothing runs; ends when no more can come."""
    open_ = True
    while open_ or running:
        while open_ and (not requests.empty() or not running):
            request = requests.get()
            open_ = request is not None
            if open_:
                yield request
        if running:
            yield None


class Request:
    def __init__(self, engine, request) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = request["max_tokens"]
        config.ignore_eos, config.do_sample = True, False
        self.name, self.tokens = request["id"], []
        prompt = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        self.handle = engine.add_request(self.name, prompt, config)

    def read(self) -> bool:
        """Take what the step brought; whether that was the end."""
        while self.handle.can_read():
            if not self.tokens:
                say(id=self.name)
            self.tokens += next(iter(self.handle.read().values())).generated_ids
        return self.handle.get_status() == genai.GenerationStatus.FINISHED


main()
