package pace

import (
	"time"
)

// GoodFlushNote is how exactly it is kept when the service last dealt with a flush: the row of a collector is not to be
// written by every one.
const GoodFlushNote = 500 * time.Millisecond
