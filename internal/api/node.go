package api

import (
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/orchestrator"
)

// Node is what the API's rooms are given of a node, each what it needs.
type Node struct {
	kernel.Node

	Starts      runs.Engine
	Controls    runs.Controls
	Redo        runs.Redo
	Collectors  CollectorEngine
	Endpoints   Setter
	DeadLetters Requeuer
}

// NodeOf is what a real one has.
func NodeOf(n *orchestrator.Node) Node {
	return Node{n, n.Starts(), n.Controls(), n.Redo(), n.Collectors(), n.Endpoints(), n.DeadLetters()}
}
