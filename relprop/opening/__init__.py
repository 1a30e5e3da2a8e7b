"""What people hand over (a module with whatever is wrapped around it, a pipeline, an id, a folder,
texts and pictures), made into a module and tensors. Nothing is captured or explained here."""

from relprop.opening.opening import open_model, opened
from relprop.opening.wrapped import base_model, check_devices, usable_model

__all__ = ["base_model", "check_devices", "open_model", "opened", "usable_model"]
