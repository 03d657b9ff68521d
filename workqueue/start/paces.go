package start

import "sync"

// knownPaces are the endpoints whose pace is known to be there.
type knownPaces struct{ sync.Map }
