"""Everything beside the training loop: prepare data, ask about a run, explain it.

    convert  raw corpora to MDS            forecast    reads and cost of a run
    count    tokens in each document       provenance  rows back to documents
    select   documents by a condition
    check    problems in a dataset         losses      loss by source, document
    inspect  its summary and documents     engines     where units of work run
    export   rows to pre-tokenized MDS     cli         the command line
    warm     fetch shards before a run     bench       the speed of a loader alone

The loader never imports a tool.
"""
