"""A store in a directory: files are written beside their place, synced, and named in one step.

Creates use `link`, which fails where the name is taken. Conditional replaces and, where the file system knows no
links, creates take one lock file, which orders them among all processes of this tool. It is held for a comparison
and a rename only, and waited for only so long: a process may be stopped while it holds it. A file's time is set to
a fresh nanosecond when it is named, so (size, time, inode) is a version: no etag needs reading.

All that is made has the mode of the root: its owner alone may read a root that is made here, and whom a root that was
there lets in is let in everywhere below.

The root may be a link that the user gave. No link below it is followed, by any operation: an archive may come from
somebody else, and its links may lead into another archive, where they would be read, written and deleted.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from awscrt.checksums import crc64nvme

from kbackup.errors import (
    AlreadyExistsError,
    CorruptError,
    DeniedError,
    KbackupError,
    NotFoundError,
    PreconditionError,
    StoreError,
    UnreachableError,
)
from kbackup.store import base
from kbackup.store.base import KeyClasses, write_once
from kbackup.util.folders import Folder, LinkError
from kbackup.util.system import attempts

HIDDEN = ".tmp"
# A day: a process may be stopped for hours, and go on with its file.
_STALE_SECONDS = 24 * 3600
_PRUNED_MEANWHILE = 16
"""How often a folder is made again that another process deletes because it is empty."""
_LOCK_SECONDS = 30.0
_PRIVATE = 0o700
_FILE_BITS = 0o666
_NO_MODES = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_LINKS = {*_NO_MODES, errno.EMLINK}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_AWAY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN}


class SystemMeaning(NamedTuple):
    """What errors of the file system with one of `numbers` mean: kbackup's error, its text ('': the system's own), and
    a hint."""

    numbers: set[int]
    error: type[KbackupError]
    text: str
    hint: str


_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_MEANINGS = (
    SystemMeaning(_REFUSED, DeniedError, "", "check the owner and the mode of the directory, and how it is mounted"),
    SystemMeaning(_FULL, StoreError, "the store is full", "make room or raise the quota, then run again"),
    SystemMeaning(_AWAY, UnreachableError, "", "check the disk or the file server"),
    SystemMeaning({errno.ENOTDIR}, StoreError, "not a directory", "name a directory: the path leads through a file"),
    SystemMeaning(
        {errno.ENAMETOOLONG},
        StoreError,
        "the name is too long for this file system",
        "use a file system that takes longer names",
    ),
    SystemMeaning(
        {errno.EXDEV},
        StoreError,
        "a folder of the store is on another file system",
        "mount the whole directory from one file system",
    ),
)


@contextmanager
def mapped(name: str, *, writing: bool = False) -> Iterator[None]:
    """Turn errors of the file system on object `name` into kbackup's.

    In reading, a path that leads nowhere, through a file or to a folder is `NotFoundError`; in `writing`, a taken name
    is `AlreadyExistsError`. A link is a `StoreError` that names it.
    """
    try:
        yield
    except LinkError as error:
        raise StoreError(
            f"{name} can't be used: {error.filename} is a symbolic link",
            "move what the link leads to into its place: links within a store are not followed",
        ) from error
    except OSError as error:
        if writing and isinstance(error, FileExistsError):
            raise AlreadyExistsError(f"{name} exists already") from error
        if not writing and error.errno in _MISSING:
            raise NotFoundError(f"{name} does not exist") from error
        reason = os.strerror(error.errno).lower() if error.errno else str(error).lower()
        for meaning in _MEANINGS:
            if error.errno in meaning.numbers:
                raise meaning.error(f"{name}: {meaning.text or reason}", meaning.hint) from error
        raise StoreError(f"{name}: {reason}", "check the file system of the store") from error


def make_dirs(path: Path, mode: int) -> None:
    """Make `path` and its missing parents with exactly `mode`, each entry durable before the next is made.

    `FileNotFoundError` if one is pruned meanwhile. Links in `path` are followed: it is the user's own.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode)
            set_mode(folder, mode)
        except FileExistsError:
            # Another process may have made the folder; `stat` raises `FileNotFoundError` if it was deleted since.
            if not stat.S_ISDIR(folder.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        with Folder.at(folder.parent) as parent:
            parent.sync()


def make_folder(parent: Folder, name: str, mode: int) -> Folder:
    """Open the folder `name` in `parent`, and make it with exactly `mode` if it is missing.

    `FileNotFoundError` if it is pruned meanwhile.
    """
    with suppress(FileNotFoundError):
        return parent.folder(name)
    try:
        parent.mkdir(name, mode)
    except FileExistsError:
        # Another process was faster.
        return parent.folder(name)
    # A mode can't be set by a descriptor that only searches.
    with parent.folder(name, reading=True) as made:
        set_mode(made.descriptor, mode)
    parent.sync()
    return parent.folder(name)


def set_mode(target: Path | int, mode: int) -> None:
    """Give a path or an open file of ours exactly `mode`, whatever the umask left of it. A file system without modes
    (FAT, some network shares) has the modes of its mount."""
    try:
        if stat.S_IMODE(os.stat(target).st_mode) != mode:  # noqa: PTH116 (an open file, too)
            os.chmod(target, mode)  # noqa: PTH101 (the same)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def write_all(file: BinaryIO, data: base.Buffer) -> int:
    """Write `data` to an unbuffered file."""
    # One write may take less than it is given: Linux takes 2 GiB at most.
    view = base.view_of(data)
    done = 0
    while done < len(view):
        done += file.write(view[done:])
    return done


def prune(root: Path, names: Sequence[str]) -> None:
    """Remove the folder that `names` lead to from `root`, and its parents below `root`, as long as they are empty."""
    for depth in range(len(names), 0, -1):
        try:
            with Folder.at(root, names[: depth - 1]) as parent:
                parent.rmdir(names[depth - 1])
        except FileNotFoundError:
            # Another process pruned the folder. Its parent may still be there, and empty.
            pass
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return
            raise


def entries_of(folder: Folder, base: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return the files, folders and links in `folder` with their keys, sorted by key; `base` is what keys in this
    folder begin with. The key of a folder ends in '/', as in every key below it: 'a-b', 'a.b', 'a/b'. The hidden folder
    is left out.

    Code point order of `str` is UTF-8 binary order.
    """
    found = []
    with os.scandir(folder.descriptor) as entries:
        for entry in entries:
            key = base + entry.name
            if key == HIDDEN:
                continue
            if entry.is_dir(follow_symlinks=False):
                found.append((f"{key}/", entry))
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                found.append((key, entry))
    found.sort(key=itemgetter(0))
    return found


def etag_of(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"


class TempFile:
    """A file in the hidden folder, open for writing, unbuffered. It gets its place by a link or a rename."""

    def __init__(self, hidden: Folder, mode: int) -> None:
        """Take over `hidden`, which is closed with the file."""
        self.hidden = hidden
        self.name = f"{secrets.token_hex(16)}.part"
        descriptor = hidden.create(self.name, mode)
        set_mode(descriptor, mode)
        self.file = os.fdopen(descriptor, "wb", buffering=0)
        self._discarded = False

    def finish(self) -> None:
        """Make the content durable. Nothing can be written afterwards."""
        os.fsync(self.file.fileno())
        self.file.close()

    def touch(self, before: int) -> os.stat_result:
        """Give the finished file the time of now, later than `before` (ns)."""
        now = max(time.time_ns(), before + 1)
        os.utime(self.name, ns=(now, now), dir_fd=self.hidden.descriptor, follow_symlinks=False)
        return self.hidden.status(self.name)

    def link(self, folder: Folder, name: str) -> None:
        """Give the file a second name. `FileExistsError` if it is taken."""
        descriptors = {"src_dir_fd": self.hidden.descriptor, "dst_dir_fd": folder.descriptor}
        os.link(self.name, name, **descriptors, follow_symlinks=False)

    def rename(self, folder: Folder, name: str) -> None:
        """Move the file, in place of what has that name."""
        os.rename(self.name, name, src_dir_fd=self.hidden.descriptor, dst_dir_fd=folder.descriptor)

    def discard(self) -> None:
        """Close the file, and remove it unless it was moved; idempotent."""
        if self._discarded:
            return
        self._discarded = True
        try:
            self.file.close()
            with suppress(FileNotFoundError):
                self.hidden.unlink(self.name)
        finally:
            self.hidden.close()


class Publisher:
    """Writes files below `root`. Errors are the file system's own (`OSError`), but for a name that is a folder's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._swept = False
        self._sweeping = threading.Lock()

    def open_temp(self) -> TempFile:
        """Create a temporary file. Temporary files that a crash left more than a day ago are removed first."""
        hidden, mode = self.make_folders([HIDDEN])
        try:
            with self._sweeping:
                if not self._swept:
                    self._sweep()
                    self._swept = True
            return TempFile(hidden, mode & _FILE_BITS)
        except BaseException:
            hidden.close()
            raise

    def _sweep(self) -> None:
        oldest = time.time() - _STALE_SECONDS
        with Folder.at(self._root, [HIDDEN], reading=True) as hidden:
            for name in hidden.names():
                if not name.endswith(".part"):
                    continue
                # The owner of the file may finish it meanwhile, or another process may sweep it.
                with suppress(FileNotFoundError):
                    if hidden.status(name).st_mtime < oldest:
                        hidden.unlink(name)

    def make_folders(self, names: Sequence[str]) -> tuple[Folder, int]:
        """Open the folder that `names` lead to from the root, each made if it is missing, and the root as well. Returns
        the mode of folders, too."""
        try:
            folder = Folder.at(self._root)
        except FileNotFoundError:
            make_dirs(self._root, _PRIVATE)
            folder = Folder.at(self._root)
        mode = stat.S_IMODE(os.fstat(folder.descriptor).st_mode)
        for name in names:
            with folder:
                folder = make_folder(folder, name, mode)
        return folder, mode

    def create(self, temp: TempFile, key: str) -> str:
        """Link the finished file `temp`, which stays, to its place and return the new etag. `FileExistsError` if the
        key is taken."""
        status = temp.touch(0)

        def link(folder: Folder, name: str) -> None:
            try:
                temp.link(folder, name)
            except FileExistsError:
                folder.refuse_link(name)
                raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # A rename replaces what is there, so the name is looked at first, under a lock that all take.
                with self._lock():
                    if folder.mode(name):
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
                    temp.rename(folder, name)

        self._publish(key, link)
        return etag_of(status)

    def replace(self, temp: TempFile, key: str, check: Callable[[], None] | None = None) -> str:
        """Move the finished file `temp` to its place and return the new etag. `check` is called right before, under the
        lock."""
        status = temp.touch(0)

        def move(folder: Folder, name: str) -> None:
            nonlocal status
            # A version is (size, time, inode): the new time is later than the old one's, whatever the clock says.
            with suppress(FileNotFoundError):
                before = folder.status(name)
                if stat.S_ISLNK(before.st_mode):
                    raise LinkError(folder.path_of(name))
                status = temp.touch(before.st_mtime_ns)
            with self._lock() if check is not None else nullcontext():
                if check is not None:
                    check()
                temp.rename(folder, name)

        self._publish(key, move)
        return etag_of(status)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        hidden, mode = self.make_folders([HIDDEN])
        with hidden:
            try:
                descriptor = hidden.create("lock", mode & _FILE_BITS, os.O_RDWR)
                set_mode(descriptor, mode & _FILE_BITS)
            except FileExistsError:
                descriptor = hidden.open_to_write("lock")
        try:
            # A process may be stopped while it holds the lock: nobody waits for it without end.
            for _ in attempts(_LOCK_SECONDS, 0.005):
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
            else:
                raise UnreachableError(
                    f"directory {self._root}: another process holds its lock file and does not go on",
                    "end or continue the process that holds it",
                )
            yield
        finally:
            os.close(descriptor)

    def _publish(self, key: str, publish: Callable[[Folder, str], None]) -> None:
        """Call `publish` with the folder and the name of `key`, and make the name durable. A delete may remove the
        folder in between: then it is made and `publish` called again."""
        *names, name = key.split("/")
        hint = "use another key: no object's key can be the folder of another object's key"
        unwritable = f"file {self._root / key} can't be written"
        for attempt in range(_PRUNED_MEANWHILE):
            try:
                folder, _ = self.make_folders(names)
            except FileNotFoundError:
                if attempt == _PRUNED_MEANWHILE - 1:
                    raise
                continue
            except NotADirectoryError as error:
                raise StoreError(f"{unwritable}: {error.filename} is a file", hint) from error
            with folder:
                try:
                    publish(folder, name)
                    folder.sync()
                except FileNotFoundError:
                    if attempt == _PRUNED_MEANWHILE - 1:
                        raise
                except (IsADirectoryError, FileExistsError) as error:
                    if stat.S_ISDIR(folder.mode(name)):
                        raise StoreError(f"{unwritable}: there is a folder of that name", hint) from error
                    raise
                else:
                    return


class FileUpload(base.Upload):
    """`Upload` into a temporary file, which is named at `commit`."""

    def __init__(self, publisher: Publisher, key: str, name: str) -> None:
        self._publisher = publisher
        self._key = key
        self._name = name
        # Beside the archive, on the same file system: the file is named by a link.
        self._temp = publisher.open_temp()
        self._size = 0
        self._crc = 0

    def write(self, data: base.Buffer) -> None:
        self._check_open()
        view = base.view_of(data)
        with self._mapped():
            self._size += write_all(self._temp.file, view)
        self._crc = crc64nvme(view, self._crc)

    def commit(self) -> tuple[int, int]:
        with self._committing(), self._mapped():
            self._temp.finish()
            self._publisher.create(self._temp, self._key)
        self.abort()
        return self._size, self._crc

    def abort(self) -> None:
        self._open = False
        with self._mapped():
            self._temp.discard()

    def _mapped(self) -> AbstractContextManager[None]:
        return mapped(self._name, writing=True)


class FileStore(base.Store):
    """`Store` in the directory `root`, which the first write makes. `.tmp` in it holds unfinished files and is no
    key."""

    def __init__(self, root: Path | str, url: str = "", key_class: KeyClasses = write_once) -> None:
        self._key_class = key_class
        self._root = Path(root).absolute()
        self.url = url or str(root)
        self._publisher = Publisher(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStore, (self._root, self.url, self._key_class)

    @property
    def address(self) -> base.Address:
        """Return the address, with symbolic links and '..' followed as far as the path exists."""
        return base.Address("", self._root.resolve().parts)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._open(key) as file:
            size = os.fstat(file.fileno()).st_size
            base.check_whole(self._name(key), size, self._key_class(key).largest)
            data = file.read()
            # The version of the open file: the name may be another version's by now.
            status = os.fstat(file.fileno())
            return data, etag_of(status)

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if length == 0:
            return
        end = start + length
        with self._open(key) as file:
            file.seek(start)
            while start < end:
                chunk = file.read(min(base.CHUNK, end - start))
                start += self._check_read(key, len(chunk), end, file)
                yield chunk

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if not into:
            return
        end, at = start + len(into), 0
        with self._open(key) as file:
            file.seek(start)
            while at < len(into):
                # Unbuffered files have this method.
                count = file.readinto(into[at : at + base.CHUNK])  # type: ignore[attr-defined]
                at += self._check_read(key, count, end, file)
                yield into[at - count : at]

    def _check_read(self, key: str, count: int, end: int, file: BinaryIO) -> int:
        if not count:
            size = os.fstat(file.fileno()).st_size
            raise CorruptError(f"{self._name(key)} has {size} bytes, wanted up to byte {end}", base.SHORTER)
        return count

    def put(self, key: str, data: base.Buffer) -> str:
        self._check_key(key)
        with self._written(key, data) as temp:
            return self._publisher.replace(temp, key)

    def put_new(self, key: str, data: base.Buffer) -> str:
        self._check_key(key)
        with self._written(key, data) as temp:
            return self._publisher.create(temp, key)

    def replace(self, key: str, data: base.Buffer, etag: str) -> str:
        self._check_key(key)

        def check() -> None:
            if self.stat(key).etag != etag:
                raise PreconditionError(f"{self._name(key)} was replaced meanwhile")

        with self._written(key, data) as temp:
            return self._publisher.replace(temp, key, check)

    def upload(self, key: str) -> FileUpload:
        self._check_key(key)
        with mapped(self._name(key), writing=True):
            return FileUpload(self._publisher, key, self._name(key))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[base.ObjectInfo]:
        """List objects; `StoreError` for a link where a key begins with `prefix`. What it leads to may belong to
        somebody else, and without it the listing would lack what a user moved there."""
        base_key, slash, _ = prefix.rpartition("/")
        names = base_key.split("/") if slash else []
        if not base.may_hold_keys(prefix) or names[:1] == [HIDDEN]:
            return
        with mapped(f"directory {self._root}"):
            top = self._readable(names)
            if top is None:
                return
            # An entry asks its folder for its status, and a folder is opened in the one above it: all stay open.
            levels = [(top, iter(entries_of(top, base_key + slash)))]
            try:
                while levels:
                    folder, entries = levels[-1]
                    key, entry = next(entries, ("", None))
                    if entry is None:
                        levels.pop()
                        folder.close()
                    elif key.endswith("/"):
                        is_before = key < start_after and not start_after.startswith(key)
                        is_asked = key.startswith(prefix) or prefix.startswith(key)
                        if is_asked and not is_before:
                            below = self._entered(folder, entry.name)
                            if below is not None:
                                levels.append((below, iter(entries_of(below, key))))
                    elif key.startswith(prefix) and base.is_key(key):
                        info = _listed(key, entry, folder)
                        if info is not None and key > start_after:
                            yield info
            finally:
                for folder, _ in levels:
                    folder.close()

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        names = prefix[:-1].split("/") if prefix else []
        if not base.may_hold_keys(prefix) or names[:1] == [HIDDEN]:
            return
        with mapped(f"directory {self._root}"):
            folder = self._readable(names)
            if folder is None:
                return
            with folder:
                for key, entry in entries_of(folder, prefix):
                    if entry.is_symlink() and base.is_key(key):
                        raise LinkError(folder.path_of(entry.name))
                    if key.endswith("/") and next(self.list(key), None) is not None:
                        yield entry.name

    def _readable(self, names: Sequence[str]) -> Folder | None:
        """Open a folder for its list of names; None if there is no such folder."""
        try:
            return Folder.at(self._root, names, reading=True)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _entered(self, folder: Folder, name: str) -> Folder | None:
        """Open a folder of a listing; None if it was deleted since its parent was read."""
        try:
            return folder.folder(name, reading=True)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stat(self, key: str) -> base.ObjectInfo:
        with self._open(key) as file:
            status = os.fstat(file.fileno())
            return _info(key, status)

    def checksum(self, key: str) -> int | None:
        """Return None: directories keep no checksums."""
        self.stat(key)
        return None

    def retention(self, key: str) -> base.Retention:
        """Return `NO_RETENTION`: what snapshots or backups the disk has is not known to a directory."""
        self.stat(key)
        return base.NO_RETENTION

    def deleted_versions(self, key: str) -> builtins.list[base.Retention] | None:
        return []

    def delete(self, keys: Iterable[str]) -> builtins.list[base.Failed]:
        failed: list[base.Failed] = []
        touched: set[tuple[str, ...]] = set()
        for key in keys:
            try:
                self._check_key(key)
                *names, name = key.split("/")
                with mapped(self._name(key)), Folder.at(self._root, names) as folder:
                    # Its status first: a file system that is mounted for reading refuses to delete even what is not
                    # there, and that counts as deleted.
                    if stat.S_ISLNK(folder.status(name).st_mode):
                        raise LinkError(folder.path_of(name))
                    folder.unlink(name)
                touched.add(tuple(names))
            except NotFoundError:
                continue
            except StoreError as error:
                failed.append(base.Failed(key, error))
        for folder_names in sorted(touched):
            with mapped(f"directory {self._root.joinpath(*folder_names)}"):
                self._sync_and_prune(folder_names)
        return failed

    def _sync_and_prune(self, names: Sequence[str]) -> None:
        # Another process may prune the folder.
        with suppress(FileNotFoundError):
            with Folder.at(self._root, names) as folder:
                folder.sync()
            prune(self._root, names)

    def leave_mark(self, name: str) -> Path:
        """Leave an empty file that is no object, by which other machines know the directory; return its path. It is
        swept as the temporary files are."""
        path = self._root / HIDDEN / f"{name}.part"
        with mapped(f"file {path}", writing=True):
            hidden, mode = self._publisher.make_folders([HIDDEN])
            with hidden:
                os.close(hidden.create(path.name, mode & _FILE_BITS))
        return path

    def remove_marks(self, name: str) -> None:
        """Remove the files of the hidden folder whose names begin with `name`: a mark, and the answers to it."""
        with mapped(f"directory {self._root / HIDDEN}"), Folder.at(self._root, [HIDDEN], reading=True) as hidden:
            for each in hidden.names():
                if each.startswith(name):
                    with suppress(FileNotFoundError):
                        hidden.unlink(each)

    def _name(self, key: str) -> str:
        return f"file {self._root / key}"

    def _check_key(self, key: str) -> None:
        base.check_key(key)
        if key.partition("/")[0] == HIDDEN:
            raise StoreError(
                f"key {key!r} can't be used",
                f"use another name than '{HIDDEN}', which holds the store's unfinished files",
            )

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        self._check_key(key)
        *names, name = key.split("/")
        with mapped(self._name(key)):
            with Folder.at(self._root, names) as folder:
                descriptor = folder.open(name)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                yield file

    @contextmanager
    def _written(self, key: str, data: base.Buffer) -> Iterator[TempFile]:
        """Yield a finished temporary file with `data`; errors of the block are mapped too."""
        with mapped(self._name(key), writing=True):
            temp = self._publisher.open_temp()
            try:
                write_all(temp.file, data)
                temp.finish()
                yield temp
            finally:
                temp.discard()


def _listed(key: str, entry: os.DirEntry[str], folder: Folder) -> base.ObjectInfo | None:
    """Return what a listing has of an entry; None if it was deleted since its folder was read."""
    if entry.is_symlink():
        raise LinkError(folder.path_of(entry.name))
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _info(key, status)


def _info(key: str, status: os.stat_result) -> base.ObjectInfo:
    return base.ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime_ns / 1e9)
