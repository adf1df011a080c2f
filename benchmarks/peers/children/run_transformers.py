"""transformers' generate, one request after another: `run_transformers.py FOLDER THREADS`, float32."""

import sys

import torch
import transformers
from pipe import heard, say
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class First(BaseStreamer):
    """Says when the first token has come: `put` gets the prompt, then each token."""

    def __init__(self, name: int) -> None:
        self.name, self.puts = name, 0

    def put(self, value: torch.Tensor) -> None:
        self.puts += 1
        if self.puts == 2:
            say(id=self.name)

    def end(self) -> None:
        pass


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    say(ready=transformers.__version__, precision="float32")
    requests = heard()
    while (request := requests.get()) is not None:
        prompt, count = torch.tensor([request["prompt"]]), request["max_tokens"]
        with torch.inference_mode():
            whole = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                streamer=First(request["id"]),
            )
        say(id=request["id"], tokens=whole[0, prompt.shape[1] :].tolist())


main()
