"""Access to objects by URL: S3, GCS, fsspec, StreamingDataset's downloaders, or a local path.

    Location("s3://bucket/key", Retry()).read() ─► retries ─► a backend ─► bytes
                                                      │       chosen by the scheme
                                                      └─► StoreError, redacted, with a kind

    locations  read, write, list, delete, by URL
    retries    retries, deadline, log, advice
    base       the retry policy, backends
    clients    timeouts, length checks
    s3         S3, and compatible stores
    gcs        GCS
    web        files of web servers
    local      files of this machine
    advice     what to do after a failure
    fsspec     any other scheme
    urls       schemes and paths, compared
    globs      patterns of file names
    versions   an object's version
    redaction  remove secrets
    nearby     similar names
    hub        the Hugging Face Hub

`docs/contributing/extend.md` explains how to add a store.
"""
