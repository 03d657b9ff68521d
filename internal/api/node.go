package api

import (
	"github.com/tranchehq/tranche/internal/api/changes"
	"github.com/tranchehq/tranche/internal/api/collectors"
	"github.com/tranchehq/tranche/internal/api/endpoints"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/starts"
	"github.com/tranchehq/tranche/orchestrator"
)

// Node is what the API's rooms are given of a node, each what it needs.
type Node struct {
	kernel.Node

	Starts      starts.Engine
	Controls    changes.Controls
	Redo        changes.Redo
	Collectors  collectors.Engine
	Endpoints   endpoints.Setter
	DeadLetters endpoints.Requeuer
}

// NodeOf is what a real one has.
func NodeOf(n *orchestrator.Node) Node {
	return Node{n, n.Runs(), n.Runs(), n.Runs(), n.Collectors(), n.Endpoints(), n.DeadLetters()}
}
