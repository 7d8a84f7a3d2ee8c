"""The chart: what it renders is valid, is what is committed, and is a pipeline that penstock takes.

`python -m tests.deploy.test_kubernetes` writes deploy/kubernetes anew.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError, lint

from penstock.config import parse_pipeline
from tests.docs.pages import ROOT

CHART = ROOT / "deploy" / "helm" / "penstock"
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.27", "1.33")
KINDS = ("single", "ha")


def values_of(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / kind / "values.yaml").read_text())
    return found


def problem(document: Any, version: str) -> str:
    """What is wrong with a manifest; "" if nothing is."""
    import kubernetes_validate  # alone it takes a second of each worker

    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""


def rendered(values: dict[str, Any]) -> str:
    with Chart.load(CHART) as chart:
        files = chart.render(values, name="penstock", namespace="penstock")
    texts = [text.strip() for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return "".join(f"---\n{text}\n" for text in texts if text)


def objects(values: dict[str, Any]) -> dict[str, Any]:
    """By kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(rendered(values))}


def pod(values: dict[str, Any]) -> Any:
    return objects(values)["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_manifests_are_what_the_chart_renders(kind: str) -> None:
    assert (FOLDER / kind / "penstock.yaml").read_text() == rendered(values_of(kind))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_manifests_are_valid(kind: str, version: str) -> None:
    every = list(yaml.safe_load_all((FOLDER / kind / "penstock.yaml").read_text()))
    assert len(every) == (4 if kind == "ha" else 3)
    for each in every:
        assert problem(each, version) == ""
    broken = deepcopy(every[1])
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    assert "readynessProbe" in problem(broken, version)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_pipeline_file_is_one_and_answers_by_the_names_of_the_service(kind: str) -> None:
    text = objects(values_of(kind))["ConfigMap"]["data"]["pipeline.yaml"]
    secrets = {
        "POSITIONS_URL": "postgresql://h/p",
        "PG_URL": "postgresql://h/d",
        "NATS_URL": "nats://h",
        "PENSTOCK_OPS_TOKEN": "a",
        "PENSTOCK_OPS_READ_TOKEN": "b",
    }
    ops = parse_pipeline(text, environment=secrets).ops
    assert (ops.bind, ops.port, ops.extra_ports) == ("0.0.0.0", 9090, (8080,))
    assert "penstock.penstock.svc" in ops.hosts
    assert ops.token and ops.read_token and ops.token != ops.read_token


def test_the_file_may_have_more_settings_of_the_ops_server() -> None:
    values = values_of("single")
    values["pipeline"]["ops"] = {"stalled_after": "1m"}
    values["ops"] = {"hosts": ["metrics.example"]}
    ops = yaml.safe_load(objects(values)["ConfigMap"]["data"]["pipeline.yaml"])["ops"]
    assert (ops["stalled_after"], ops["port"]) == ("1m", 9090)
    assert ops["hosts"][-1] == "metrics.example"


@pytest.mark.parametrize(
    ("kind", "replicas", "requests", "limits"),
    [("single", 1, ("500m", "512Mi"), ("1", "1Gi")), ("ha", 4, ("1", "1Gi"), ("2", "2Gi"))],
)
def test_replicas_and_resources(
    kind: str, replicas: int, requests: tuple[str, str], limits: tuple[str, str]
) -> None:
    found = objects(values_of(kind))
    assert found["Deployment"]["spec"]["replicas"] == replicas
    resources = pod(values_of(kind))["containers"][0]["resources"]
    assert tuple(resources["requests"].values()) == requests
    assert tuple(resources["limits"].values()) == limits
    assert ("PodDisruptionBudget" in found) == (kind == "ha")


def test_several_pods_prefer_different_nodes() -> None:
    (term,) = pod(values_of("ha"))["affinity"]["podAntiAffinity"].values()
    assert [each["weight"] for each in term] == [100]
    assert term[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert "affinity" not in pod(values_of("single"))


def test_a_standby_counts_as_ready_and_liveness_asks_for_the_process_alone() -> None:
    container = pod(values_of("ha"))["containers"][0]
    paths = {key: value["httpGet"]["path"] for key, value in container.items() if "Probe" in key}
    assert paths == {
        "startupProbe": "/",
        "livenessProbe": "/",
        "readinessProbe": "/ready?standby=ok",
    }


def test_no_secret_is_in_a_manifest() -> None:
    container = pod(values_of("single"))["containers"][0]
    tokens = {"PENSTOCK_OPS_TOKEN", "PENSTOCK_OPS_READ_TOKEN"}
    names = {each["name"] for each in container["env"]}
    assert names == {"POSITIONS_URL", "PG_URL", "NATS_URL"} | tokens
    assert all("secretKeyRef" in each["valueFrom"] for each in container["env"])
    values = {**values_of("single"), "secretFiles": {"/etc/nats": "nats-login"}}
    mounts = {
        each["name"]: each["mountPath"] for each in pod(values)["containers"][0]["volumeMounts"]
    }
    assert mounts["secret-nats-login"] == "/etc/nats"
    assert "Secret" not in objects(values)


@pytest.mark.slow
def test_a_processor_has_an_observer_and_no_sink() -> None:
    values = {**values_of("ha"), "mode": "processor", "observer": "shop.observers:Print"}
    del values["pipeline"]["sink"], values["pipeline"]["spark"]
    arguments = pod(values)["containers"][0]["args"]
    assert arguments[:3] == [
        "process", "/etc/penstock/pipeline.yaml", "--observer=shop.observers:Print",
    ]  # fmt: skip
    for each in yaml.safe_load_all(rendered(values)):
        assert problem(each, VERSIONS[-1]) == ""


def test_a_service_monitor_scrapes_the_ops_port() -> None:
    values = {**values_of("ha"), "serviceMonitor": {"enabled": True, "labels": {"release": "p"}}}
    found = objects(values)
    monitor, service = found["ServiceMonitor"], found["Service"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "p"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert endpoint["authorization"]["credentials"] == {"name": "penstock", "key": "ops-read-token"}
    values["ops"] = {"readToken": None, "token": None}
    assert "authorization" not in objects(values)["ServiceMonitor"]["spec"]["endpoints"][0]


def test_tokens_are_the_default_and_may_be_left_out() -> None:
    values = values_of("single")
    assert "token" in yaml.safe_load(objects(values)["ConfigMap"]["data"]["pipeline.yaml"])["ops"]
    values["ops"] = {"token": None, "readToken": None}
    found = objects(values)
    assert "token" not in found["ConfigMap"]["data"]["pipeline.yaml"]
    assert "PENSTOCK_OPS" not in json.dumps(found)


PLACED = {
    "serviceAccount": {"create": True, "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:x"}},
    "priorityClassName": "high",
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "annotations": {"reloader.stakater.com/auto": "true"},
    "podLabels": {"azure.workload.identity/use": "true"},
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["cdc.example"],
                "tls": [{"secretName": "tls", "hosts": ["cdc.example"]}]},
    "prometheusRule": {"enabled": True, "labels": {"release": "p"}},
    "grafanaDashboard": {"enabled": True},
    "serviceMonitor": {"enabled": True},
}  # fmt: skip


def test_what_a_cluster_wants_can_be_given() -> None:
    values = {**values_of("ha"), **PLACED}
    every = list(yaml.safe_load_all(rendered(values)))
    found = {each["kind"]: each for each in every if not each["metadata"]["name"].endswith("board")}
    spec = pod(values)
    (container,) = spec["containers"]
    account = found["ServiceAccount"]["metadata"]
    assert (spec["serviceAccountName"], account["annotations"]) == (
        account["name"], {"eks.amazonaws.com/role-arn": "arn:aws:x"},
    )  # fmt: skip
    for key in ("priorityClassName", "affinity", "topologySpreadConstraints"):
        assert spec[key] == PLACED[key]
    assert container["envFrom"] == PLACED["envFrom"]
    assert {"name": "ca", "configMap": {"name": "ca"}} in spec["volumes"]
    assert {"name": "ca", "mountPath": "/etc/ca"} in container["volumeMounts"]
    assert found["Deployment"]["metadata"]["annotations"] == PLACED["annotations"]
    (rule,) = found["Ingress"]["spec"]["rules"]
    assert rule["host"] == "cdc.example"
    assert rule["http"]["paths"][0]["backend"]["service"]["port"] == {"name": "ops"}
    assert (
        "cdc.example" in yaml.safe_load(found["ConfigMap"]["data"]["pipeline.yaml"])["ops"]["hosts"]
    )
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    assert found["PrometheusRule"]["spec"] == alerts
    (board,) = [each for each in every if each["metadata"]["name"] == "penstock-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    text = (ROOT / "deploy/grafana/penstock.json").read_text()
    assert json.loads(board["data"]["penstock.json"]) == json.loads(text)
    for each in every:
        if "monitoring.coreos.com" not in each["apiVersion"]:
            assert problem(each, VERSIONS[-1]) == ""


@pytest.mark.parametrize("source", ["prometheus/alerts.yaml", "grafana/penstock.json"])
def test_the_chart_has_copies_of_files_that_it_cannot_reach(source: str) -> None:
    ours, copy = ROOT / "deploy" / source, CHART / "files" / Path(source).name
    assert not copy.is_symlink(), "archives of the repository may lose links"
    assert copy.read_bytes() == ours.read_bytes(), f"cp {ours} {copy}"


def test_the_notes_say_where_the_token_is() -> None:
    with Chart.load(CHART) as chart:
        files = chart.render(values_of("single"), name="penstock", namespace="penstock")
    (notes,) = [text for name, text in files.items() if name.endswith("NOTES.txt")]
    assert "penstock check /etc/penstock/pipeline.yaml" in notes
    assert "key ops-token of the Secret penstock" in notes
    assert "WARNING" not in notes


@pytest.mark.parametrize(
    "change",
    [
        {"replica": 2},
        {"mode": "share"},
        {"mode": "processor"},
        {"pipeline": {}},
        {"pipeline": {"name": "a", "positions": "sqlite:///p.db", "backends": [{}], "sink": {}}},
        {"pipeline": {"name": "a", "positions": "etcd://h", "backends": [{}]}},
        {"ops": {"port": 0}},
        {"ops": {"token": "abc"}},
        {"ingress": {"enabled": True}},
        {"secrets": {"PG_URL": "postgresql://user:password@host/db"}},
    ],
    ids=json.dumps,
)
def test_values_that_are_wrong_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(HelmError):
        rendered({**values_of("single"), **change})


@pytest.mark.parametrize("kind", KINDS)
def test_the_chart_has_no_lint(kind: str) -> None:
    found = lint(CHART, values_of(kind), strict=True, namespace="penstock")
    assert [each for each in found["messages"] if "icon" not in str(each)] == []


def write(folder: Path = FOLDER) -> None:
    for kind in KINDS:
        (folder / kind / "penstock.yaml").write_text(rendered(values_of(kind)))


if __name__ == "__main__":
    write()
