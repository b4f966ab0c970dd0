"""A rank's displays in the file that its agent sends."""

import pytest

from minicluster.runtime.displays.install import DisplayCalls
from minicluster.runtime.displays.publisher import LINE_BYTES, Publisher
from minicluster.wire import Display
from minicluster_hub.web.context import ApiLimits


@pytest.fixture
def written(tmp_path, capfd):
    """Display a MIME bundle; return the file's content and the printed text."""

    def show(bundle):
        path = tmp_path / "display-0.log"
        path.touch()
        DisplayCalls(Publisher(path, 8_000_000)).display(bundle, raw=True)
        lines = path.read_bytes().splitlines(keepends=True)
        return [Display.model_validate_json(line) for line in lines], capfd.readouterr().out

    return show


@pytest.mark.parametrize(
    "bundle",
    [{"text/html": "\u6f22" * 1_500_000}, dict.fromkeys(("text/html", "image/svg+xml"), "x" * 1_999_990)],
)
def test_what_the_service_cannot_read_at_once_is_said_to_be_too_large(written, bundle):
    """Two million Chinese characters are 6 MB; the service would silently drop them."""
    sent, note = written({"text/plain": "a table" * 10, **bundle})
    assert not sent
    assert "not shown: 4 MB is the limit" in note and "mc.output()" in note
    assert "a table" in note
    assert ApiLimits().displays_bytes > LINE_BYTES


def test_what_is_half_a_character_does_not_fail_the_cell(written):
    (shown,), note = written({"text/html": "<b>caf\udce9</b>", "text/plain": "caf\udce9"})
    assert shown.data["text/html"] == "<b>caf?</b>"
    assert "caf?" in note
