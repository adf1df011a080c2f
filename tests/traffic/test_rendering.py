"""From records to tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pageinn.memory.tokens import unpack
from pageinn.model.config import ModelError
from pageinn.model.gguf_file import GGUFFile
from pageinn.text.template import ChatTemplate
from pageinn.text.tokenizer import Tokenizer
from pageinn.traffic import BadRowError, Chat, Length, Record, Renderer, Text, Tokens, open_renderer, read

DATA = Path(__file__).parents[1] / "data"
MESSAGES = [{"role": "user", "content": "What is a page?"}]


def test_a_model_renders_with_its_own_template_and_tokenizer(smollm2_path: Path) -> None:
    data = GGUFFile(smollm2_path).tokenizer
    template, tokenizer = ChatTemplate.of(data), Tokenizer(data)
    assert template is not None
    renderer = open_renderer(smollm2_path)
    rendered = renderer.render(Record("log", 1, Chat(MESSAGES, [], {}), output="A frame."))
    assert rendered is not None
    assert unpack(rendered.prompt) == tokenizer.encode(template.render(MESSAGES), add_special=False)
    assert unpack(rendered.answer) == tokenizer.encode("A frame.", add_special=False)
    text = renderer.render(Record("log", 2, Text("What is a page?")))
    assert text is not None
    assert unpack(text.prompt) == tokenizer.encode("What is a page?")
    assert len(renderer.assumed) == 1


def test_a_folder_with_a_tokenizer_is_enough(tmp_path: Path) -> None:
    """The weights are not read, and the architecture does not matter."""
    from tokenizers import Tokenizer as Base
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    base = Base(BPE(vocab={letter: n for n, letter in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    base.pre_tokenizer = ByteLevel(add_prefix_space=False)
    base.decoder = Decoder()
    base.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}T{% endif %}{{ strftime_now('%Y') }}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    renderer = open_renderer(tmp_path)
    record = Record("log", 1, Chat(MESSAGES, [], {"enable_thinking": True}), time=86400.0 * 400)
    assert renderer.text(record) == "What is a page?T1971"
    rendered = renderer.render(record)
    assert rendered is not None
    assert len(unpack(rendered.prompt)) == len("What is a page?T1971")


def test_without_a_model_the_approximation_is_said_and_keeps_prefixes() -> None:
    renderer = open_renderer(None)
    short = renderer.render(Record("log", 1, Text("def f(x):\n    return x")))
    longer = renderer.render(Record("log", 2, Text("def f(x):\n    return x + 12345")))
    assert short is not None
    assert longer is not None
    assert longer.prompt.startswith(short.prompt)
    assert "without --model" in next(iter(renderer.assumed))


def test_the_approximation_loses_no_text() -> None:
    for line in (DATA / "miniswe" / "inputs.jsonl").read_text().splitlines():
        renderer = Renderer(None)
        text = json.loads(line)["input"]
        pieces = list(renderer._pieces)
        renderer.encode(text, False)
        pieces = list(renderer._pieces)
        assert "".join(pieces[token] for token in unpack(renderer.encode(text, False))) == text


def test_parts_that_are_no_text_keep_their_identity() -> None:
    renderer = Renderer(None)

    def text(url: str) -> str:
        part = {"type": "image_url", "image_url": {"url": url}}
        return renderer.text(Record("log", 1, Chat([{"role": "user", "content": [part]}], [], {})))

    assert text("a") == text("a")
    assert text("a") != text("b")


def test_what_has_no_text() -> None:
    renderer = Renderer(None)
    assert renderer.render(Record("log", 1, Length(5))) is None
    packed = renderer.render(Record("log", 1, Tokens(b"\1\0\0\0")))
    assert packed is not None
    assert packed.prompt == b"\1\0\0\0"
    with pytest.raises(BadRowError, match="Length has no text"):
        renderer.text(Record("log", 1, Length(5)))


def test_a_model_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        open_renderer(tmp_path / "nothing.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        open_renderer(tmp_path / "bad.gguf")
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        open_renderer(tmp_path)


def test_reading_and_rendering_never_load_the_kernels(smollm2_path: Path) -> None:
    program = (
        "import sys; from pageinn.traffic import read, open_renderer; "
        f"renderer = open_renderer({str(smollm2_path)!r}); "
        f"[renderer.render(record) for record in read([{str(DATA / 'miniswe' / 'inputs.jsonl')!r}])]; "
        "print('pageinn.kernels._cpu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "False"


def test_recorded_conversations_render(smollm2_path: Path) -> None:
    renderer = open_renderer(smollm2_path)
    for path in sorted((DATA / "anthropic_cache").glob("*.yaml")):
        for record in read([path]):
            assert renderer.render(record) is not None
