"""A file of a tree without a location."""

from pathlib import Path

import pytest

from m5ws.errors import CorruptObject
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from tests.support.records import planted


def test_a_file_that_was_not_located_is_an_error_and_no_empty_file(repo: Repository, tmp_path: Path) -> None:
    digest = planted.tree(repo, tmp_path, {"a": "small"})
    (stored,) = trees.load(repo.objects, digest).entries
    with pytest.raises(CorruptObject, match="not located"):
        trees.read_file(repo.objects, repo.locations, stored)
    (located,) = trees.located(repo.objects, repo.locations, digest).entries
    assert trees.read_file(repo.objects, repo.locations, located) == b"small"
