"""Array types for signatures."""

import numpy as np
from numpy.typing import NDArray

Booleans = NDArray[np.bool_]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
