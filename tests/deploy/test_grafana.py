"""The dashboard of Grafana, as a file; what its panels show, `test_prometheus.py` has."""

import json

from tests.docs.pages import ROOT

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]


def test_panels_neither_overlap_nor_share_a_number() -> None:
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["description"] for panel in PANELS)
