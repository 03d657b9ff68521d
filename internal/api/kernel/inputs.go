package kernel

import "github.com/tranchehq/tranche/internal/access"

// RunPath is the run that an operation is about.
type RunPath struct {
	Run string `path:"run" doc:"an id, a piece of one (4 digits or more), a name, or last" example:"last"`
}

// ActorHeader names who asks for a change, for the audit log. Without authentication it is taken as said.
const ActorHeader = "Tranche-Actor"

// Anonymous is the actor of a change without the header.
const Anonymous = access.Anonymous

// Bounds of texts of requests, in bytes.
const (
	MaxNameBytes   = 200
	MaxCodeBytes   = 200
	MaxReasonBytes = 2000 // 500 characters
)

// MaxActorBytes bounds what the audit log is told.
const MaxActorBytes = 800 // 200 characters

// Actor is who asks.
type Actor struct {
	Name string `header:"Tranche-Actor" maxLength:"200" default:"anonymous" doc:"who asks, for the audit log"`
}

// Check refuses a name that the audit log cannot keep.
func (a *Actor) Check() error { return CheckText("header "+ActorHeader, a.Name, MaxActorBytes) }

// ChooseOne refuses a selection of which not exactly one way is used.
func ChooseOne(ways string, used ...bool) error {
	chosen := 0
	for _, u := range used {
		if u {
			chosen++
		}
	}
	if chosen != 1 {
		return BadInput("choose one of " + ways)
	}
	return nil
}
