"""The HTTP surface: each dialect maps its bodies to `GenerateRequest` and the events back.

`app.make_app` builds the aiohttp application around a `Backend`; `app.make_runner` gives it the
connection limits that it relies on. No generation logic lives here.
"""
