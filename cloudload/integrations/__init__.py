"""One thin module per training framework. Import the one you use; nothing else imports them.

    composer       data_spec, eval_spec, CloudloadMonitor       transformers   CloudloadTrainer
    lightning      CloudloadDataModule, CloudloadMonitor        torchtitan     CloudloadDataLoader
    torchdata      CloudloadNode, CloudloadDataset              dcp            LoaderState

Each module saves the loader's state in the framework's checkpoints, so that a resume neither
repeats nor loses a batch, and makes the framework count rows and tokens as the loader does.
"""
