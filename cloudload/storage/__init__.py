"""Access to objects by URL: S3, GCS, fsspec, StreamingDataset's downloaders, or a local path.

    read_object("s3://bucket/key")
      objects    functions
        retries    retries, deadline, log, advice          ─► StoreError, redacted, with a kind
        registry   scheme ─► its backend, one per process
          base       Backend: the methods of a store
            s3  gcs  local  fsspec  streaming              ─► clients: timeouts, length checks
      urls  redaction                                         schemes, paths; removes secrets

Other packages use `objects`, `urls`, `globs`, `redaction`, `nearby` (similar names, if nothing is
stored at a location), `hub` (whether Hugging Face can be reached), and `Retry` and `StoredObject`
from `base`. `docs/contributing/architecture.md` explains how to add a store.
"""
