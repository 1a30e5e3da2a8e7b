"""``python -m relprop`` is the ``relprop`` command."""

from relprop.cli import main

if __name__ == "__main__":
    main()
