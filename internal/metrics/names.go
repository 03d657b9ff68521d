package metrics

import "sync"

// Other is the value of a label under which everything is summed that has no value of its own. No endpoint and no
// collector can have this name.
const Other = "(other)"

// names bounds the values of a label. Who has come first stays, until the process ends: a series that went and came
// back would look like a counter that was set back.
type names struct {
	mu    sync.Mutex
	most  int
	known map[string]bool
}

func newNames(most int) *names { return &names{most: most, known: map[string]bool{}} }

// of is the value for a name, which gets one of its own while there is room.
func (n *names) of(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.known[name]:
		return name
	case len(n.known) >= n.most:
		return Other
	}
	n.known[name] = true
	return name
}

// claimed is the value for a name that a message from outside claims: it gets none that is not known already.
func (n *names) claimed(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known[name] {
		return name
	}
	return Other
}
