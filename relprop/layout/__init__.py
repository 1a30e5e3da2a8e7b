"""Which token came from where in the input: patches of an image, frames of a recording, words of a
text, or a model's own prefix token.

Found by pushing positions, in place of values, through the ops between the input and the token
tensor. Knows no attention and no relevance.
"""

from relprop.layout.lattice import Layout, lay_out, placing
from relprop.layout.places import Places, places_of

__all__ = ["Layout", "Places", "lay_out", "places_of", "placing"]
