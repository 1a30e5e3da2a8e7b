"""The page docs/evaluation.md: the papers' tables on the shipped models, what was published beside
them, and the pictures. The numbers are ``relprop.evaluation``'s."""
