"""The permissions of each policy of docs/reference/policies, tried by real users of a real Ceph."""

import json
from typing import Any

import pytest

from tests.support.s3.ceph import Ceph
from tests.support.s3.policies import PAGES, template, together
from tests.support.s3.s3_client import answer_of, connect, fresh_bucket

pytestmark = pytest.mark.services

DENIED = "403 AccessDenied"
ROLES = ("reader", "researcher", "operator")


class Bucket:
    """A bucket of the admin's with one object of a team, and users to whom its policy gives roles."""

    def __init__(self, ceph: Ceph) -> None:
        self._ceph = ceph
        self.admin = connect(ceph.endpoint, ceph.users["admin"])
        self.name = fresh_bucket(self.admin)
        for prefix in ("team", "other"):
            self.admin.put_object(Bucket=self.name, Key=f"{prefix}/there", Body=b"first")

    def allow(self, **templates: str) -> None:
        """Apply templates by user."""
        named = [
            template(name, bucket=self.name, prefix="team", arn=self._ceph.users[user].arn)
            for user, name in templates.items()
        ]
        self.admin.put_bucket_policy(Bucket=self.name, Policy=together(*named))

    def tries(self, user: str) -> "Tries":
        return Tries(connect(self._ceph.endpoint, self._ceph.users[user]), self.name)


class Tries:
    """Requests of a user to a bucket. Each returns "ok" or the refusal."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def get(self, key: str) -> str:
        return answer_of(self._client.get_object, Bucket=self._bucket, Key=key)

    def head(self, key: str) -> str:
        return answer_of(self._client.head_object, Bucket=self._bucket, Key=key)

    def list(self, prefix: str) -> str:
        return answer_of(self._client.list_objects_v2, Bucket=self._bucket, Prefix=prefix)

    def create(self, key: str) -> str:
        return answer_of(self._client.put_object, Bucket=self._bucket, Key=key, Body=b"new", IfNoneMatch="*")

    def overwrite(self, key: str) -> str:
        return answer_of(self._client.put_object, Bucket=self._bucket, Key=key, Body=b"other")

    def delete(self, key: str) -> str:
        return answer_of(self._client.delete_object, Bucket=self._bucket, Key=key)

    def set_policy(self) -> str:
        empty = json.dumps({"Version": "2012-10-17", "Statement": []})
        return answer_of(self._client.put_bucket_policy, Bucket=self._bucket, Policy=empty)


@pytest.fixture
def bucket(ceph: Ceph) -> Bucket:
    return Bucket(ceph)


@pytest.fixture
def roles(bucket: Bucket) -> Bucket:
    bucket.allow(**{role: role for role in ROLES})
    return bucket


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_read_and_gets_404_for_absent_objects(roles: Bucket, role: str) -> None:
    tries = roles.tries(role)
    assert tries.get("team/there") == tries.head("team/there") == tries.list("team/") == "ok"
    # Without s3:ListBucket this would be 403, and a store could not tell "absent" from "denied".
    assert tries.head("team/absent") == "404 404" and tries.get("team/absent") == "404 NoSuchKey"


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reaches_another_prefix_or_the_policy(roles: Bucket, role: str) -> None:
    tries = roles.tries(role)
    assert tries.get("other/there") == tries.create("other/new") == tries.delete("other/there") == DENIED
    assert tries.set_policy() == DENIED


def test_a_reader_cannot_write_or_delete(roles: Bucket) -> None:
    tries = roles.tries("reader")
    assert tries.create("team/new") == tries.overwrite("team/there") == tries.delete("team/there") == DENIED


def test_a_researcher_can_publish_and_cannot_delete(roles: Bucket) -> None:
    tries = roles.tries("researcher")
    assert tries.create("team/new") == "ok" and tries.create("team/new") == "412 PreconditionFailed"
    assert tries.delete("team/new") == DENIED
    assert tries.get("team/new") == "ok"


def test_other_roles_can_read_a_published_object_and_the_bucket_owner_cannot(roles: Bucket) -> None:
    """An object belongs to the user that wrote it. The policy still applies to the users that it names."""
    assert roles.tries("researcher").create("team/new") == "ok"
    assert roles.tries("reader").get("team/new") == roles.tries("operator").get("team/new") == "ok"
    assert roles.tries("operator").delete("team/new") == "ok"
    assert roles.tries("researcher").create("team/newer") == "ok"
    assert roles.tries("admin").get("team/newer") == DENIED


def test_an_operator_can_publish_and_delete(roles: Bucket) -> None:
    tries = roles.tries("operator")
    assert tries.create("team/new") == tries.delete("team/new") == "ok"
    assert tries.get("team/new") == "404 NoSuchKey"


def test_a_team_has_access_only_to_its_prefix(bucket: Bucket) -> None:
    bucket.allow(researcher="team-prefix")
    tries = bucket.tries("researcher")
    assert tries.get("team/there") == tries.create("team/new") == tries.list("team/") == tries.list("team/x/") == "ok"
    assert tries.head("team/absent") == "404 404"
    assert tries.delete("team/there") == DENIED
    assert tries.get("other/there") == tries.create("other/new") == tries.list("other/") == DENIED
    # The page says so: a list without any prefix shows the names of all, or nothing absent could be told.
    assert tries.list("") == "ok"


def test_every_template_is_on_the_page() -> None:
    page = (PAGES.parents[1] / "how-to" / "access.md").read_text(encoding="utf-8")
    for path in PAGES.glob("*.json"):
        assert f"(../reference/policies/{path.name})" in page
        assert json.loads(path.read_text(encoding="utf-8"))["Version"] == "2012-10-17"
