"""The side of `benchmarks.loader` that resumes a run, in its own process."""

from benchmarks.harness import serve
from benchmarks.loader import prepare_resume

if __name__ == "__main__":
    serve(prepare_resume)
