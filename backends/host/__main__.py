"""Entry point of `python -P -m hearth.backends.host`."""

from hearth.backends.host.host import main

if __name__ == "__main__":
    main()
