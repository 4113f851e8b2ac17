"""Entry point: `python app.py` serves the page at http://127.0.0.1:7860."""

from kvviz.hardware import lent

if lent():
    import spaces  # noqa: F401  (has to come before torch sets up CUDA)

from kvviz.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["serve"]))
