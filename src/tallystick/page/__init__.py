"""HTML and SVG without a framework, for the pipeline's report, the console and notebooks: values come in, markup that
cannot be injected into goes out.

It imports nothing of ours and stands above whatever has a look in notebooks (`_repr_html_`), from `trust` on.
"""
