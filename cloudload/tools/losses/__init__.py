"""Losses by source and document, summed from token losses.

    training step    batch, token losses ─► LossLog.add ─► sums by document, on the device
    periodically     LossLog.take_means ─► mean loss of each source, over all ranks
                     LossLog.flush ─► a file for each rank and start of the run
    afterwards       read_losses ─► Losses, each row once ─► blame ─► outliers

    log       `LossLog`, on the device    blame  read all files, find outliers
    log_file  the file format

A source is a stream. The log has a record for each document in each row: the row, the document, and
the number and the sum of its tokens' losses.
"""
