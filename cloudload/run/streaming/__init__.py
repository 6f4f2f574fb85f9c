"""MosaicML Streaming's arguments as options of a loader.

    StreamingDataset, [streaming.Stream, …] ─────────────────┬─► arguments ─► options
    llm-foundry's YAML, as OmegaConf reads it ─► training_yaml ┘

    training_yaml  llm-foundry's YAML    arguments  their equivalent options

This package never imports Streaming, because a user who passes its objects has imported it already.
"""
