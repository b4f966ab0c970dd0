"""Numbers that no honest client sends."""

import pytest


@pytest.mark.parametrize("digits", ["9" * 17, "1" * 400, "9" * 10_000])
async def test_a_number_of_many_digits_is_refused_before_the_database_sees_it(api, digits):
    answer = await api.ask("GET", "api/jobs", params={"limit": digits})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "invalid"
