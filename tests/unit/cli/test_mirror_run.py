"""`kbackup mirror FILE`: what is refused before any cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.cli import main
from tests.support.mirrors import CLUSTERS


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (CLUSTERS, ["--take", "--apply"], "--take and --apply exclude each other"),
        (CLUSTERS, ["--flow", "B->A"], "no flow B->A"),
        (CLUSTERS, ["--flow", "A-B"], "did you mean A->B?"),
        (CLUSTERS, ["--once"], "no archive is named"),
        (CLUSTERS, ["--apply"], "no archive is named"),
        (CLUSTERS.replace("A->B.enabled = true", ""), [], "A->B.enabled = true"),
        (CLUSTERS + "topics.blacklist = x", [], "topics.exclude"),
        *(
            (CLUSTERS + "B->A.enabled = true", [*half, "-a", "/tmp/x"], "A and B have one archive, /tmp/x")
            for half in ([], ["--take"], ["--apply"], ["--dry-run"])
        ),
        (CLUSTERS.replace("B.bootstrap", "#"), ["--apply", "-a", "/tmp/x"], "set B.bootstrap.servers"),
        (CLUSTERS, ["-a", "/tmp/x", "--listen", "nowhere"], "host:port"),
    ],
)
def test_refused(
    text: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(text)
    assert main(["mirror", str(file), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_file_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "run", str(tmp_path / "none.properties")]) == 2
    assert "none.properties: no such file" in capsys.readouterr().err


def test_translate_refuses_one_archive_of_two_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(CLUSTERS + "B->A.enabled = true")
    assert main(["mirror", "translate", str(file), "billing", "-a", "/tmp/x"]) == 2
    assert "A and B have one archive, /tmp/x" in capsys.readouterr().err
