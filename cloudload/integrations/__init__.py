"""One thin module per training framework. Import the one you use.

    composer    data_spec, eval_spec, CloudloadMonitor    transformers  CloudloadTrainer
    lightning   CloudloadDataModule, CloudloadMonitor     dcp           LoaderState
    torchtitan  CloudloadDataLoader, CloudloadMetrics     metrics       Monitor, to_wandb, …
    torchdata   CloudloadNode, CloudloadDataset           frameworks    errors if one is missing

Each module lets the framework save the loader's state in its checkpoints, so that a resume neither
repeats nor loses a batch. The modules composer, lightning, torchtitan and transformers can also log
`loader.stats()`. The composer module also makes Composer count rows and tokens as the loader does.
"""
