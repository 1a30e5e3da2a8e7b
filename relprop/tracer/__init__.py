"""From a model and its inputs to a ``Program``: capture, canonicalise, find the leaves and the
attention sites. Knows no rule."""

from relprop.tracer.binding import Inputs, bind
from relprop.tracer.program import Program, Site
from relprop.tracer.trace import trace_program

__all__ = ["Inputs", "Program", "Site", "bind", "trace_program"]
