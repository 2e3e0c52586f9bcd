"""Fingerprints of private content, below every stage: keyed, so that they betray nothing to whoever lacks the key.

A plain hash of private data is an oracle: whoever can guess all but a password hashes each candidate and compares. An
HMAC under a key that stays with the owner has the same use (is this the data that the plan was made for?) and tells
nobody else anything. Only keyed fingerprints of private content may enter a plan, a certificate or a file name.
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

from hush.errors import InvalidInput
from hush.storage import temporary_beside

__all__ = ["DataKey", "is_fingerprint", "key_id_of"]


SIZE = 32  # bytes, as long as what HMAC-SHA256 gives
LABEL = "hush data key 1"
ROW, ROWS = b"hush row 2\n", b"hush rows 2\n"  # so that no leaf is the fingerprint of a corpus
_FILE = re.compile(re.escape(LABEL).encode() + rb"\n([0-9a-f]{64})\n")
# What file systems without hard links say: FAT, some network shares, some containers.
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
PATIENCE, NAP = 100, 0.01  # how often, and for how many seconds, to wait for another process's key
_FINGERPRINT = re.compile(r"([0-9a-f]{16}):[0-9a-f]{64}")


@final
class DataKey:
    """The owner's secret key for fingerprints of private data. Whoever holds it can test guesses: it is never released.

    Two keys are the same if their ids are; neither a repr nor an error shows the key itself.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != SIZE:
            raise InvalidInput(f"a data key has exactly {SIZE} bytes; make one with DataKey.create")
        self._secret = secret

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Self:
        """A new key from the system's entropy, in a new file that its owner alone can read. Existing files are kept."""
        key = cls(os.urandom(SIZE))
        target = Path(path)
        target.parent.stat()  # a missing folder is named, rather than the temporary file in it
        temporary = temporary_beside(target)  # a kill leaves this, never half a key
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(f"{LABEL}\n{key._secret.hex()}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            _give_name(temporary, target)
        except FileExistsError:
            raise InvalidInput(f"{path} exists; name a new file, keys are never overwritten") from None
        finally:
            temporary.unlink(missing_ok=True)
        return key

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The key in a file that ``create`` wrote and that nobody else can read."""
        if Path(path).is_dir():
            raise InvalidInput(f"{path} is a folder; name the file of the key, such as {Path(path) / 'data.key'}")
        with Path(path).open("rb") as file:
            found = _FILE.fullmatch(file.read(200))  # a key is shorter; anything longer is something else
        if found is None and Path(path).stat().st_size == 0:
            raise InvalidInput(
                f"{path} is not a data key but empty, as a process may leave it that is killed while it makes one; "
                "delete it, and a new key can be made there"
            )
        if found is None:
            raise InvalidInput(
                f"{path} is not a data key; pass the file that --key made first, or name a new file and one is made"
            )
        if os.name == "posix" and stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
            raise InvalidInput(f"{path} can be read or written by others; make it yours alone with chmod 600 {path}")
        return cls(bytes.fromhex(found[1].decode()))

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str]) -> Self:
        """The key at this path, made on first use."""
        if not Path(path).exists():
            try:
                return cls.create(path)
            except InvalidInput:  # another process made one meanwhile
                pass
        for _ in range(PATIENCE):
            if Path(path).stat().st_size:
                break
            time.sleep(NAP)  # another process holds the name, and is about to put its key there
        return cls.load(path)

    @property
    def id(self) -> str:
        """A public name for the key, so that "other key" and "other data" can be told apart."""
        return hmac.digest(self._secret, b"hush data key id 1", "sha256").hex()[:16]

    def fingerprint_row(self, row: str | bytes) -> bytes:
        """The keyed fingerprint of one row, 32 bytes: the leaf of it in the fingerprint of a corpus.

        Leaves may be computed anywhere and in any order. Whoever sees two of them learns whether the rows are equal,
        and nothing else without the key; they stay with the owner.
        """
        if isinstance(row, str):
            kind, content = b"s", row.encode("utf-8", "surrogatepass")
        elif isinstance(row, bytes):
            kind, content = b"b", row
        else:
            raise InvalidInput(f"a row is a {type(row).__name__}; pass text or bytes")
        return hmac.digest(self._secret, b"".join((ROW, kind, len(content).to_bytes(8, "little"), content)), "sha256")

    def fingerprint_leaves(self, leaves: Iterable[bytes]) -> str:
        """The keyed fingerprint of an ordered corpus from what ``fingerprint_row`` gave for each row."""
        digest, count = hmac.new(self._secret, ROWS, "sha256"), 0
        for leaf in leaves:
            if len(leaf) % SIZE:
                raise InvalidInput(f"a leaf has {len(leaf)} bytes; pass what DataKey.fingerprint_row returned")
            digest.update(leaf)
            count += len(leaf) // SIZE
        digest.update(count.to_bytes(8, "little"))
        return f"{self.id}:{digest.hexdigest()}"

    def fingerprint_rows(self, rows: Iterable[str | bytes]) -> str:
        """The keyed fingerprint of an ordered corpus, one row at a time: the key's id, a colon, HMAC-SHA256 in hex.

        It is an HMAC over the rows' own HMACs and their number, so that parts of a corpus may be read by several
        processes. Guarantee: two corpora have one fingerprint under one key only if they have equal rows in equal
        order, up to collisions of SHA-256: every row is bound to its kind and length, every leaf has one size, and rows
        and corpora are told apart. Without the key a fingerprint tells nothing about the rows, not even whether a guess
        is right.

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


def _give_name(whole: Path, target: Path) -> None:
    """Let a file that is written have its name; FileExistsError if there is a file of this name.

    A hard link does it in one step, and unlike a rename it replaces no key that appeared meanwhile. Without links the
    name is taken first, by an empty file that only one process can create, and then the written file replaces that. A
    kill between the two leaves the empty file: no key, and nothing that passes for one.
    """
    try:
        os.link(whole, target)
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        whole.replace(target)
    except BaseException:
        if whole.exists():  # not moved: the name is still ours, and empty; else somebody may have read the key already
            target.unlink()
        raise


def is_fingerprint(text: object) -> bool:
    """Whether this has the form of what ``fingerprint_rows`` returns."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def key_id_of(fingerprint: str) -> str:
    """The id of the key that a fingerprint was made with."""
    found = _FINGERPRINT.fullmatch(fingerprint)
    if found is None:
        raise InvalidInput("this is not a keyed fingerprint; pass what DataKey.fingerprint_rows returned")
    return found[1]
