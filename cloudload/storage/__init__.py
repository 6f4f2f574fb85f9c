"""Objects by URL: S3, GCS, any fsspec file system, StreamingDataset's downloaders, or a local path.

    read_object("s3://bucket/key")
      objects    verbs: retries, deadline, advice          ─► StoreError, redacted, with a kind
        registry   scheme ─► one backend per process
          base       Backend: open  upload  delete  list  failure_kind
            s3  gcs  local  fsspec  streaming              ─► clients: timeouts, length checks
      urls  redaction                                         schemes, paths; removes secrets

Other packages use the verbs of `objects`, the functions of `urls` and `redaction`, and `Retry` and
`StoredObject` of `base`. To add a store, write a `Backend` and add its scheme to `registry`.
"""
