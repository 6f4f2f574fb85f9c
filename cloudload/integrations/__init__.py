"""One thin module per training framework. Import the one you use; nothing else imports them.

    composer       data_spec, eval_spec, CloudloadMonitor       transformers   CloudloadTrainer
    lightning      CloudloadDataModule, CloudloadMonitor        torchtitan     CloudloadDataLoader
    torchdata      CloudloadNode, CloudloadDataset              dcp            LoaderState

Each does two things: it puts the loader's state into the framework's own checkpoints, so that a
resume neither repeats nor loses a batch; and it makes the framework count rows and tokens as the
loader does.
"""
