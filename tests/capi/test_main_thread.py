"""What another thread has the main thread do."""


def test_it_runs_on_the_main_thread_and_what_it_raises_is_nobodys(run_python):
    done = run_python(
        """
import threading, time
from gpusense._capi import main_thread
ran = []
def ask():
    print(main_thread.later(lambda: ran.append(threading.current_thread() is threading.main_thread())))
    print(main_thread.later(lambda: 1 / 0))
thread = threading.Thread(target=ask)
thread.start()
thread.join()
until = time.monotonic() + 10
while not ran and time.monotonic() < until:
    pass
time.sleep(0.05)
print(ran)
"""
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["True", "True", "[True]"], "")
