"""The credentials rule: finds what detect-secrets detects, with exact spans, without logs and without network."""

import logging
import re
import socket
import sys
import warnings

import pytest
from finder_cases import block_of, rows_of, texts
from hypothesis import given, settings
from hypothesis import strategies as st

import hush

pytest.importorskip("detect_secrets")

from detect_secrets.plugins.keyword import KeywordDetector

from hush.scan.finders import Credentials

AWS = "AKIA" + "Q3EGTYVIOP62L4M7"
BODY = "MIIEowIBAAKCAQEAshWXegn+JRX62T73jqFBVtugVWkqT+IGfEQXrL9Tz+sxDVxo"
KEY = f"-----BEGIN {{kind}}-----\n{BODY}\n\nIBAAK\n-----END {{kind}}-----"
prose = texts.map(lambda text: text.replace("\n", " "))


@settings(max_examples=30)
@given(st.lists(texts, max_size=3), prose, prose)
def test_a_planted_key_is_found_at_its_characters_whatever_stands_around_it(above, before, after) -> None:
    text = "\n".join([*above, f"{before} {AWS} {after}"])
    rows = rows_of(Credentials(detectors=["AWS Access Key"]).find(block_of(["", text])))
    at = text.index(AWS)
    assert (1, at, at + len(AWS), AWS, "detector AWS Access Key") in rows


R20, R36 = "a1B2c3D4e5F6g7H8i9J0", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
EXACT = {
    "ArtifactoryDetector": [(" {} ", f"AKC{R20}"), ('="{}"', f"AP5{R20}"), ("{}", f"AKC{R20}")],
    "AzureStorageKeyDetector": [("AccountName=a;AccountKey={};", 4 * R20 + "aB+/aB==")],
    "GitHubTokenDetector": [("({})", f"{kind}_{R36}") for kind in ("ghp", "gho", "ghu", "ghs", "ghr")],
    "GitLabTokenDetector": [("[{}]", begin + R20) for begin in ("glpat-", "GR1348941", "glcbt-", "glcbt-ab_")],
    "NpmDetector": [("//npm.acme.org/:_authToken= {} # mine", f"npm_{R36}"), ('"//x/:_authToken={}"', f"npm_{R36}")],
    "OpenAIDetector": [("'{}'", f"sk-{R20}T3BlbkFJ{R20}")],
    "StripeDetector": [("key={},", "sk_live_" + R36[:24])],
}


@pytest.mark.parametrize(("detector", "line", "secret"), [(name, *case) for name in EXACT for case in EXACT[name]])
def test_a_credential_is_found_without_what_stands_around_it_and_whole(detector: str, line: str, secret: str) -> None:
    """Its text is looked for everywhere: with more it would be missed there, and with less it would be another."""
    text = "é\r\n" + line.format(secret) + "\r\nnext"
    rows = rows_of(Credentials(detectors=[detector]).find(block_of([text])))
    at = text.index(secret)
    assert [row[:4] for row in rows] == [(0, at, at + len(secret), secret)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    text = end.join(['password = "hunter2xyz"', "", 'password = "hunter3xyz"'])
    keys = [row[3] for row in rows_of(Credentials(detectors=["KeywordDetector"]).find(block_of([text])))]
    assert keys == ["hunter2xyz", "hunter3xyz"]  # that detector sees one in a line


def test_a_quoted_key_may_begin_with_a_sign() -> None:
    key = "-qq71!qqe(8pg-fxs@*0z!t+8q!12ej__llf!2e!xa=h-%y6#a"
    for line in (f"SECRET_KEY = '{key}'", f'  secret_key: "{key}"  # of the site'):
        rows = rows_of(Credentials().find(block_of([line])))
        assert [row[3:] for row in rows] == [(key, "detector Secret Keyword")]


def test_all_detectors_look_at_every_line_also_at_calls_and_allowed_ones() -> None:
    text = f'connect(x={AWS}) # pragma: allowlist secret\nnothing\n  password = "hunter2xyz"\r\nAKIA\n'
    keys = {row[3]: text[row[1] : row[2]] for row in rows_of(Credentials().find(block_of([text])))}
    assert keys == {AWS: AWS, "hunter2xyz": "hunter2xyz"}


KINDS = [
    "RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK", "ENCRYPTED PRIVATE KEY",
    "ANY PRIVATE KEY",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_private_keys_are_found_whole_and_told_apart(kind: str) -> None:
    one = KEY.format(kind=kind)
    other = one.replace("IBAAK", "other")
    hits = Credentials(detectors=["PrivateKeyDetector"]).find(block_of([f"x\n{one}\ny {other} {one}"]))
    rows = rows_of(hits)
    assert [row[3] for row in rows] == [one, other, one]
    assert set(hits.keys) == {one, other}


def found_by(finder: Credentials, *texts: str) -> dict[str, str]:
    """The found texts with their reasons."""
    return {row[3]: row[4] for row in rows_of(finder.find(block_of(texts)))}


KEYS = Credentials(detectors=["PrivateKeyDetector"])


def test_a_private_key_without_its_end_is_found_with_what_is_there_of_it() -> None:
    rows = rows_of(Credentials().find(block_of([f"é -----BEGIN RSA PRIVATE KEY-----\n{BODY}\nend."])))
    assert [row[1:5] for row in rows] == [(7, 98, f"BEGIN RSA PRIVATE KEY-----\n{BODY}", "detector Private Key")]


@pytest.mark.parametrize("version", [2, 3])
def test_a_key_of_putty_is_found_with_its_content(version: int) -> None:
    text = f"PuTTY-User-Key-File-{version}: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\n{BODY}\n"
    assert found_by(KEYS, text) == {text.strip(): "detector Private Key"}


def test_a_first_or_last_line_without_a_key_is_doubted() -> None:
    texts = ["if line == '-----BEGIN RSA PRIVATE KEY-----':", "'-----END PRIVATE KEY-----'", KEY.replace(BODY, "...")]
    reasons = set(found_by(KEYS, *texts).values())
    assert reasons == {"detector Private Key: a private key without content"}


@pytest.mark.parametrize("kind", ["OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY"])
def test_a_private_key_that_is_cut_in_two_is_found_in_both_examples(kind: str) -> None:
    key = KEY.format(kind=kind)
    for cut in range(key.index("MII"), key.index("-----END") + 1):
        hits = KEYS.find(block_of([key[:cut], key[cut:], key]))
        assert [row[0] for row in rows_of(hits)] == [0, 1, 2]
        assert rows_of(hits)[2][3:5] == (key, "detector Private Key")
    assert len(Credentials(detectors=["AWSKeyDetector"]).find(block_of([key[-30:]]))) == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["pass", "word", "PASSWORD", "Api_Key", "ſecret", "secret", " = ", ":", '"', "'", "v1x", " "]),
        max_size=9,
    ).map("".join)
)
def test_looking_for_keywords_first_loses_nothing(line: str) -> None:
    found = {secret.secret_value for secret in KeywordDetector().analyze_line(filename="", line=line)}
    (plugin,) = Credentials(detectors=["KeywordDetector"])._plugins
    assert plugin.required is not None
    assert plugin.prefilter is not None
    assert not found or (plugin.required.search(line) and plugin.admits(line))


WITH_SPACES = {
    "CloudantDetector": ("cloudant_key", "a1" * 32),
    "IbmCloudIamDetector": ("key", R36 + "a1B2c3D4"),
    "IbmCosHmacDetector": ("cos_secret_key", "a1" * 24),
    "SoftlayerDetector": ("sl_api_key", "a1" * 32),
}


@pytest.mark.parametrize("detector", WITH_SPACES)
@pytest.mark.parametrize("between", [" ", "  ", "=", " = ", "   :=  ", " " * 20_000])
def test_a_line_that_is_padded_with_spaces_takes_no_longer_and_loses_nothing(detector: str, between: str) -> None:
    name, secret = WITH_SPACES[detector]
    finder = Credentials(detectors=[detector])
    text = f"  é  {name}{between}{secret}  {name}" + " " * 20_000 + "end"
    (row,) = rows_of(finder.find(block_of([text])))
    assert row[:4] == (0, text.index(secret), text.index(secret) + len(secret), secret)


def test_nothing_is_logged_and_no_network_is_used(monkeypatch, caplog) -> None:
    def refuse(*_args, **_kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    shown = warnings.showwarning
    with caplog.at_level(logging.DEBUG):
        hits = Credentials().find(block_of([f"{AWS} password = 'hunter2xyz' https://user:pass1@example.org"]))
    assert len(hits) >= 2
    assert not caplog.records
    assert warnings.showwarning is shown


def test_detectors_go_by_the_name_of_the_class_or_of_what_they_detect() -> None:
    assert Credentials(detectors=["AWS Access Key", "AWSKeyDetector"]).detectors == ("AWSKeyDetector",)
    assert len(Credentials().detectors or ()) > 20


def test_an_unknown_detector_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(hush.InvalidInput, match=re.escape("does not exist; did you mean 'AWSKeyDetector'?")):
        Credentials(detectors=["AWSKeyDetecter"])
    with pytest.raises(hush.InvalidInput, match="is a string"):
        Credentials(detectors="AWSKeyDetector")


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "detect_secrets.core.plugins.util", None)
    with pytest.raises(hush.InvalidInput, match=re.escape('pip install "hush[credentials]"')):
        Credentials()
