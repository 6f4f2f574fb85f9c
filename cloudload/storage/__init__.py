"""Access to objects by URL: S3, GCS, fsspec, StreamingDataset's downloaders, or a local path.

    read_object("s3://bucket/key")
      objects    functions
        retries    retries, deadline, log, advice          ─► StoreError, redacted, with a kind
        registry   scheme ─► its backend, one per process
          base       Backend: open  upload  delete  list  peek  failure_kind  describe_endpoint
            s3  gcs  local  fsspec  streaming              ─► clients: timeouts, length checks
      urls  redaction                                         schemes, paths; removes secrets

Other packages use only `objects`, `urls`, `redaction`, and `Retry` and `StoredObject` from `base`.
`registry` explains how to add a store.
"""
