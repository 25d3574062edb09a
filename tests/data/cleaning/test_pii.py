"""Masking: what is meant, and what only looks like it."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning.pii import MASKS, mask

ALL = tuple(MASKS)
SECRET = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v"


@pytest.mark.parametrize(("text", "masked", "counts"), [
    ("Write to ann.lee+x@mail.example.org, please.", "Write to <EMAIL>, please.", {"masked_email": 1}),
    ("a@b.co b@c.de", "<EMAIL> <EMAIL>", {"masked_email": 2}),
    ("Call (555) 123-4567 or 555-123-4567.", "Call <PHONE> or <PHONE>.", {"masked_phone": 2}),
    ("Tel. +49 30 1234567, +44 (0)20 7946 0958", "Tel. <PHONE>, <PHONE>", {"masked_phone": 2}),
    ("+1 555 123 4567", "<PHONE>", {"masked_phone": 1}),
    ("from 8.8.8.8 port 53", "from <IP> port 53", {"masked_ip": 1}),
    ("http://93.184.216.34/x", "http://<IP>/x", {"masked_ip": 1}),
    ("2606:4700:4700::1111 and 2001:4860:4860:0:0:0:0:8888", "<IP> and <IP>", {"masked_ip": 2}),
    ("id AKIAABCDEFGHIJKLMNOP end", "id <KEY> end", {"masked_key": 1}),
    ("ghp_" + "a1B2" * 9, "<KEY>", {"masked_key": 1}),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", "<KEY>\nafter", {"masked_key": 1}),
    (f'AWS_SECRET_ACCESS_KEY = "{SECRET}"', 'AWS_SECRET_ACCESS_KEY = "<KEY>"', {"masked_key": 1}),
    (f"api-key: x, apikey={SECRET};", "api-key: x, apikey=<KEY>;", {"masked_key": 1}),
])
def test_found(text: str, masked: str, counts: dict[str, int]) -> None:
    assert mask(text, ALL) == (masked, counts)


@pytest.mark.parametrize("text", [
    "Version 1.2.3.4 of the tool, v10.20.30.40, release 8.8.8.8, section 1.2.3.4",
    "1.2.3 and 1.2.3.4.5 and 300.1.2.3 and 8.8.8.8.8",
    "192.168.1.1, 127.0.0.1, 10.0.0.1, ::1, fe80::1",  # private and local
    "12:30:45 and std::vector and a::b and 00:1b:63:84:45:e6",
    "12345678901234567890 and 1234567890 and 4111111111111111",  # long runs of digits are no phones
    "1,234,567 and 3.14159265 and 2024-05-17 and 2001-2005 and 555-1234",
    "@decorator and user@host and a @ b.com and x@y",
    "password = correcthorsebatterystaplehorse",  # words, no digits
    'token = "get_token_from_environment_variable"',
    "AKIAABC and ghp_short and -----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----",
    "97 - 123 456 7890123",
    "x = +1 + 2, +5 apples",
])
def test_left_alone(text: str) -> None:
    assert mask(text, ALL) == (text, {})


def test_only_the_kinds_asked_for() -> None:
    text = "a@b.co 8.8.8.8"
    assert mask(text, ["ip"]) == ("a@b.co <IP>", {"masked_ip": 1}) and mask(text, []) == (text, {})


@given(st.text(string.ascii_letters + string.digits + "@.:+-_= \n", max_size=200))
def test_a_masked_text_holds_nothing_more_to_mask(text: str) -> None:
    once, _ = mask(text, ["email", "ip"])
    assert mask(once, ["email", "ip"])[0] == once


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ["x", "1", "1.", "a@", "secret=", "a:", "+1 ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----a"])
def test_data11_no_pattern_goes_back_over_what_it_has_read(unit: str) -> None:
    """DATA-11: half a megabyte of anything ends in a second; a pattern whose time grew with the square would need hours."""
    text = unit * (500_000 // len(unit))
    assert mask(text, ALL) == (text, {})
