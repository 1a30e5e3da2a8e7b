"""What each command of ``relprop`` does, apart from reading its arguments (``relprop.cli``).
Nothing here imports PyTorch before a command runs."""
