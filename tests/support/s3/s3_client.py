"""boto3 clients for tests: path-style, signed, without retries, so that each response is the server's own."""

import secrets
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.s3.ceph import Keys

REGION = "us-east-1"


def connect(endpoint: str, keys: Keys, *, attempts: int = 1, read_timeout_s: float = 60) -> Any:
    """Return a client of the server at `endpoint` for a user."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": attempts},
            read_timeout=read_timeout_s,
            # Ceph 16 does not support the checksums that boto3 sends by default.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def fresh_bucket(client: Any, **options: Any) -> str:
    """Create a bucket with a name that no other test uses, in any process. Return its name."""
    name = f"bucket-{secrets.token_hex(8)}"
    client.create_bucket(Bucket=name, **options)
    return name


def answer_of(call: Callable[..., Any], **arguments: Any) -> str:
    """Return "ok", or the status and code of the server's refusal: "403 AccessDenied"."""
    try:
        call(**arguments)
    except ClientError as error:
        return f"{error.response['ResponseMetadata']['HTTPStatusCode']} {error.response['Error']['Code']}"
    return "ok"
