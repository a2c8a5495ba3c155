"""pgsched beside other task queues: ``comparison`` is the scenario; workers import one ``with_NAME`` each."""
