"""Trained models of other people whose right explanation is known, and every method measured on
them."""
