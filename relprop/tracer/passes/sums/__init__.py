"""Sums: which tensors a sum of sums adds, and with which signs; biases, constants and positions
among its terms; sums of whole tensors that are written in other words."""
