"""Workers inside Spark executors: each is a task that lasts, and runs what `penstock worker` runs.

`penstock worker app.py --engine spark` is its command. The modules: `running` is the driver, which submits a job of one
task per worker and starts anew what is lost; `task` is what runs in an executor, a worker for one shift.
"""
