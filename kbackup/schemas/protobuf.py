"""Protocol Buffers, by Google's library; .proto text is compiled by protoc (of grpcio-tools)."""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.base import Json, Schema, SchemaType, misfit
from kbackup.schemas.protobuf_growth import MessageGrowth, check_growth, growth_of
from kbackup.util.scratch import ScratchFolder

_WELL_KNOWN = (
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
"""Protobuf's own files: the names that follow `google/protobuf/`."""
_MAIN = "__main__.proto"  # no other file refers to it
_COMPILATION_SECONDS = 60  # a schema is foreign text, and protoc may be made to run for long


class ProtobufCodec:
    """Fields by the names that they have in the file, as Protobuf's own mapping to JSON has them, defaults included;
    64-bit integers are numbers as far as JSON's readers take them exactly, text beyond."""

    kind: SchemaType = "PROTOBUF"

    def __init__(self, files: FileDescriptorSet, main: str, message: str | None = None) -> None:
        """Messages come from the file `main`: `message` by its name, with or without the package; by default the one
        that the data names, or the first. Raises what a pool does of files that don't go together."""
        self._pool = _pool(files)
        self.file = self._pool.FindFileByName(main)
        self._growth: dict[str, MessageGrowth] = {}
        self._message = _named(self.file.message_types_by_name, message, main) if message else None
        self._classes: dict[tuple[int, ...], tuple[Descriptor, type[Message]]] = {}

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        made = self._checked_class(data, indexes)
        try:
            message = made.FromString(data)
            value: Json = json_format.MessageToDict(
                message,
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=True,
                descriptor_pool=self._pool,
                unquote_int64_if_possible=True,
            )
        except Exception as error:
            # Not only `DecodeError`: a type with the name of one of Google's but other fields raises AttributeError.
            raise misfit("PROTOBUF", error) from error
        return value

    def _growth_of(self, kind: Descriptor) -> MessageGrowth:
        if kind.full_name not in self._growth:
            self._growth[kind.full_name] = growth_of(kind)
        return self._growth[kind.full_name]

    def fits(self, data: bytes, indexes: Sequence[int] | None = None) -> bool:
        try:
            self.whole_message(data, indexes)
        except UndecodableError:
            return False
        return True

    def whole_message(self, data: bytes, indexes: Sequence[int] | None = None) -> Message:
        """Return the message of data that hold no field which it does not have: a parser takes unknown fields, and so
        most bytes. `UndecodableError` for other data."""
        made = self._checked_class(data, indexes)
        try:
            message = made.FromString(data)
            size = message.ByteSize()
            message.DiscardUnknownFields()
            is_whole = message.ByteSize() == size
        except Exception as error:
            raise misfit("PROTOBUF", error) from error  # as in `decode`
        if not is_whole:
            raise UndecodableError("not PROTOBUF by its schema: it has fields that the schema does not have")
        return message

    def _checked_class(self, data: bytes, indexes: Sequence[int] | None) -> type[Message]:
        """Return the class of the messages that `indexes` select; raise `UndecodableError` for data that would grow too
        much."""
        asked = (0,) if indexes is None else tuple(indexes)
        if asked not in self._classes:
            kind = self._message or self._indexed(asked)
            self._classes[asked] = kind, message_factory.GetMessageClass(kind)
        kind, made = self._classes[asked]
        check_growth(data, kind, self._pool, self._growth_of(kind))
        return made

    def _indexed(self, indexes: Sequence[int]) -> Descriptor:
        """Return the message that indexes select: the n-th of the file, the n-th within that one, and so on."""
        among = list(self.file.message_types_by_name.values())
        for n, index in enumerate(indexes):
            if not 0 <= index < len(among):
                path = ".".join(str(step) for step in indexes[: n + 1])
                raise UndecodableError(f"its schema has no message {path}")
            kind = among[index]
            among = list(kind.nested_types)
        return kind


def protobuf_codec(schema: Schema, message: str | None = None) -> ProtobufCodec:
    """Return a codec for .proto text, or for a serialized FileDescriptorProto in base64, which some clients
    register."""
    texts = dict(schema.references)
    texts[_MAIN] = schema.text
    described: dict[str, FileDescriptorProto] = {}
    to_compile: dict[str, str] = {}
    for name, text in texts.items():
        file = _described(name, text)
        if file is not None:
            described[name] = file
        else:
            to_compile[name] = text
    files = FileDescriptorSet(file=described.values())
    if to_compile:
        files = _compiled_texts(to_compile, files, schema.name)
    return ProtobufCodec(files, _MAIN, message)


def _compiled_texts(texts: Mapping[str, str], known: FileDescriptorSet, name: str) -> FileDescriptorSet:
    """Compile .proto texts, by the name of their file, and the `known` files that they import."""
    with ScratchFolder("proto") as scratch:
        folder = scratch.path.resolve()
        try:
            for file, text in texts.items():
                path = folder / file
                if not path.resolve().is_relative_to(folder):
                    raise UndecodableError(f"{name} refers to {file!r}, which leads out of its folder")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:  # of names that no file can have, and text that is not Unicode
            raise UndecodableError(f"{name} can't be compiled: {error}") from error
        return compiled(folder, _MAIN, name, known)


def compiled(folder: Path, file: str, name: str, known: FileDescriptorSet | None = None) -> FileDescriptorSet:
    """Compile `file` in `folder` with all that it imports: `known` files, files from the folder, or Google's own.
    `UndecodableError` with protoc's words."""
    folder = folder.resolve()
    path = folder / file
    import_module("grpc_tools")  # raises here if it is missing: a process without it would fail in words of its own
    with ScratchFolder("protoc") as scratch:
        out = scratch.path / "out"
        given = scratch.path / "given"
        given.write_bytes((known or FileDescriptorSet()).SerializeToString())
        command = [
            sys.executable,
            "-P",  # nothing of the current directory is run, whatever it is called
            "-m",
            "grpc_tools.protoc",
            f"-I{folder}",
            *_googleapis(),
            f"--descriptor_set_in={given}",
            "--include_imports",
            f"--descriptor_set_out={out}",
            str(path) if path.exists() else file,
        ]
        try:
            done = subprocess.run(  # noqa: S603 (no shell, and no program but this one)
                command, capture_output=True, text=True, errors="replace", timeout=_COMPILATION_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise UndecodableError(f"{name} was not compiled within {_COMPILATION_SECONDS} seconds") from None
        if done.returncode:
            reason = done.stderr.strip().partition("\n")[0] or f"protoc ended with {done.returncode}"
            raise UndecodableError(f"{name} can't be compiled: {reason}")
        return FileDescriptorSet.FromString(out.read_bytes())


def _googleapis() -> list[str]:
    """Return options for google/type/money.proto and the like, which users of registries take for given."""
    try:
        packages = import_module("google.type").__path__
    except ImportError:
        return []
    return [f"-I{Path(package).parents[1]}" for package in packages]


def _described(name: str, text: str) -> FileDescriptorProto | None:
    """Return the file that a text describes in base64, under a name; None if the text is none."""
    try:
        data = base64.b64decode(text, validate=True)
        file = FileDescriptorProto.FromString(data)
    except (binascii.Error, DecodeError, ValueError):
        return None
    file.name = name
    return file


def _pool(files: FileDescriptorSet) -> DescriptorPool:
    """Return a pool of `files` and what they import, each after its imports; Protobuf's own files are added where
    `files` have none of them."""
    described: dict[str, FileDescriptorProto] = {}
    for name in _WELL_KNOWN:
        known = import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR
        described[known.name] = FileDescriptorProto.FromString(known.serialized_pb)
    for file in files.file:
        described[file.name] = file
    needs: dict[str, Sequence[str]] = {}
    waiting = [file.name for file in files.file]
    while waiting:
        name = waiting.pop()
        if name not in needs:
            needs[name] = described[name].dependency
            waiting += needs[name]
    pool = DescriptorPool()
    for name in TopologicalSorter(needs).static_order():
        pool.Add(described[name])
    return pool


def _named(messages: Mapping[str, Descriptor], name: str, main: str) -> Descriptor:
    """Return the message `Outer.Inner`, named with its package or without."""
    known: dict[str, Descriptor] = {}

    def add(kinds: Iterable[Descriptor]) -> None:
        for kind in kinds:
            known[kind.full_name] = kind
            add(kind.nested_types)

    add(messages.values())
    for full_name, kind in known.items():
        without_package = full_name.removeprefix(f"{kind.file.package}.")
        if name in (full_name, without_package):
            return kind
    raise UsageError(f"there is no message {name} in {main}", f"name one of its messages: {', '.join(known) or 'none'}")
