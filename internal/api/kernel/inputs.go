package kernel

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
)

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

// ListenWait is how long services have to say that they listen.
const ListenWait = 300 * time.Millisecond

// EndpointPath is the endpoint that an operation is about.
type EndpointPath struct {
	Endpoint string `path:"name" doc:"an endpoint's name"`
}

// CheckTarget checks the name of an endpoint, or of what else steps ask.
func CheckTarget(name string) error {
	kind, target := workqueue.TargetKind(name)
	if kind == workqueue.KindEndpoint {
		return CheckEndpoint(name)
	}
	if target == "" || len(target) > MaxTarget || strings.ContainsFunc(target, unicode.IsControl) {
		return BadInput("endpoint: give " + string(kind) + ": and its name, of 1 to " + strconv.Itoa(MaxTarget) +
			" characters, as tranche endpoints lists it")
	}
	return nil
}

// MaxTarget is how long the name of a host, a source or a function may be.
const MaxTarget = 300

// CheckEndpoint refuses what no endpoint can be called.
func CheckEndpoint(name string) error {
	if err := wire.ValidateName(name); err != nil {
		return BadInput("endpoint: " + Cut(err.Error(), 3*MaxEchoed))
	}
	return nil
}

// SeeLetters names the command that lists dead letters.
const SeeLetters = "tranche dlq list"

// SeeQuarantine names the command that lists quarantined messages.
const SeeQuarantine = "tranche quarantine list"

// SeePlans names the command that lists plans.
const SeePlans = "tranche plan list"

// MaxPlanVersion is the largest that there can be.
const MaxPlanVersion = math.MaxInt32
