"""Data sets in the formats they come in, as samples: an image or a text, its label, and what is known of the right explanation."""

from relprop.data.base import Sample, Source, Span

__all__ = ["Sample", "Source", "Span"]
