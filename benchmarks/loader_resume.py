"""Run the side of `benchmarks.loader` that resumes a run, as a separate process."""

from benchmarks.harness import serve
from benchmarks.loader import prepare_resume

if __name__ == "__main__":
    serve(prepare_resume)
