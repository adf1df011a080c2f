"""The file of keys, without a server: what it may say, and that no message shows a key."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from pageinn.server.tenants import Keyring, KeysError, Tenant

GOOD = f"""
[tenants.alice]
keys = ["sk-alice-1", "sk-alice-2"]

[tenants."org 7"]
key_sha256 = ["{sha256(b"sk-seven").hexdigest().upper()}"]
admin = true
"""


def ring(tmp_path: Path, text: str) -> Keyring:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    return Keyring(path)


def test_each_key_is_its_tenants(tmp_path: Path) -> None:
    keyring = ring(tmp_path, GOOD)
    assert keyring.num_tenants == 2
    alice, seven = Tenant("alice", admin=False), Tenant("org 7", admin=True)
    found = [keyring.tenant_of(key) for key in (b"sk-alice-1", b"sk-alice-2", b"sk-seven", b"sk-alice", b"", b"\xff")]
    assert found == [alice, alice, seven, None, None, None]
    assert keyring.tenant_of(sha256(b"sk-seven").hexdigest().encode()) is None, "a digest is no key"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one"),
        ("[tenants]", "at least one"),
        ("tenants = 3", "at least one"),
        ("[tenant.alice]\nkeys = ['sk-secret']", "and nothing else"),
        ("[tenants.alice]\nkeys = ['sk-secret']\n[other]", "and nothing else"),
        ("[tenants.alice\n", "line 1"),
        ("[tenants.alice]\nkeys = ['sk-secret'", "end of document"),
        ('[tenants.""]\nkeys = ["sk-secret"]', "'' is no name of a tenant"),
        ('[tenants."a\\nb"]\nkeys = ["sk-secret"]', "printable"),
        ("[tenants]\nalice = 'sk-secret'", "tenants.alice is not a table"),
        ("[tenants.alice]", "tenants.alice has no key"),
        ("[tenants.alice]\nkeys = []", "tenants.alice has no key"),
        ("[tenants.alice]\nkeys = 'sk-secret'", "tenants.alice.keys is not a list of strings"),
        ("[tenants.alice]\nkeys = [1]", "tenants.alice.keys is not a list of strings"),
        ("[tenants.alice]\nkeys = ['a', '']", "tenants.alice.keys[1] is empty"),
        ("[tenants.alice]\nkeys = ['sk secret']", "tenants.alice.keys[0] is empty or holds what a header cannot carry"),
        ("[tenants.alice]\nkeys = ['sk-sécret']", "tenants.alice.keys[0]"),
        ("[tenants.alice]\nkey_sha256 = ['sk-secret']", "tenants.alice.key_sha256[0] is not a SHA-256 digest"),
        ("[tenants.alice]\nkey_sha256 = ['abcd']", "64 hex digits"),
        ("[tenants.alice]\nkeys = ['sk-secret']\nadmin = 1", "tenants.alice.admin is neither true nor false"),
        ("[tenants.alice]\nkeys = ['sk-secret']\nroot = true", "tenants.alice.root is unknown"),
        (
            "[tenants.a]\nkeys = ['sk-secret']\n[tenants.b]\nkeys = ['sk-secret']",
            "b.keys[0] is a key that tenants.a has",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line_without_its_keys(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(KeysError) as caught:
        ring(tmp_path, text)
    message = str(caught.value)
    assert words in message
    assert "keys.toml" in message
    assert "\n" not in message
    assert "secret" not in message


def test_a_key_and_its_digest_are_the_same_key(tmp_path: Path) -> None:
    text = f"[tenants.a]\nkeys = ['k']\n[tenants.b]\nkey_sha256 = ['{sha256(b'k').hexdigest()}']"
    with pytest.raises(KeysError, match=r"key_sha256\[0\] is a key that tenants.a has"):
        ring(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"no-such\.toml: No such file"):
        Keyring(tmp_path / "no-such.toml")
    with pytest.raises(KeysError, match="Is a directory"):
        Keyring(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(KeysError, match="not UTF-8"):
        Keyring(tmp_path / "binary.toml")


def test_a_reload_takes_the_new_file_or_keeps_the_old(tmp_path: Path) -> None:
    keyring = ring(tmp_path, GOOD)
    (tmp_path / "keys.toml").write_text("[tenants.bob]\nkeys = ['sk-bob']")
    keyring.reload()
    assert keyring.tenant_of(b"sk-alice-1") is None
    assert keyring.tenant_of(b"sk-bob") == Tenant("bob", admin=False)
    (tmp_path / "keys.toml").write_text("[tenants.carol]\nkeys = []")
    with pytest.raises(KeysError):
        keyring.reload()
    assert keyring.tenant_of(b"sk-bob") == Tenant("bob", admin=False)
