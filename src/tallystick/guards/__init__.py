"""The six guards of EventGuard (section 4), one file each: subscribe, advertise, publish, unsubscribe, unadvertise,
route. Bytes, an `Act` (who asks, as a verified envelope proved it) and the node's memory come in; an accepted value
goes out, or `Refused` with the reason. Any carrier can call them: they hold no sockets, clocks or keys."""
