"""What settings are made of."""

import warnings

from penstock.model.settings import Settings


def test_a_setting_may_be_called_schema() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Named(Settings):
            schema: str = "public"  # type: ignore[assignment]

    assert (Named().schema, Named(schema="own").model_dump()) == ("public", {"schema": "own"})
