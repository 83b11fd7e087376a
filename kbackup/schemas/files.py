"""Schemas in files of the user's own."""

from __future__ import annotations

from pathlib import Path

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.base import Codec, Schema, missing, of_others
from kbackup.schemas.codec import codec_of

_KINDS = (
    ".avsc (Avro), .proto, .desc or .pb (Protobuf: text, or a set that protoc wrote), .json (JSON Schema)"
)


def file_codec(path: Path, message: str | None = None) -> Codec:
    """Return a codec by the file's ending; `message` is for Protobuf. `UsageError` for a file that can't be used. An
    Avro type that the file does not define is looked for beside it, in `<its full name>.avsc`; an import of a .proto in
    its folder, and among Google's own."""
    kind = path.suffix.lower()
    if message is not None and kind not in (".proto", ".desc", ".pb"):
        raise UsageError(f"{path} has no message {message}", "name a message only with a Protobuf file")
    try:
        if kind == ".proto":
            return _proto(path, message)
        if kind in (".desc", ".pb"):
            return _described(path, message)
        if kind == ".avsc":
            return codec_of(Schema("AVRO", path.read_text(encoding="utf-8"), _beside(path), str(path)))
        if kind == ".json":
            return codec_of(Schema("JSON", path.read_text(encoding="utf-8"), (), str(path)))
    except ImportError as error:
        raise missing(error) from error
    except UnicodeDecodeError:
        raise UsageError(f"schema {path} is not UTF-8", f"name a file {_KINDS}") from None
    except OSError as error:
        raise UsageError(
            f"schema {path}: {(error.strerror or str(error)).lower()}", "name a readable file"
        ) from error
    except UndecodableError as error:
        raise UsageError(error.message, f"name a file {_KINDS}") from error
    raise UsageError(f"{path} is no schema by its name", f"name a file {_KINDS}")


def _beside(path: Path) -> tuple[tuple[str, str], ...]:
    others = [other for other in sorted(path.parent.glob("*.avsc")) if other != path]
    return tuple((other.stem, other.read_text(encoding="utf-8", errors="replace")) for other in others)


def _proto(path: Path, message: str | None) -> Codec:
    from kbackup.schemas.protobuf import ProtobufCodec, compiled

    path.read_bytes()  # says it in words of its own where it can't be read
    with of_others(str(path), "Protobuf schema"):
        return ProtobufCodec(compiled(path.parent, path.name, str(path)), path.name, message)


def _described(path: Path, message: str | None) -> Codec:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from kbackup.schemas.protobuf import ProtobufCodec

    data = path.read_bytes()
    with of_others(str(path), "set of file descriptors that is whole"):
        files = FileDescriptorSet.FromString(data)
        return ProtobufCodec(files, files.file[-1].name, message)  # protoc writes imports first
