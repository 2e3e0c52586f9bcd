"""Which findings of the credentials rule are doubted and why, and what the format of a text can hold."""

import random
import string

import pytest
from finder_cases import block_of
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("detect_secrets")

from hush.scan.finders import Credentials
from hush.scan.finders.plausibility import TOO_SHORT, doubt, is_distinctive, is_test_file, looks_random, most_values

KEYWORD, BASIC, HEX = "KeywordDetector", "BasicAuthDetector", "HexHighEntropyString"


def random_texts(alphabet: str, least: int, most: int) -> st.SearchStrategy[str]:
    return st.builds(
        lambda seed, length: "".join(random.Random(seed).choices(alphabet, k=length)),
        st.integers(0, 10**6),
        st.integers(least, most),
    )


DOUBTED = {
    "a placeholder": ["changeme", "xxxxxxxx", "your-api-key", "EXAMPLEKEY12", "foo_bar1", "not-a-secret"],
    "a template": ["${VAR}", "<token>", "{{ secret }}", "%(password)s", "$PASSWORD", "{self.password}"],
    "a word or an identifier": [
        "test",
        "airflow",
        "None",
        "value",
        "type",
        "access_secret_key",
        "mypassword",
        "sqlite3",
    ],
    "a few characters": ["p", "key"],
    "prose": ["This is not known, be sure to set it."],
    "an expression of code": ["os.environ.key", "get_password()", "AccountKey="],
    "a path or an address": ["https://acme.io/x", "/run/secrets/db", "config/keys/main.pem"],
    "repeats or counts": ["aaaaaaaa", "98765432"],
    "a UUID": ["f81d4fae-7dec-11d0-a765-00a0c91e6bf6"],
    "a version or a date": ["2024-01-31", "1.20.3"],
    "no letter or digit": ["-----", "////"],
}


@pytest.mark.parametrize(("reason", "value"), [(reason, value) for reason in DOUBTED for value in DOUBTED[reason]])
def test_what_is_no_credential_is_doubted_with_a_reason_that_does_not_quote_it(reason: str, value: str) -> None:
    assert doubt(value, detector=KEYWORD, line=f'password = "{value}"') == reason


@pytest.mark.parametrize("value", ["hunter2xyz", "b7Kq92xVtZ", "OtterMeadow42!", "Winter2019", "l!t+dmzf97rt9s*yrsux"])
def test_passwords_are_not_doubted(value: str) -> None:
    assert doubt(value, detector=KEYWORD, line=f'password = "{value}"') is None


@given(random_texts(string.ascii_letters + string.digits, 20, 60))
def test_random_keys_are_rarely_doubted(value: str) -> None:
    """Each single one may look like anything; the rate is measured in benchmarks/credentials.py."""
    if looks_random(value):
        assert doubt(value, detector=KEYWORD) in (None, "a placeholder")


def test_most_random_texts_look_random_and_identifiers_do_not() -> None:
    rng = random.Random(0)
    for alphabet, length in ((string.hexdigits[:16], 32), (string.ascii_letters + string.digits, 16)):
        texts = ["".join(rng.choices(alphabet, k=length)) for _ in range(500)]
        assert sum(map(looks_random, texts)) > 460  # of 16 letters and digits, 6 % have no digit
    names = ["get_connection_v2", "aws_default_region", "example-dag-1-of-2"]
    assert not any(map(looks_random, names))


def test_tests_need_more_evidence_and_digests_are_known_by_their_names() -> None:
    assert doubt("Winter2019", detector=KEYWORD, line='password="Winter2019"', path="app/tests/run.py") is not None
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    assert doubt(digest, detector=HEX, line=f'sha256 = "{digest}"') == "a digest or an identifier by its name"
    assert doubt(digest, detector=HEX, line=f'"{digest}"', path="web/package-lock.json") is not None
    assert doubt(digest, detector=HEX, line=f'key = "{digest}"') is None
    assert [is_test_file(path) for path in ("a/test_b.py", "b.spec.ts", "contest/a.py")] == [True, True, False]


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40))
def test_a_format_holds_no_more_than_all_printable_texts_of_that_length(value: str) -> None:
    assert 2 <= most_values(value, detector=KEYWORD) <= 95 ** len(value)
    assert most_values(value + "a", detector=KEYWORD) > most_values(value, detector=KEYWORD)


def test_vendors_prefixes_and_public_parts_hold_nothing() -> None:
    assert most_values("AKIA" + "Q3EGTYVIOP62L4M7", detector="AWSKeyDetector") == 2**40
    assert most_values("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0", detector="JwtTokenDetector") <= 2
    assert most_values("ghp_" + "a1B2" * 9, detector="GitHubTokenDetector") < 62**30


@pytest.mark.parametrize(
    ("detector", "token"),
    [
        ("GitLabTokenDetector", "glpat-aB3dE-9fGh2kLm_4nPq5"),
        ("TelegramBotTokenDetector", "1102015430:AAHdqTc-CH1vGWJ_fSeofSAs-K5PALDsa_w9"),
        ("SquareOAuthDetector", "sq0csp-aB3dE-9fGh2kLm_4nPq5aB3dE-9fGh2kLm_4nPq5aB3"),
        ("SendGridDetector", "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"),
        ("NpmDetector", "8d5f1a2b-3c4d-4e5f-8a9b-0c1d2e3f4a5b"),
    ],
)
def test_dashes_within_a_vendors_token_are_part_of_what_it_holds(detector: str, token: str) -> None:
    assert most_values(token, detector=detector) > 1e10
    assert doubt(token, detector=detector) is None


def test_the_public_parts_of_a_discord_token_hold_nothing() -> None:
    token = "MTE4NzQ2ODI5MTAzNjU0OTEy.Gk2_xQ." + "a-" * 13 + "b"
    assert most_values(token, detector="DiscordBotTokenDetector") <= 28 ** (27 - 9)


def test_a_web_token_ends_where_another_script_begins() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiAiNzg1NDA1MDIifQ.dBjftJeZ4CVPmB92K27uhbUJU1p1rawwW1gFWFOEjXk"
    hits = Credentials(detectors=["JwtTokenDetector"], prior=1e-10).find(block_of([f"令牌{token}令牌", f"{token}é"]))
    assert hits.keys == (token,)
    assert hits.example_H.tolist() == [0, 1]


@pytest.mark.parametrize(("prior", "is_refused"), [(1e-10, True), (9.9e-5, True), (1e-4, False)])
def test_a_text_too_short_for_its_promise_is_refused(prior: float, is_refused: bool) -> None:
    finder = Credentials(detectors=[KEYWORD], prior=prior)
    hits = finder.find(block_of(['password = "4821"']))
    assert hits.keys == ("4821",)
    assert [TOO_SHORT in reason for reason in hits.reasons] == [is_refused]
    assert hits.is_doubtful_H.tolist() == [is_refused]
    lenient = Credentials(detectors=[KEYWORD], prior=prior, accept="all")
    assert lenient.find(block_of(['password = "4821"'])).is_doubtful_H.tolist() == [is_refused], "nor then"


def test_distinctive_texts_count_inside_words() -> None:
    texts = ["b7Kq92xVtZ", "x@9Kq2", "test", "48213977", "connection", "otters2019"]
    assert [is_distinctive(text) for text in texts] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("SMTP_PASSWORD=Uzn6k8D60jzM", "Uzn6k8D60jzM"),
        ("  api_key: XFsFgr0FYx8aUC8PmJ7ThhyZ2yiP3If8", "XFsFgr0FYx8aUC8PmJ7ThhyZ2yiP3If8"),
        ("export ACME_TOKEN=Uzn6k8D60jzMq7  # mine", "Uzn6k8D60jzMq7"),
        ("password: Otter42!Meadow", "Otter42!Meadow"),
        ("password = settings.password", None),
        ("token: str = None", None),
        ("secret_key=self.secret_key", None),
    ],
)
def test_assignments_without_quotes_are_found_if_they_are_no_code(line: str, key: str | None) -> None:
    hits = Credentials(detectors=[KEYWORD]).find(block_of([line]))
    plausible = {hits.keys[number] for number in hits.key_H[~hits.is_doubtful_H].tolist()}
    assert plausible == ({key} if key else set())


def test_a_web_token_is_found_with_its_signature() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiAiNzg1NDA1MDIifQ.dBjftJeZ4CVPmB92K27uhbUJU1p1rawwW1gFWFOEjXk"
    hits = Credentials(detectors=["JwtTokenDetector"], prior=1e-10).find(block_of([f"Bearer {token} x"]))
    assert hits.keys == (token,)
    assert not hits.doubtful


@pytest.mark.parametrize(
    "value", ["a" * 50_000 + "!", "a-" * 50_000 + "!", "aB3/" * 50_000, "1" * 50_000, "x." * 50_000]
)
def test_long_texts_and_lines_take_no_longer_than_short_ones(value: str) -> None:
    """Generated files have lines of millions of characters; patterns that backtrack over them would take hours."""
    for detector in (KEYWORD, HEX, "TwilioKeyDetector"):
        doubt(value, detector=detector, line=f'password_{value} = "{value}"', path=value)
        assert most_values(value, detector=detector) > 0
    line = f"password_{value}={value}"
    assert len(Credentials(detectors=[KEYWORD]).find(block_of([line]))) == 0


@given(random_texts("abcdefghijklmnopqrstuvwxyz0123456789!@#$%^&*(-_=+)", 48, 48))
def test_keys_full_of_signs_are_no_expressions(text: str) -> None:
    """Django draws its keys from these signs, and most keys have a bracket without its other half."""
    key = text.replace("$(", "$") + "(7"
    value = doubt(key, detector=KEYWORD, line=f"SECRET_KEY = '{key}'")
    assert value in (None, "a template") or not looks_random(key)


@pytest.mark.parametrize("text", ["os.environ['A1_B2'](x[0],-1)", "get(k1)[x2]+{a3:b4}-c5", "f(x1,y2)#a%b=c-d7"])
def test_expressions_with_brackets_stay_expressions(text: str) -> None:
    assert doubt(text, detector=KEYWORD, line=f"password = {text}") == "an expression of code"
