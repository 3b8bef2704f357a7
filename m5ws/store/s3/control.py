"""boto3's part of an S3 store: its chain of credentials and settings, and its client.

Importing boto3 and creating a client take a third of a second, so a connection avoids both as long as possible.
Settings without a name in boto3's session are read from its botocore session.
"""

from typing import Any

import boto3
import botocore.config
import botocore.session
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError

from m5ws.store.s3.answers import code_of, status_of, translate
from m5ws.store.s3.errors import BucketMissing, NoCredentials, region_of
from m5ws.store.s3.location import Location
from m5ws.store.s3.variables import Credentials, bundle

CONNECT_S = 10.0


class Control:
    """Credentials and settings as the AWS CLI finds them (variables, profiles, SSO, roles, IMDS), and boto3 clients."""

    def __init__(self, location: Location) -> None:
        self._location = location
        try:
            settings = botocore.session.get_session()
            self.authorities: str | None = settings.get_config_variable("ca_bundle")
            self._session = boto3.Session(botocore_session=settings)
            self.here: str | None = self._session.region_name
        except BotoCoreError as error:
            raise translate(error, location, "", None) from error

    def credentials(self) -> Credentials:
        """Return the current credentials, refreshed if necessary. Raises NoCredentials."""
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentials(f"no credentials for {self._location.url}")
        frozen = credentials.get_frozen_credentials()
        return Credentials(access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token)

    @property
    def is_renewable(self) -> bool:
        """True if the source of the credentials gives others when they expire: a role, or a login."""
        credentials = self._session.get_credentials()
        return isinstance(credentials, RefreshableCredentials) and credentials.method != "env"

    def ask_region(self, wanted: str) -> str | None:
        """Return the bucket's region as reported by the server, in a request to the `wanted` region.

        Raises BucketMissing, TransientError and the other errors of `translate`.
        """
        try:
            response = self.client(wanted).head_bucket(Bucket=self._location.bucket)
        except ClientError as error:
            if code_of(error) in ("404", "NoSuchBucket"):
                named = f"{self._location.bucket} ({self._location.url})"
                raise BucketMissing(f"no such bucket: {named}") from error
            # A denied response contains the region too (AWS). Otherwise the next request reports the error.
            if status_of(error) in (301, 307, 400, 403):
                return region_of(error.response)
            raise translate(error, self._location, "s3:ListBucket", None) from error
        except BotoCoreError as error:
            raise translate(error, self._location, "s3:ListBucket", None) from error
        return region_of(response)

    def client(self, region: str) -> Any:
        """Return a client without retries and extra checksums, with the timeouts of [store].

        Raises UsageError if the authorities' file has no certificates, and the errors of `translate`.
        """
        if self.authorities:
            bundle(self.authorities)
        options = self._location.options
        path_style = options.endpoint_url is not None or "." in self._location.bucket
        config = botocore.config.Config(
            connect_timeout=CONNECT_S,
            read_timeout=options.stall_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=64,
            # Some servers refuse checksums that S3 does not require. `s3.transfer` sends the required checksum.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version="s3v4",
            s3={"addressing_style": "path" if path_style else "auto", "payload_signing_enabled": True},
        )
        try:
            return self._session.client("s3", region_name=region, endpoint_url=options.endpoint_url, config=config)
        except (BotoCoreError, ValueError) as error:
            raise translate(error, self._location, "", None) from error
