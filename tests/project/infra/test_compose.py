"""The playground: names, ports and passwords of its services agree."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.project.infra.files import INFRA, ROOT, config_of, documents


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, object]]:
    (body,) = documents(INFRA / "compose" / "compose.yaml")
    return dict(body["services"])


def test_the_compose_file_runs_kbackup_with_its_settings(services: dict[str, dict[str, object]]) -> None:
    kbackup: dict[str, object] = services["kbackup"]
    environ, command = kbackup["environment"], kbackup["command"]
    assert isinstance(environ, dict)
    assert isinstance(command, list)
    config = config_of(command, environ)
    assert config.follow.listen == "0.0.0.0:9464"
    assert config.source["bootstrap.servers"] == config.target["bootstrap.servers"] == "kafka:9092"
    broker, s3 = services["kafka"]["environment"], services["s3"]["environment"]
    assert isinstance(broker, dict)
    assert "INSIDE://kafka:9092" in broker["KAFKA_ADVERTISED_LISTENERS"]
    assert s3 == {
        "MINIO_ROOT_USER": config.stores["s3"].access_key_id,
        "MINIO_ROOT_PASSWORD": config.stores["s3"].secret_access_key,
    }
    assert config.stores["s3"].endpoint_url == "http://s3:9000"
    script = services["bucket"]["command"]
    assert isinstance(script, list)
    assert str(config.archive).startswith(f"s3://{script[0].split()[-1].removeprefix('s3/')}/")


def test_compose_listens_on_loopback_alone(services: dict[str, dict[str, object]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]  # type: ignore[attr-defined]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_builds_the_image_and_takes_the_broker_of_the_tests(services: dict[str, dict[str, object]]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (broker,) = re.findall(r'name="kafka_2.13" rev="([^"]+)"', (ROOT / "scripts/dev/ivy.xml").read_text())
    assert {services[name]["image"] for name in ("kbackup", "page", "sample")} == {f"kbackup:{version}"}
    assert services["kafka"]["image"] == f"apache/kafka:{broker}"
    build = services["kbackup"]["build"]
    assert isinstance(build, dict)
    context = (INFRA / "compose" / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).samefile(INFRA / "image" / "Dockerfile")


def test_page_shows_the_archive_to_who_has_the_token(services: dict[str, dict[str, object]]) -> None:
    environ, command = services["page"]["environment"], services["page"]["command"]
    assert isinstance(environ, dict)
    assert isinstance(command, list)
    config = config_of(command, environ)
    assert services["page"]["ports"] == [f"127.0.0.1:8484:{config.ui.listen.rpartition(':')[2]}"]
    follower = services["kbackup"]["environment"]
    assert isinstance(follower, dict)
    assert config.archive == follower["KBACKUP_ARCHIVE"]
    link = f"http://127.0.0.1:8484/?token={config.ui.token}"
    for path in (INFRA / "compose" / "compose.yaml", INFRA / "docs" / "kubernetes.md"):
        assert link in path.read_text("utf-8")


def test_services_wait_for_services_that_are_there(services: dict[str, dict[str, object]]) -> None:
    for service in services.values():
        others = service.get("depends_on", [])
        assert isinstance(others, dict | list)
        assert set(others) <= set(services)
        for name in others:
            if isinstance(others, dict) and others[name] == {"condition": "service_healthy"}:
                assert "healthcheck" in services[name]
