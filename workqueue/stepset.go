package workqueue

import (
	"github.com/tranchehq/tranche/bitfield"
)

// Upper bounds of steps whose chunk or in-flight limit nodes find themselves, unless other ones were given.
const (
	AutoChunk    = bitfield.Size
	AutoInFlight = 1024
)

// CodeComma stands between codes, which have no commas.
const CodeComma = ", "
