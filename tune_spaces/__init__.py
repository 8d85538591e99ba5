"""Search spaces for jobs/tune.py: functions that give a sampler for each of some settings.

A space is a function of the configuration that is tuned. It returns samplers by dotted key, and
the keys are the flags of jobs/train.py, so that what was found can be pasted behind it.
"""

from tune_spaces.encoder import encoder
from tune_spaces.mining import mining
from tune_spaces.optimizer import optimizer
from tune_spaces.regularization import regularization

SPACES = {space.__name__: space for space in (regularization, optimizer, mining, encoder)}
