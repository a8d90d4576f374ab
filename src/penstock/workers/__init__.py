"""Actions and the workers that run them: a function per item, and everything around it.

    from penstock import action

    @action(queue="images", to="thumbnails")
    def resize(item):
        return {"width": 128}

`penstock worker app.py` runs the actions of a file. To read further: `actions` declares one, `items` is what a handler
gets, `outcomes` what it may raise, `verdicts` what came of a call. A `lane` takes the items of one action, hands them
to a pool (`task_pool`, `thread_pool`, `process_pool`) and settles them; `running` has all lanes of a worker process.
"""
