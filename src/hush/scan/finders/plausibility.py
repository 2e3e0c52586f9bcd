"""Whether a text that a detector of credentials reports can be one, and how many values its format can hold.

Detectors recognise a credential by its format (a vendor's prefix and length) or only by its context (a name such as
password before a quoted text). Most of what they recognise by context in a code base is none: variables, placeholders,
prose, digests. ``doubt`` states why a text is probably no credential. It tells random text from words by two measures:
how often the kind of character changes from one to the next, and the Shannon entropy of the characters.

``most_values`` bounds from above how many values a text's format can hold, so that a promise does not assume a smaller
prior than any adversary has: four digits have at most 10,000 values, whatever a rule promises. It errs on the side of
too few: the smallest alphabet that contains the text, without what a vendor's format fixes.
"""

import base64
import math
import re
from collections import Counter
from itertools import pairwise

__all__ = ["FORMAT_DETECTORS", "TOO_SHORT", "doubt", "is_distinctive", "is_test_file", "looks_random", "most_values"]


TOO_SHORT = "too short for its promise"
MIN_LENGTH = 4  # shorter texts are words, or hold too little for any promise
MIN_RANDOM_LENGTH = 8  # of a text that can be told from words
# The share of neighbours that differ in kind (lower case, upper case, digit, other). Random hex has 0.47 on average,
# random base62 has 0.62; identifiers with digits or capitals have about 0.15.
MIN_CHANGES = 0.2
MIN_ENTROPY_SHARE = 0.75  # of the largest possible Shannon entropy; random texts of 12 or more characters have 0.9
MIN_SIGNS = 5  # different ones, of a text that is no expression although it has brackets
CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
MIN_LENGTH_IN_TESTS = 12  # of a text that counts as random in a test; shorter ones are made up as often as not
# Lines of generated files have millions of characters: only so much of a text, and of what precedes it, is looked at.
MAX_EXAMINED_CHARACTERS = 400
MAX_NAME_CHARACTERS = 100
MAX_COUNTED_CHARACTERS = 1100  # 2 ** 1100 values are beyond every prior
MIN_KEY_BODY = 64  # characters of base64 that a piece of a private key has at least

# Detectors whose matches have a format that little else has, by class. The others go by context alone.
FORMAT_DETECTORS = frozenset(
    {
        "AWSKeyDetector",
        "AzureStorageKeyDetector",
        "CloudantDetector",
        "DiscordBotTokenDetector",
        "GitHubTokenDetector",
        "GitLabTokenDetector",
        "JwtTokenDetector",
        "MailchimpDetector",
        "NpmDetector",
        "OpenAIDetector",
        "PrivateKeyDetector",
        "PypiTokenDetector",
        "SendGridDetector",
        "SlackDetector",
        "SquareOAuthDetector",
        "StripeDetector",
        "TelegramBotTokenDetector",
        "TwilioKeyDetector",
    }
)
# What precedes the random part, of tokens whose random part has the alphabet of base64 for addresses, with - and _.
PREFIXES = {
    "DiscordBotTokenDetector": re.compile(r"[^.]*\.[^.]*\."),  # the number of the user and the time
    "GitLabTokenDetector": re.compile(r"(?:gl[a-z]+-|GR1348941)(?:[0-9a-zA-Z]{2}_)?"),
    "SendGridDetector": re.compile(r"SG\.[^.]*\."),
    "SquareOAuthDetector": re.compile(r"sq0csp-"),
    "TelegramBotTokenDetector": re.compile(r"\d+:"),
}
LOOSE_FORMATS = ("CloudantDetector", "MailchimpDetector", "TelegramBotTokenDetector", "TwilioKeyDetector")
ENTROPY_DETECTORS = ("Base64HighEntropyString", "HexHighEntropyString")

PLACEHOLDER = re.compile(
    r"example|change.?me|placeholder|dummy|sample|redacted|replace|insert|your[-_. ]?|xxxx|\*\*\*|\.\.\.|…|foo.?bar"
    r"|qwerty|lorem|todo|fake|mock|123456|abcdef|deadbeef|0{8}|not.?a.?secret",
    re.IGNORECASE,
)
# Words that a text names itself by: a credential seldom says what it is.
SELF_NAMED = re.compile(
    r"passw|passwd|passphrase|secret|token|credential|api.?key|access.?key|(?:^|[-_])(?:my|some|any|the|test|user|admin|guest"
    r"|pass|key|pwd|root)(?:[-_]|$)|^test|test$|pass$|key$",
    re.IGNORECASE,
)
TEMPLATE = re.compile(
    r"\$\{|\$\(|\{\{|\}\}|^\{.*\}$|\{\w*\}|^<.*>$|%\(\w*\)s|%[sdr](?:\W|$)|^%\w+%$|^\$\w|^@\w+$|^__\w+__$"
)
EXPRESSION = re.compile(r"[()\[\]]|^[A-Za-z_]+[=:]$|^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$|::|->|=>|&&|\|\|")
REFERENCE_ON_LINE = re.compile(r"(?:[:=]|[!=]=)\s*[\w.-]+[\[(]")
LOCATION = re.compile(r"^\w+://|^(?:[.~]{0,2}/)?[\w.-]*[A-Za-z]{3}[\w.-]*(?:/[\w.*-]+)+/?$|^[A-Za-z]:\\|^arn:")
IDENTIFIER = re.compile(r"[A-Za-z]+(?:[-_.:/ ]+[A-Za-z]+)*[-_.:]?\d?")
MIME_OR_VERSION = re.compile(r"v?\d+(?:\.\d+)+\S*|\d{4}-\d\d-\d\d\S*")
UUID = re.compile(r"[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}", re.IGNORECASE)
DIGEST_NAME = re.compile(
    r"sha-?\d|sha_|\bsha\b|md5|hash|digest|checksum|integrity|fingerprint|commit|\brev(?:ision)?\b|etag|blob|uuid|guid"
    r"|(?:^|[_\W])ids?[_\W]|pbkdf2|scrypt|argon2|bcrypt|data:|;base64",
    re.IGNORECASE,
)
PASSWORD_NAME = re.compile(r"pass|pwd", re.IGNORECASE)
CREDENTIAL_NAME = re.compile(r"pass|pwd|secret|token|key|auth|credential|sign", re.IGNORECASE)
LOCK_FILE = re.compile(
    r"(?:^|/)(?:[\w.-]*[.-]lock(?:\.\w+)?|package-lock\.json|[\w.-]+\.(?:sum|resolved|min\.js|map|svg))$"
)
TEST_FOLDERS = frozenset({"test", "tests", "testing", "testdata", "test_data", "test-data", "fixture", "fixtures"}) | {
    "__tests__", "spec", "specs", "mocks", "__mocks__", "e2e"
}  # fmt: skip
TEST_FILE = re.compile(r"(?:test_|tests?\.|conftest\.).*|.*(?:_tests?|[.-]test|[._-]spec|Tests?)\.\w+")
KEY_BODY = re.compile(r"[A-Za-z0-9+/]{16,}")
SUBJECT_OF_DOCUMENTATION = re.compile(rb"1234567890|[Jj]ohn|example|test")


def is_test_file(path: str) -> bool:
    """Whether a file's path says that it is a test or data of one.

    >>> is_test_file("src/tests/data.json"), is_test_file("pkg/run_test.go"), is_test_file("src/latest/run.py")
    (True, True, False)
    """
    *folders, name = path.split("/")
    return bool(TEST_FOLDERS.intersection(map(str.lower, folders))) or TEST_FILE.fullmatch(name) is not None


def doubt(value: str, *, detector: str, line: str = "", path: str = "") -> str | None:
    """Why this text is probably no credential, in words that do not quote it; None if it may be one.

    detector: the class of the detector. line: in which it was found. path: of its file, if it has one.

    >>> doubt("changeme", detector="KeywordDetector"), doubt("b7Kq-92xVt", detector="KeywordDetector")
    ('a placeholder', None)
    """
    if detector == "PrivateKeyDetector":
        return None if sum(map(len, KEY_BODY.findall(value))) >= MIN_KEY_BODY else "a private key without content"
    at = line.find(value)
    name, value = line[max(0, at - MAX_NAME_CHARACTERS) : max(0, at)], value[:MAX_EXAMINED_CHARACTERS]
    if detector in FORMAT_DETECTORS:
        return _doubt_about_format(value, detector)
    return _doubt_about_form(value, line) or _doubt_about_content(value, detector, name, path)


def _doubt_about_format(value: str, detector: str) -> str | None:
    if detector == "JwtTokenDetector" and SUBJECT_OF_DOCUMENTATION.search(_decoded_claims(value)):
        return "a placeholder"
    variable = _random_part(value, detector)
    if PLACEHOLDER.search(value):
        return "a placeholder"
    if len(set(variable)) <= len(variable) // 6 + 2 or _counts(variable):
        return "repeats or counts"
    is_random = detector not in LOOSE_FORMATS or looks_random(variable) or _has_few_vowels(variable)
    return None if is_random else "a word or an identifier"


def _doubt_about_form(value: str, line: str) -> str | None:
    """What does not depend on where a text is: templates, references, prose, addresses."""
    if len(value) < MIN_LENGTH:
        return "a few characters"
    if not any(map(str.isalnum, value)):
        return "no letter or digit"
    if TEMPLATE.search(value):
        return "a template"
    if any(map(str.isspace, value)):
        return "prose"
    if PLACEHOLDER.search(value):
        return "a placeholder"
    if _is_key_of_signs(value):
        return None
    if EXPRESSION.search(value) or (len(line) <= 1000 and REFERENCE_ON_LINE.search(line) and not looks_random(value)):
        return "an expression of code"
    if LOCATION.search(value) and not (looks_random(value) and "://" not in value):
        return "a path or an address"
    if len(set(value)) <= len(value) // 6 + 1 or _counts(value):
        return "repeats or counts"
    if UUID.search(value):
        return "a UUID"
    return "a version or a date" if MIME_OR_VERSION.fullmatch(value) else None


def _doubt_about_content(value: str, detector: str, name: str, path: str) -> str | None:
    """Words, identifiers and digests, and what tests guess with. name: what precedes the text in its line."""
    if detector in ENTROPY_DETECTORS:
        if LOCK_FILE.search(path) or DIGEST_NAME.search(name):
            return "a digest or an identifier by its name"
        if not looks_random(value):
            return "a word or an identifier"
        return "in a test, without a name" if is_test_file(path) and not CREDENTIAL_NAME.search(name) else None
    if looks_random(value) and not (is_test_file(path) and len(value) < MIN_LENGTH_IN_TESTS):
        return None
    if SELF_NAMED.search(value) or IDENTIFIER.fullmatch(value):
        return "a word or an identifier"
    if is_test_file(path):
        return "in a test, not random"
    # Letters with digits: chosen by a person if the name says password, otherwise the name of something.
    is_password = PASSWORD_NAME.search(name) or detector == "BasicAuthDetector"
    return None if is_password or re.search(r"[^\w.:/-]", value) else "a word or an identifier"


def looks_random(text: str) -> bool:
    """Whether a text changes its kind of character as often as random text does, and has as much entropy.

    >>> looks_random("f3a9c17be0d245a8"), looks_random("connection_string2"), looks_random("a1a1a1a1a1a1")
    (True, False, False)
    """
    if len(text) < MIN_RANDOM_LENGTH:
        return False
    changes = sum(first != second for first, second in pairwise(map(_kind, text)))
    if changes < MIN_CHANGES * (len(text) - 1) or not any(map(str.isdigit, text)):
        return False
    parts = re.split(r"[^A-Za-z0-9]+", text)
    if len(parts) > 2 and all(IDENTIFIER.fullmatch(part) or part.isdigit() for part in parts if part):
        return False  # words and numbers with separators change often, too
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
    return entropy >= MIN_ENTROPY_SHARE * math.log2(min(len(text), _alphabet_size(text)))


def _is_key_of_signs(text: str) -> bool:
    """Whether a text is random and full of signs, as keys of web frameworks are; in expressions, brackets match.

    >>> _is_key_of_signs("qqq71!qqe(-8pg-fxs@*0z!t+8q$!12ej__llf!2e!xa=h-%y6"), _is_key_of_signs("sha256(key[0], 'a2')")
    (True, False)
    """
    signs = set(re.findall(r"[^A-Za-z0-9\s]", text))
    return len(signs) >= MIN_SIGNS and looks_random(text) and not _brackets_match(text)


def _brackets_match(text: str) -> bool:
    """Whether every bracket is closed by one of its kind; True without any."""
    opened: list[str] = []
    for sign in text:
        if sign in CLOSED_BY:
            opened.append(CLOSED_BY[sign])
        elif sign in CLOSED_BY.values() and (not opened or opened.pop() != sign):
            return False
    return not opened


def is_distinctive(text: str) -> bool:
    """Whether a text is so unlikely to occur by chance that it counts inside longer words, too."""
    return looks_random(text) or re.search(r"\W", text) is not None


def most_values(value: str, *, detector: str) -> int:
    """At most how many values the format of this text has; never more than it has.

    >>> most_values("4821", detector="KeywordDetector"), most_values("4f2a", detector="KeywordDetector") == 16**4
    (10000, True)
    """
    if detector == "PrivateKeyDetector":  # at least 128 bits in every kind of key in use; a piece may have fewer
        return 2 ** min(128, sum(map(len, KEY_BODY.findall(value))))
    if detector not in FORMAT_DETECTORS:
        value = value[:MAX_COUNTED_CHARACTERS]
        return _alphabet_size(value) ** len(value)
    if detector == "AWSKeyDetector" and len(value) == 20:
        return 2**40  # the other half of an access key's 80 bits is the number of the account
    if detector == "JwtTokenDetector":  # header and claims are no secret
        value = value.split(".")[2][:MAX_COUNTED_CHARACTERS] if value.count(".") == 2 else ""
        return _alphabet_size(value) ** len(value)
    if UUID.fullmatch(value):
        return 16**30  # of its 32 digits, less than two state the version
    variable = _random_part(value, detector)[:MAX_COUNTED_CHARACTERS]
    return _alphabet_size(variable) ** max(0, len(variable) - 9)  # prefixes and checksums have at most 9 characters


def _random_part(value: str, detector: str) -> str:
    """The longest run of random characters in a text of a vendor's format."""
    prefix = PREFIXES.get(detector)
    if prefix is None:
        return max(re.findall(r"[A-Za-z0-9+/]+", value), key=len, default="")
    return max(re.findall(r"[A-Za-z0-9+/_-]+", prefix.sub("", value, count=1)), key=len, default="")


def _alphabet_size(text: str) -> int:
    """The number of characters of the smallest usual alphabet that contains the text; at least 2."""
    kinds = set(map(_kind, text))
    if kinds <= {"digit"}:
        return 10
    if re.fullmatch(r"[0-9a-f]*|[0-9A-F]*", text):
        return 16
    size = sum({"lower": 26, "upper": 26, "digit": 10}.get(kind, 0) for kind in kinds)
    if "other" not in kinds:
        return size
    return size + 2 if re.fullmatch(r"[\w+/=-]*", text) else size + 33


def _kind(character: str) -> str:
    if character.isdigit():
        return "digit"
    return "upper" if character.isupper() else "lower" if character.islower() else "other"


def _counts(text: str) -> bool:
    """Whether most neighbours are successors, as in 12345678 or abcdefgh."""
    steps = sum(ord(second) - ord(first) in (1, -1) for first, second in pairwise(text))
    return len(text) > 3 and steps >= 0.7 * (len(text) - 1)


def _has_few_vowels(text: str) -> bool:
    """Whether a text of letters alone is random: English has 38 % vowels, random letters have 19 %."""
    return len(text) >= 16 and sum(letter in "aeiouAEIOU" for letter in text) <= 0.28 * len(text)


def _decoded_claims(token: str) -> bytes:
    part = token.split(".")[1] if "." in token else ""
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        return b""
