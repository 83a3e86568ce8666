"""Many small questions in one request: where it goes, and how many it may hold."""

BUNDLE_PATH = "/v1/bundle"
QUESTIONS_MAX = 256  # a proof of the state has about a kilobyte: a quarter of a megabyte, and of a tenth of a second
