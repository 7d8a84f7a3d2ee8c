"""With the compiled kernel and without it."""

import pytest

from penstock.sinks.rows import kernel


@pytest.fixture(params=["kernel", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What uses it holds with the compiled kernel and without it."""
    if request.param == "plain":
        monkeypatch.setattr("penstock.sinks.rows.kernel.kernel", lambda: None)
    elif kernel.kernel() is None:
        pytest.skip("the native library is not built: python penstock/native/build.py")
    return str(request.param)
