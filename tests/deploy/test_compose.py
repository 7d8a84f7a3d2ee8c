"""The compose file; tests/deploy/test_prometheus.py plays it."""

import subprocess
import sys
from pathlib import Path

import yaml

from tests.deploy.play import DEPLOY, FILE, ORDER, SERVICES, after


def test_the_file_is_one_of_compose() -> None:
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema"]
    subprocess.run([*command, "vendor.compose-spec", FILE], check=True)


def test_every_file_that_a_service_mounts_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
        build = service.get("build")
        assert build is None or (DEPLOY / build["context"] / build["dockerfile"]).exists()


def test_nothing_is_open_to_the_network_and_monitoring_is_asked_for() -> None:
    ports = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    asked = {name for name, each in SERVICES.items() if each.get("profiles") == ["monitoring"]}
    assert asked == {"prometheus", "grafana"}


def test_a_service_that_waits_for_health_waits_for_a_check() -> None:
    for name in SERVICES:
        for other, how in after(name).items():
            assert how["condition"] == "service_started" or "healthcheck" in SERVICES[other]
    assert ORDER.index("shop") < ORDER.index("penstock") < ORDER.index("prometheus")


def test_grafana_finds_the_data_source_and_the_dashboard() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources/penstock.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (found,) = yaml.safe_load((folder / "dashboards/penstock.yaml").read_text())["providers"]
    mounts = [each.split(":") for each in SERVICES["grafana"]["volumes"]]
    assert [where for _, where, _ in mounts if where.startswith(found["options"]["path"])]
