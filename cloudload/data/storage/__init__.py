"""Access to objects by URL: S3, GCS, fsspec, StreamingDataset's downloaders, or a local path.

    read_object("s3://bucket/key") ─► objects ─► retries ─► a backend ─► bytes
                                                    │       registry: scheme ─► backend
                                                    └─► StoreError, redacted, with a kind

    objects   read, write, list, delete        fsspec     any other scheme
    retries   retries, deadline, log, advice   streaming  Streaming's downloaders
    registry  scheme to backend                urls       schemes and paths
    base      the protocol, the retry policy   globs      patterns of file names
    clients   timeouts, length checks          versions   an object's version
    s3        S3, and compatible stores        redaction  remove secrets
    gcs       GCS                              nearby     similar names
    local     files of this machine            hub        the Hugging Face Hub
    advice    what to do after a failure       locations  whether two are the same

`docs/contributing/architecture.md` explains how to add a store.
"""
