"""python -m scripts.bench.checksums: what the checksum of an upload costs the S3 server and the client.

Multipart uploads of random bytes to MinIO, with CRC-64/NVME, CRC-32C (both of the full object) and without, in turns.
CPU in seconds a GiB; medians.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import boto3
from awscrt.checksums import crc32c, crc64nvme
from botocore.config import Config

from scripts.bench.processes import cpu_of
from scripts.dev.minio import Minio

_BUCKET = "bench"
_PART = 16 << 20  # bytes
_PARTS, _OBJECTS = 8, 6


class Checksum(NamedTuple):
    """An algorithm of S3, its function of bytes and the sum before them, and its width in bytes."""

    name: str
    compute: Callable[[bytes, int], int]
    width: int

    def text(self, value: int) -> str:
        return base64.b64encode(value.to_bytes(self.width, "big")).decode()


CHECKSUMS = (Checksum("CRC64NVME", crc64nvme, 8), Checksum("CRC32C", crc32c, 4), None)


def upload(s3: Any, key: str, body: bytes, checksum: Checksum | None) -> None:
    """Upload an object of `_PARTS` parts, each with its checksum, and the whole with its own."""
    where = {"Bucket": _BUCKET, "Key": key}
    kind: dict[str, str] = {}
    if checksum is not None:
        kind = {"ChecksumAlgorithm": checksum.name, "ChecksumType": "FULL_OBJECT"}
    upload_id = s3.create_multipart_upload(**where, **kind)["UploadId"]
    parts, total = [], 0
    for number in range(1, _PARTS + 1):
        sums = {}
        if checksum is not None:
            sums = {f"Checksum{checksum.name}": checksum.text(checksum.compute(body, 0))}
            total = checksum.compute(body, total)
        answer = s3.upload_part(**where, UploadId=upload_id, PartNumber=number, Body=body, **sums)
        parts.append({"PartNumber": number, "ETag": answer["ETag"], **sums})
    whole = {}
    if checksum is not None:
        whole = {f"Checksum{checksum.name}": checksum.text(total), "ChecksumType": "FULL_OBJECT"}
    s3.complete_multipart_upload(**where, UploadId=upload_id, MultipartUpload={"Parts": parts}, **whole)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.checksums", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="rounds (5)")
    repeat: int = parser.parse_args(arguments).repeat
    body = os.urandom(_PART)
    costs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with Minio() as minio:
        minio.create_bucket(_BUCKET)
        s3 = boto3.client(
            "s3",
            endpoint_url=minio.endpoint_url,
            region_name=minio.region,
            aws_access_key_id=minio.access_key,
            aws_secret_access_key=minio.secret_key,
            config=Config(
                request_checksum_calculation="when_required",
                s3={"payload_signing_enabled": False, "addressing_style": "path"},
            ),
        )
        gib = _OBJECTS * _PARTS * _PART / 2**30
        for number in range(repeat + 1):  # the first round is not counted
            for checksum in CHECKSUMS:
                server, client = cpu_of(minio.pid), time.process_time()
                for key in range(_OBJECTS):
                    upload(s3, str(key), body, checksum)
                if number:
                    cost = ((cpu_of(minio.pid) - server) / gib, (time.process_time() - client) / gib)
                    costs[checksum.name if checksum is not None else "none"].append(cost)
    print(f"{'checksum':<12}{'MinIO, s/GiB':>14}{'client, s/GiB':>15}")
    for name, rounds in costs.items():
        servers, clients = zip(*rounds, strict=True)
        print(f"{name:<12}{median(servers):>14.2f}{median(clients):>15.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
