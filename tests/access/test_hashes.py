"""Passwords and tokens as they are kept."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest

from mq.access import hashes
from mq.access.hashes import (
    COST,
    KeptToken,
    PasswordHash,
    check_password,
    new_token,
    token_hash,
)
from mq.errors import InvalidSetting
from tests.access.files import CHEAP
from tests.cases import for_each


def test_a_password_fits_its_hash_and_no_other() -> None:
    stored = PasswordHash.parse(str(PasswordHash.of("correct horse", CHEAP)))
    assert stored.fits("correct horse")
    assert not any(stored.fits(guess) for guess in ("", "correct hors", "correct horse ", "Correct horse"))


def test_the_same_password_has_another_hash_each_time() -> None:
    assert str(PasswordHash.of("correct horse", CHEAP)) != str(PasswordHash.of("correct horse", CHEAP))


def test_the_hash_does_not_hold_the_password() -> None:
    assert "horse" not in str(PasswordHash.of("horse", CHEAP)) + repr(PasswordHash.of("horse", CHEAP))


def test_a_guess_costs_what_is_advised() -> None:
    assert PasswordHash.of("correct horse").cost == COST == (2**14, 8, 5)
    assert COST.memory_bytes >= 16 << 20


def test_it_is_scrypt_as_anybody_can_compute_it() -> None:
    stored = PasswordHash.of("pässword", CHEAP)
    assert stored.digest == hashlib.scrypt("pässword".encode(), salt=stored.salt, n=2, r=1, p=1, dklen=32)


def test_an_accent_typed_in_two_ways_is_one_password() -> None:
    assert PasswordHash.of("p\u00e4ssword", CHEAP).fits("pa\u0308ssword")


def test_no_password_fits_a_decoy() -> None:
    assert not PasswordHash.decoy(CHEAP).fits("")


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(hashes.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or hmac_equal(a, b))
    stored = PasswordHash.of("correct horse", CHEAP)
    assert not stored.fits("wrong")
    assert [b for _, b in compared] == [stored.digest]


hmac_equal = hmac.compare_digest
SALT, DIGEST = "0" * 32, "f" * 64


@for_each(
    "text",
    [
        "",
        "hunter2",
        f"scrypt:2:1:1:{SALT}",
        f"scrypt:2:1:1:{SALT}:{DIGEST}\n",
        f"scrypt:2:1:1:{SALT}:{DIGEST.upper()}",
        f"scrypt:3:1:1:{SALT}:{DIGEST}",
        f"scrypt:1:1:1:{SALT}:{DIGEST}",
        f"scrypt:0:1:1:{SALT}:{DIGEST}",
        f"scrypt:2:0:1:{SALT}:{DIGEST}",
        f"scrypt:2:1:0:{SALT}:{DIGEST}",
        f"scrypt:{1 << 22}:8:1:{SALT}:{DIGEST}",
        f"scrypt:{1 << 20}:1:999:{SALT}:{DIGEST}",
        f"scrypt:\u0662:1:1:{SALT}:{DIGEST}",
    ],
)
def test_what_is_no_hash_or_a_wrong_one_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 # the text is looked at below
        PasswordHash.parse(text)
    assert str(caught.value) in (
        "invalid password hash",
        "the password hash has an invalid scrypt cost",
        "the password hash's scrypt cost is too high",
    )


def test_tokens_are_random_and_long() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"mq_[A-Za-z0-9_-]{43}", token) for token in tokens)


def test_a_token_is_kept_as_its_sha256() -> None:
    token = new_token()
    assert token_hash(token) == "sha256:" + hashlib.sha256(token.encode()).hexdigest()
    assert KeptToken.parse(str(token_hash(token))) == (token_hash(token), None)
    expiring = f"{token_hash(token)} until 2026-12-24T19:00:00Z"
    assert str(KeptToken.parse(expiring)) == expiring


@pytest.mark.parametrize(
    "text", ["", "hunter2", "mq_short", "mq_" + "x" * 44, "mq_" + "é" * 43, "mq_" + "x" * 43 + "\n"]
)
def test_what_a_person_thought_of_is_no_token(text: str) -> None:
    assert token_hash(text) is None
    with pytest.raises(ValueError, match="invalid token hash"):
        KeptToken.parse("sha256:" + text)


@pytest.mark.parametrize("password", ["short", "x" * 1025, "tab\there it is", "two\nlines"])
def test_some_passwords_are_refused_and_not_quoted(password: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_password(password)
    assert password not in str(caught.value)


@pytest.mark.parametrize("password", ["12345678", "x" * 1024, "pässwörter sind schön"])
def test_others_are_taken(password: str) -> None:
    check_password(password)
