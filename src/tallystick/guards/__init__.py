"""The six guards of EventGuard (section 4): those of permits (`permits`: subscribe, advertise, unsubscribe,
unadvertise), `publish` and `route`. Bytes, an `Act` (who asks, as a verified envelope proved it) and the node's memory
come in; an accepted value goes out, or `Refused` with the reason. Any carrier can call them: they hold no sockets,
clocks or keys."""
