package endpoints

import (
	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/internal/reply"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// What authors of services meet of the messages; package wire has the rest.
type (
	// SlotError is the error of one item.
	SlotError = wire.SlotError
	// Binary is a result, an answer or a part that is not JSON.
	Binary = wire.Binary
	// Part is what another step of the run has made of an item.
	Part = wire.Part
	// Slot is one item's place in an answer.
	Slot = wire.Slot
	// Operation is what a collector is given.
	Operation = wire.Operation
	// Trace is a W3C trace context.
	Trace = wire.Trace
	// PermissionError says what NATS does not permit.
	PermissionError = stream.PermissionError
)

// MaxHeld bounds the bytes of the answers to one chunk that a wrapper holds: 64 MiB.
const MaxHeld = reply.MaxHeld

// MaxState is how large the state of a suspended chunk may be, written as JSON: 16 MiB.
const MaxState = flow.MaxState
