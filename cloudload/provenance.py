"""Find the rows and documents of a run; see `cloudload.tools.provenance`."""

from __future__ import annotations

from cloudload.loading import WholeDocument as WholeDocument
from cloudload.tools.provenance.checkpoint import load_state as load_state
from cloudload.tools.provenance.describe_state import Difference as Difference
from cloudload.tools.provenance.describe_state import StateDescription as StateDescription
from cloudload.tools.provenance.describe_state import compare_states as compare_states
from cloudload.tools.provenance.describe_state import compare_with_loader as compare_with_loader
from cloudload.tools.provenance.describe_state import describe_state as describe_state
from cloudload.tools.provenance.find_document import Occurrence as Occurrence
from cloudload.tools.provenance.find_document import explain_absence as explain_absence
from cloudload.tools.provenance.find_document import find_document as find_document
from cloudload.tools.provenance.find_document import find_samples as find_samples
from cloudload.tools.provenance.golden import Golden as Golden
from cloudload.tools.provenance.golden import GoldenReport as GoldenReport
from cloudload.tools.provenance.golden import compare_golden as compare_golden
from cloudload.tools.provenance.golden import read_golden as read_golden
from cloudload.tools.provenance.golden import record_golden as record_golden
from cloudload.tools.provenance.row_page import render_rows as render_rows
from cloudload.tools.provenance.state_run import Run as Run
from cloudload.tools.provenance.state_run import open_run as open_run
from cloudload.tools.provenance.state_run import open_runs as open_runs
from cloudload.tools.provenance.state_run import split_steps as split_steps
from cloudload.tools.provenance.state_run import start_run as start_run
from cloudload.tools.provenance.viewed_rows import ViewedRow as ViewedRow
from cloudload.tools.provenance.viewed_rows import ViewedSpan as ViewedSpan
from cloudload.tools.provenance.viewed_rows import trace_documents as trace_documents
from cloudload.tools.provenance.viewed_rows import trace_steps as trace_steps
from cloudload.tools.provenance.viewed_rows import view_rows as view_rows
