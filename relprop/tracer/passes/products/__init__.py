"""Products: sums of products are matrix products or linear maps, linear maps that were cut are one,
and the factors of a product stand where they belong: beside the tensor that decides them."""
