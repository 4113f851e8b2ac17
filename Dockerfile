# The app as an unprivileged user on port 7860. Weights are fetched at first use into a writable cache.
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 user
USER user
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    HF_HOME=/home/user/.cache/huggingface \
    XDG_CACHE_HOME=/home/user/.cache \
    TRITON_CACHE_DIR=/home/user/.cache/triton \
    GRADIO_TEMP_DIR=/tmp/gradio \
    GRADIO_ANALYTICS_ENABLED=False \
    GRADIO_SERVER_NAME=0.0.0.0 \
    PYTHONUNBUFFERED=1
WORKDIR /home/user/app

COPY --chown=user requirements.txt .
RUN pip install --user --no-cache-dir -r requirements.txt
COPY --chown=user . .

EXPOSE 7860
HEALTHCHECK --start-period=60s --timeout=10s CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/', timeout=8)"
CMD ["python", "app.py"]
