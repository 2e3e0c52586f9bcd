"""The owner's data key, and keyed fingerprints of private content, which reveal nothing without the key.

A plain hash of private data is an oracle: somebody who can guess everything except a password can hash each candidate
and compare. An HMAC under a key that stays with the owner has the same use (is this the data that the plan was made
for?) and reveals nothing to anybody else. Only keyed fingerprints of private content may enter a plan, a certificate or
a file name. Below every stage.
"""

import errno
import hmac
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self, final

from hush.errors import InvalidInput, Setting
from hush.storage import temporary_beside

__all__ = [
    "FINGERPRINT_BYTES",
    "LEAF_BYTES",
    "DataKey",
    "check_key_apart",
    "is_fingerprint",
    "key_id_of",
    "refuse_other_key",
]

KEY_BYTES = 32
LEAF_BYTES = FINGERPRINT_BYTES = 32  # the length of an HMAC-SHA256: of a row, and of what identifies a secret
LABEL = "hush data key 1"
ROW, ROWS = b"hush row 2\n", b"hush rows 2\n"  # prefixes: no fingerprint of a row is that of a corpus
_FILE = re.compile(re.escape(LABEL).encode() + rb"\n([0-9a-f]{64})\n")
IDENTITY = b"hush identity 1\n"  # nor that of a secret
# Errors of file systems without hard links: FAT, some network shares, some containers.
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
MAX_WAITS, WAIT_SECONDS = 100, 0.01  # for another process that is writing its key
_FINGERPRINT = re.compile(r"([0-9a-f]{16}):[0-9a-f]{64}")


@final
class DataKey:
    """The owner's secret key for fingerprints of private data. It allows testing guesses, so it is never released.

    Two keys are equal if their bytes are; neither a repr nor an error shows the key itself.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            raise InvalidInput(f"a data key has exactly {KEY_BYTES} bytes; make one with DataKey.create")
        self._secret = secret

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Self:
        """A new key from the system's entropy, in a new file that only its owner can read. No file is overwritten."""
        key = cls(os.urandom(KEY_BYTES))
        target = Path(path)
        target.parent.stat()  # so that the error names a missing folder, not the temporary file in it
        temporary = temporary_beside(target)  # a kill leaves this file, never half a key
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(f"{LABEL}\n{key._secret.hex()}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            _rename_if_free(temporary, target)
        except FileExistsError:
            raise InvalidInput(f"{path} exists; name a new file, keys are never overwritten") from None
        finally:
            temporary.unlink(missing_ok=True)
        return key

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The key in a file that ``create`` wrote, which only its owner may be able to read."""
        if Path(path).is_dir():
            raise InvalidInput(f"{path} is a folder; name the file of the key, such as {Path(path) / 'data.key'}")
        with Path(path).open("rb") as file:
            match = _FILE.fullmatch(file.read(200))  # a key file is shorter
        if match is None and Path(path).stat().st_size == 0:
            raise InvalidInput(
                f"{path} is not a data key but empty, probably because a process was killed while it created the key; "
                "delete it, and a new key can be created there"
            )
        if match is None:
            raise InvalidInput(
                f"{path} is not a data key; pass the file that was created as ",
                Setting("key"),
                ", or the name of a new file, in which a key is created",
                setting="key",
            )
        if os.name == "posix" and stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
            raise InvalidInput(f"others can read or write {path}; make it private with chmod 600 {path}", setting="key")
        return cls(bytes.fromhex(match[1].decode()))

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str]) -> Self:
        """The key at this path, created on first use."""
        if not Path(path).exists():
            try:
                return cls.create(path)
            except InvalidInput:  # another process created one meanwhile
                pass
        for _ in range(MAX_WAITS):
            if Path(path).stat().st_size:
                break
            time.sleep(WAIT_SECONDS)  # another process has reserved the name and is about to write its key
        return cls.load(path)

    @property
    def id(self) -> str:
        """A public name for the key, which distinguishes "other key" from "other data"."""
        return hmac.digest(self._secret, b"hush data key id 1", "sha256").hex()[:16]

    def fingerprint_row(self, row: str | bytes) -> bytes:
        """The keyed fingerprint of one row, 32 bytes: its leaf in the fingerprint of a corpus.

        Leaves may be computed anywhere and in any order. Without the key, two of them reveal whether their rows are
        equal, and nothing else; they stay with the owner.
        """
        if isinstance(row, str):
            kind, content = b"s", row.encode("utf-8", "surrogatepass")
        elif isinstance(row, bytes):
            kind, content = b"b", row
        else:
            raise InvalidInput(f"a row is a {type(row).__name__}; pass text or bytes")
        return hmac.digest(self._secret, b"".join((ROW, kind, len(content).to_bytes(8, "little"), content)), "sha256")

    def fingerprint_identity(self, kind: str, text: str) -> bytes:
        """The keyed fingerprint of what identifies a secret, 32 bytes; kind: what the text is, such as its name.

        It is equal for equal kinds and texts alone, up to collisions of SHA-256, and no fingerprint of a row. Without
        the key it does not even tell whether a guess is right.
        """
        parts = (kind.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass"))
        content = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return hmac.digest(self._secret, IDENTITY + content, "sha256")

    def fingerprint_leaves(self, leaves: Iterable[bytes]) -> str:
        """The keyed fingerprint of an ordered corpus from the ``fingerprint_row`` of each row, in order."""
        digest, count = hmac.new(self._secret, ROWS, "sha256"), 0
        for leaf in leaves:
            if len(leaf) % LEAF_BYTES:
                raise InvalidInput(f"a leaf has {len(leaf)} bytes; pass what DataKey.fingerprint_row returned")
            digest.update(leaf)
            count += len(leaf) // LEAF_BYTES
        digest.update(count.to_bytes(8, "little"))
        return f"{self.id}:{digest.hexdigest()}"

    def fingerprint_rows(self, rows: Iterable[str | bytes]) -> str:
        """The keyed fingerprint of an ordered corpus, one row at a time: the key's id, a colon, HMAC-SHA256 in hex.

        It is an HMAC over the HMACs of the rows and their number, so that several processes may read parts of a corpus.

        Guarantee: two corpora have the same fingerprint under one key only if they have equal rows in the same order,
        up to collisions of SHA-256: every leaf covers the kind and length of its row, all leaves have one size, and
        rows and corpora have different prefixes. Without the key a fingerprint reveals nothing about the rows, not even
        whether a guess is right.

        >>> key = DataKey(bytes(32))
        >>> key.fingerprint_rows(["ab", "c"]) == key.fingerprint_rows(["a", "bc"])
        False
        """

        def leaves() -> Iterator[bytes]:
            for index, row in enumerate(rows):
                if not isinstance(row, str | bytes):
                    raise InvalidInput(f"row {index} is a {type(row).__name__}; pass text or bytes")
                yield self.fingerprint_row(row)

        return self.fingerprint_leaves(leaves())

    def __eq__(self, other: object) -> bool:
        return hmac.compare_digest(self._secret, other._secret) if isinstance(other, DataKey) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"DataKey(id={self.id!r})"


def _rename_if_free(complete: Path, target: Path) -> None:
    """Give a complete file its name; FileExistsError if there is a file of this name.

    A hard link does it in one step, and unlike a rename it never replaces a key that appeared meanwhile. Without links
    the name is reserved first, by an empty file that only one process can create, which the complete file then
    replaces. A process killed between the two leaves the empty file, which is not a key and is not taken for one.
    """
    try:
        os.link(complete, target)
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        complete.replace(target)
    except BaseException:
        if complete.exists():  # not moved: the empty file is still ours; otherwise the key may have been read already
            target.unlink()
        raise


def is_fingerprint(text: object) -> bool:
    """Whether this has the form of a result of ``fingerprint_rows``."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def key_id_of(fingerprint: str) -> str:
    """The id of the key under which a fingerprint was made."""
    match = _FINGERPRINT.fullmatch(fingerprint)
    if match is None:
        raise InvalidInput("this is not a keyed fingerprint; pass what DataKey.fingerprint_rows returned")
    return match[1]


def refuse_other_key(key: "DataKey", fingerprint: str) -> None:
    """Refuse a key other than the one under which a plan's fingerprint was made."""
    if key.id != key_id_of(fingerprint):
        raise InvalidInput(
            f"this key is {key.id}, but the plan's fingerprint was made with {key_id_of(fingerprint)}; pass that key, "
            "or plan again with this one",
            setting="key",
        )


def check_key_apart(key: Path, source: str, *, read_as_data: bool) -> None:
    """Refuse a key file inside the data if it would be read as data: a model that learnt it would help test guesses.

    read_as_data: whether a file of this name in the folder ``source`` is read.
    """
    if read_as_data and Path(source).is_dir() and key.resolve().is_relative_to(Path(source).resolve()):
        raise InvalidInput(
            f"the key {key} lies inside the data, {source}, and would be read with it; move it elsewhere", setting="key"
        )
