"""One module a DVC stage; runner.py is the contract they share."""

import os

# Read by the thread pool of torch when it loads. Two stages side by side share the cores: threads that spin while they wait then
# cost more than all the arithmetic (a training step beside three busy processes: 4 times slower), and alone nothing is lost.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
