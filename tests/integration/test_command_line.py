"""`python -m kbackup` as a user runs it: a process of its own, configured by file and environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.integration import topics
from tests.truth import Position, assert_restored, commit, positions, read_topic

ROOT = Path(__file__).parents[2]


def _run(arguments: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KBACKUP_", "AWS_"))}
    return subprocess.run(
        [sys.executable, "-m", "kbackup", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_backup_by_file_and_restore_by_environment(
    broker: Broker, bucket: Bucket, topic_name: str, tmp_path: Path
) -> None:
    topics.make_plain(broker, topic_name)
    group, source = f"group-{topic_name}", read_topic(broker.bootstrap, topic_name)
    commit(broker.bootstrap, group, {(topic_name, 0): Position(7, "here")})
    (tmp_path / "kbackup.toml").write_text(
        f"""
        archive = "{bucket.url}/some/prefix"
        [source]
        "bootstrap.servers" = "${{env:BROKER}}"
        [backup]
        topics = ["{topic_name}"]
        groups = ["{group}"]
        [spark]
        master = "local[1]"
        """
    )
    env = {**bucket.env, "BROKER": broker.bootstrap}

    done = _run(["backup"], tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert f"restore point 1 of {bucket.url}/some/prefix: 80 new records" in done.stdout
    assert bucket.server.secret_key not in done.stdout + done.stderr

    topics.produce(broker, topic_name, 1, topics.numbered(10))
    topics.delete_records(broker, topic_name, {1: 45})
    done = _run(["backup"], tmp_path, env)
    assert done.returncode == 3, done.stderr
    assert f"warning: loss: offsets 40 to 44 of {topic_name}-1" in done.stderr

    settings = {
        **bucket.env,
        "KBACKUP_ARCHIVE": f"{bucket.url}/some/prefix",
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_RESTORE_BACKUP": "1",
        "KBACKUP_RESTORE_MAP": f"{topic_name}=back-{topic_name}",
        "KBACKUP_SPARK_MASTER": "local[1]",
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = _run(["restore"], elsewhere, settings)
    assert done.returncode == 0, done.stderr
    assert "is done: 80 records" in done.stdout
    assert_restored(source, read_topic(broker.bootstrap, f"back-{topic_name}"))
    stands = positions(broker.bootstrap, group)
    assert stands[f"back-{topic_name}", 0] == stands[topic_name, 0] == Position(7, "here\0")

    done = _run(["restore"], elsewhere, settings)
    assert done.returncode == 1
    assert f"target topic back-{topic_name} is not empty" in done.stderr


def test_unknown_topic_is_a_usage_error(broker: Broker, bucket: Bucket, tmp_path: Path) -> None:
    arguments = ["backup", "--archive", bucket.url, "--bootstrap-server", broker.bootstrap, "-t", "no-such"]
    done = _run(arguments, tmp_path, bucket.env)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "kbackup: there is no topic no-such in the source cluster",
        "hint: check the name; regular expressions go between slashes",
    ]
