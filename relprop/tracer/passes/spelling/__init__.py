"""One operation, one name: what PyTorch lets a model call by several operators, or through a view,
a complex number, a recurrent layer or an autocast subgraph, becomes calls that the later passes
know."""
