"""Benchmarks, in a folder for each question. Each runs with `python -m benchmarks.NAME [--quick]`.

`throughput`: how fast is it?

    throughput.race         loaders and bare tokenizers on the same documents (`make bench`)
    throughput.convert      the converter, compared with other ways to write MDS
    throughput.in_place     files that are read where they are, compared with a conversion
    throughput.count        `cloudload count`, compared with the tokenizer alone
    throughput.balance      rows balanced over ranks, compared with rows as they are dealt
    throughput.selected     a run with a selection, compared with one of all documents
    throughput.first_pass   the first pass over new text, compared with a later one
    throughput.chats        conversations, compared with TRL and transformers
    throughput.check_rules  each rule of `cloudload check`
    throughput.losses       losses by document, compared with a training step
    throughput.node         the loaders of a node with 8 ranks, at a given speed of training
    throughput.store_reads  downloads from S3 and GCS, compared with other clients

`gpu`: does a GPU wait for data?

    gpu.train               a GPT on one GPU, with batches of cloudload, of memory, and of Streaming

`start`: how long does one wait?

    start.cold              for the first batch, with an empty cache (`make bench-cold`)
    start.parquet           for the first batch from Parquet files, compared with other loaders
    start.shard_sizes       for the first batch, by the size of the shards
    start.resume            for the first batch after a resume
    start.membership        for the next step after a rank was killed
    start.items             for documents by index, from a store and from the cache
    start.trace             for the documents of steps far past a state

`scale`: what do millions of shards, billions of documents, and thousands of ranks cost?

    scale                   opening, downloads, cache, states, and plans
    scale.index             ranks that open a dataset of a million shards
    scale.parquet_files     the index of 50,000 Parquet files
    scale.order             the order of an epoch
    scale.lengths           the tables that a loader builds from token lengths
    scale.exchange          the exchange between ranks
    scale.uneven_worlds     worlds that do not divide the number of lanes
    scale.conversion        planning and joining a conversion of a million files
    scale.memory            the memory of a long run
    scale.components        mixtures of thousands of components

`quality`: how good are the rows, the order, and the forecasts?

    quality.fill            the share of real tokens in the rows of each packing
    quality.fair            how fair a sample the first rows of `best_fit` are
    quality.balance         what balanced rows save the ranks of a machine
    quality.window          the shards in use at a time, by the shuffle window
    quality.drift           how far lanes drift apart
    quality.forecast        the figures of `cloudload plan`, compared with those of real runs

`peers` has the other side of each comparison. A peer runs in its own process, sometimes in its own
environment. `harness` starts processes and gives them turns, `options` is the command line,
`documents` the input, and `figures` the tables. The results are the files in this folder.
"""
