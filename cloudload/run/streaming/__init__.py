"""MosaicML Streaming's arguments as options of a loader.

    StreamingDataset, [streaming.Stream, …]     objects        ┐
    llm-foundry's YAML ◄─ yaml_files            training_yaml  ┴─► arguments ─► options

    objects        StreamingDataset and its Streams   yaml_files  YAML as OmegaConf reads it
    training_yaml  llm-foundry's YAML                 arguments   their equivalent options

This package never imports Streaming, because a user who passes its objects has imported it already.
"""
