"""HTML and SVG without a framework, for the pipeline's report, the console and notebooks: values come in, markup that
cannot be injected into goes out."""
