"""What each sub-command of ``nanok3`` does; heavy imports stay inside these modules, so that ``--help`` is quick."""
