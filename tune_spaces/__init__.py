"""Search spaces for jobs/tune.py: functions that return samplers for some settings.

A space is a function of the configuration that is tuned. It returns samplers by dotted key. The
keys are flags of jobs/train.py, so the results can be pasted there.
"""

from tune_spaces.encoder import encoder
from tune_spaces.mining import mining
from tune_spaces.optimizer import optimizer
from tune_spaces.regularization import regularization
from tune_spaces.unidec import unidec

SPACES = {space.__name__: space for space in (regularization, optimizer, mining, encoder, unidec)}
