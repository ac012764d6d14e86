"""``python -m dynamo_structural_tags.frontend``: see `launch.main`."""

from dynamo_structural_tags.frontend.launch import main

if __name__ == "__main__":
    main()
