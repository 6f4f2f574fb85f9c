"""Run a list of units of work in other processes, on this machine or a cluster.

    unit      a function and an argument, both picklable; its result is small
              it may run again, or twice at once, with the same effect
    engines   units.run_units ──► in this process │ LocalProcesses │ RayExecutor │ any Executor

    units            run units, yield their results; the share of one job of an array
    local_processes  processes of this machine
    ray              a Ray cluster

An engine is `LocalProcesses` or a `concurrent.futures.Executor`. It can run any kind of work.
"""
