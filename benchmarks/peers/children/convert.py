"""A GGUF's weights and tokeniser as a folder of safetensors in float32: `convert.py GGUF FOLDER`.

For the engines that read no GGUF: they then compute with the very values that the file's 4-bit weights stand for.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

path, folder = Path(sys.argv[1]), Path(sys.argv[2])
config = LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
with torch.device("meta"):
    skeleton = LlamaForCausalLM(config)
tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)["tensors"]
with no_init_weights():
    model = LlamaForCausalLM(config)
missing, unexpected = model.load_state_dict(tensors, strict=False)
if unexpected or set(missing) - {"lm_head.weight"}:
    sys.exit(f"{path}: {unexpected} are no weights of a Llama, {missing} are missing")
model.tie_weights()
model.float().save_pretrained(folder)
AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
