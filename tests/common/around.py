"""A model that is a small transformer and what a user wrote around it."""

from torch import nn

from tests.common.models import build


class Written(nn.Module):
    """Gives ``function(self, *inputs)``; ``self.inner`` is the transformer, of some settings."""

    def __init__(self, function, **settings):
        super().__init__()
        self.inner, self.function = build(**settings), function

    def forward(self, *inputs):
        return self.function(self, *inputs)
