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


def test_compose_runs_kbackup(services: dict[str, dict[str, object]]) -> None:
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
        "MINIO_ROOT_USER": config.s3.access_key_id,
        "MINIO_ROOT_PASSWORD": config.s3.secret_access_key,
    }
    assert config.s3.endpoint_url == "http://s3:9000"
    script = services["bucket"]["command"]
    assert isinstance(script, list)
    assert str(config.archive).startswith(f"s3://{script[0].split()[-1].removeprefix('s3/')}/")


def test_compose_listens_on_loopback_alone(services: dict[str, dict[str, object]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]  # type: ignore[attr-defined]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_builds_the_image_and_takes_the_broker_of_the_tests(
    services: dict[str, dict[str, object]],
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (broker,) = re.findall(r'name="kafka_2.13" rev="([^"]+)"', (ROOT / "scripts/dev/ivy.xml").read_text())
    assert services["kbackup"]["image"] == f"kbackup:{version}"
    assert services["kafka"]["image"] == f"apache/kafka:{broker}"
    build = services["kbackup"]["build"]
    assert isinstance(build, dict)
    context = (INFRA / "compose" / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).samefile(INFRA / "image" / "Dockerfile")
