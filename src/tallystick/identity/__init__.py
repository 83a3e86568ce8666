"""Who a client is: the folder with its keys and certificate, how it comes by one (`invitation.py`, `enrol.py`), changes
its keys (`rekey.py`), and knows its nodes and its own way to Kafka."""
