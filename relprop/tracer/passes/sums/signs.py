"""The sign of what enters or leaves a linear map is its weight's."""

from __future__ import annotations
