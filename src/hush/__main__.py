"""``python -m hush``, which is also how ``torchrun -m hush train`` starts its processes."""

from hush.cli import main

if __name__ == "__main__":
    main()
