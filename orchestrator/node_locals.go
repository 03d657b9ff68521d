package orchestrator

import (
	"maps"
	"slices"
)

// Locals returns the names of the node's functions for steps of kind local, in order.
func (n *Node) Locals() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(n.cfg.Locals)) // never nil: heartbeats carry it as a list
	slices.Sort(names)
	return names
}
