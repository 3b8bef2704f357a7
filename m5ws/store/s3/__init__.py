"""Store in an S3 bucket."""
