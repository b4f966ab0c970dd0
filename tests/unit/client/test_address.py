"""Hub addresses as users type and paste them."""

import pytest

from minicluster.client.address import AddressWrong, understand


@pytest.mark.parametrize(
    ("told", "url"),
    [
        ("https://lab.example.org", "https://lab.example.org/"),
        ("https://lab.example.org/hub/home", "https://lab.example.org/"),
        ("https://lab.example.org/hub/login?next=%2Fhub%2F", "https://lab.example.org/"),
        (" <https://lab.example.org/user/ada/lab/tree/a.ipynb#x> ", "https://lab.example.org/"),
        ("https://lab.example.org/services/minicluster/jobs/7", "https://lab.example.org/"),
        ("https://lab.example.org/jupyter/hub/token", "https://lab.example.org/jupyter/"),
        ("https://lab.example.org/jupyter", "https://lab.example.org/jupyter/"),
        ("HTTPS://LAB.example.org:8443/", "https://lab.example.org:8443/"),
        ("lab.example.org", "https://lab.example.org/"),
        ("lab:8000/hub/home", "https://lab:8000/"),
        ("localhost:8000", "http://localhost:8000/"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("http://[::1]:8000/hub", "http://[::1]:8000/"),
    ],
)
def test_what_people_paste_is_understood(told, url):
    assert understand(told).url == url


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("", "no host"),
        ("https://", "no host"),
        ("ftp://lab", "ftp://"),
        ("https://lab:80x/", "80x"),
        ("https://ada:secret@lab/", "a user name"),
        ("https://lab..org", "lab..org is not a valid host name"),
    ],
)
def test_what_cannot_be_one_is_told(told, why):
    with pytest.raises(AddressWrong) as caught:
        understand(told)
    assert why in caught.value.message
    assert "browser" in caught.value.hint


def test_where_service_and_tokens_are():
    address = understand("https://lab.example.org/jupyter/hub/home")
    assert address.service == "https://lab.example.org/jupyter/services/minicluster/"
    assert address.token_page == "https://lab.example.org/jupyter/hub/token"
    assert (address.host, address.port) == ("lab.example.org", 443)


@pytest.mark.parametrize(
    ("url", "readable"),
    [("http://lab:8000", True), ("https://lab", False), ("http://127.0.0.1:8000", False)],
)
def test_what_others_on_the_way_can_read(url, readable):
    assert understand(url).readable is readable
