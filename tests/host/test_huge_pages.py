"""What a worker's environment says about its memory."""

import pytest

from hearth.backends.machine import process
from hearth.backends.machine.process import with_huge_pages


@pytest.fixture(params=["linux"])
def platform(request, monkeypatch):
    monkeypatch.setattr(process.sys, "platform", request.param)


def test_a_worker_asks_for_large_pages(platform):
    assert with_huge_pages({"A": "b"}) == {"A": "b", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def test_what_the_user_has_set_stays(platform):
    kept = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert with_huge_pages(kept) == kept
    other = with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"})
    assert other == {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1"}


@pytest.mark.parametrize("platform", ["darwin", "win32"], indirect=True)
def test_other_systems_have_no_such_thing(platform):
    assert with_huge_pages({"A": "b"}) == {"A": "b"}
