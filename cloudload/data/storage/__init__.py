"""Access to objects by URL: S3, GCS, fsspec, StreamingDataset's downloaders, or a local path.

    read_object("s3://bucket/key") ─► objects ─► retries ─► a backend ─► bytes
                                                    │       chosen by the scheme
                                                    └─► StoreError, redacted, with a kind

    objects    read, write, list, delete, by scheme
    retries    retries, deadline, log, advice
    base       the protocol, the retry policy
    clients    timeouts, length checks
    s3         S3, and compatible stores
    gcs        GCS
    local      files of this machine
    advice     what to do after a failure
    fsspec     any other scheme
    streaming  Streaming's downloaders
    urls       schemes and paths
    globs      patterns of file names
    versions   an object's version
    redaction  remove secrets
    nearby     similar names
    hub        the Hugging Face Hub
    locations  of datasets; whether two are the same

`docs/contributing/extend.md` explains how to add a store.
"""
