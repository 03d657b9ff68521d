package api

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Health is a report of the conditions that need an operator.
type Health health.Report

type healthOps struct {
	store   healthstore.Store
	watches []*health.Watch // the one with full lists first
}

func (s *adminRoutes) registerHealth(api huma.API) {
	o := &healthOps{healthstore.New(s.Store), []*health.Watch{s.whole, s.health}}
	report := apicore.Get("health", "/health", "Conditions that need a person")
	report.Description = "Conditions of runs, endpoints, nodes, streams and disks, the worst first: each with its " +
		"severity, since when it holds, and its remedy. The status is always 200, also while " +
		"PostgreSQL or NATS is unavailable: that is a condition. Programs that route requests use /healthz instead. " +
		"Regardless of the number of callers, it is checked at most every few seconds. Callers with roles in namespaces " +
		"only see the conditions of their runs."
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, report),
		func(ctx context.Context, _ *struct{}) (*Health, error) {
			watch := s.health
			if workqueue.Namespaces(ctx) != nil {
				watch = s.whole // the other has no list of the runs of one namespace
			}
			found, err := watch.VisibleReport(ctx)
			return (*Health)(found), err
		})
	apicore.Register(s.Core, api, apicore.Post("mute-condition", "/health/mute",
		"Mute a condition, or all of its kind",
		"It does not count in the status, is in a separate list, and alerts do not report it, until it "+
			"gets worse (a higher severity, or more items, letters, messages or operations), or its time is up. Of all "+
			"of a kind each is muted separately, and one that begins later is new; so is a critical one that "+
			"ended and begins again."), o.isMuted)
	apicore.Register(s.Core, api, apicore.Post("ack-condition", "/health/ack",
		"Acknowledge a condition, or all of its kind",
		"It counts and is reported as before; others see who handles it. A later one replaces it."), o.takeCondition)
	apicore.Register(s.Core, api, apicore.Post("clear-condition", "/health/clear",
		"Undo a mute or acknowledgement", ""), o.bringBack)
	nodes := apicore.Get("list-nodes", "/nodes", "Nodes, the leader, and what each holds")
	apicore.Register(s.Core, api, nodes, func(ctx context.Context, _ *struct{}) (inspect.Nodes,
		error) {
		return inspect.New(s.Store).Nodes(ctx)
	})
}

const (
	seeHealth = "tranche health"

	// The longest time that a condition can be muted for, unless permanently.
	maxMuted = 366 * 24 * time.Hour
)

// ConditionName names a condition, or all of a kind.
type ConditionName struct {
	Kind    string `json:"kind" minLength:"1" example:"failed_items"`
	Subject string `json:"subject,omitempty" doc:"absent: all of the kind"`
}

// MuteSettings mutes a condition.
type MuteSettings struct {
	ConditionName

	For        string `json:"for,omitempty" doc:"for how long" example:"8h"`
	UntilWorse bool   `json:"until_worse,omitempty" doc:"instead of for: until it gets worse"`
	Reason     string `json:"reason" minLength:"1" maxLength:"500" doc:"why, for other operators"`
}

// MarkedCondition is a marked condition.
type MarkedCondition struct {
	ConditionName

	State string     `json:"state" enum:"muted,acknowledged,cleared"`
	By    string     `json:"by"`
	At    *time.Time `json:"at,omitempty"`
	Until *time.Time `json:"until,omitempty" doc:"absent: until it gets worse"`

	Unchanged bool `json:"unchanged" doc:"it was neither muted nor acknowledged"`
}

func (o *healthOps) isMuted(ctx context.Context, in *struct {
	apicore.Actor
	Body MuteSettings
},
) (MarkedCondition, error) {
	b := &in.Body
	life, err := b.life()
	if err != nil {
		return MarkedCondition{}, err
	}
	return o.mark(ctx, b.ConditionName, healthstore.NewMark{Actor: in.Name, For: life,
		State: healthstore.Muted, Reason: b.Reason})
}

func (a *MuteSettings) life() (time.Duration, error) {
	if a.UntilWorse == (a.For != "") {
		return 0, apicore.BadInput("give either for, like 8h, or until_worse")
	}
	if a.UntilWorse {
		return 0, nil
	}
	life, err := time.ParseDuration(a.For)
	if err != nil || life < time.Minute || life > maxMuted {
		return 0, apicore.BadInput(fmt.Sprintf("for is %s; write it like 8h or 30m, between 1m and %s",
			strconv.Quote(apicore.Echo(a.For)), maxMuted))
	}
	return life, nil
}

type conditionInput struct {
	apicore.Actor
	Body ConditionName
}

func (o *healthOps) takeCondition(ctx context.Context, in *conditionInput) (MarkedCondition, error) {
	return o.mark(ctx, in.Body, healthstore.NewMark{Actor: in.Name, State: healthstore.Acknowledged})
}

func (c *ConditionName) check(reason string) error {
	return cmp.Or(apicore.CheckText("kind", c.Kind, apicore.MaxNameBytes),
		apicore.CheckText("subject", c.Subject, apicore.MaxReasonBytes),
		apicore.CheckText("reason", reason, apicore.MaxReasonBytes))
}

func (o *healthOps) mark(ctx context.Context, c ConditionName, m healthstore.NewMark) (MarkedCondition, error) {
	if err := c.check(m.Reason); err != nil {
		return MarkedCondition{}, err
	}
	m.Kind = c.Kind
	for _, watch := range o.watches {
		report, err := watch.Report(ctx)
		if err != nil {
			return MarkedCondition{}, err
		}
		if m.About = report.Measure(healthstore.ConditionKey(c)); len(m.About) > 0 {
			break
		}
	}
	if len(m.About) == 0 {
		what := "condition " + strconv.Quote(c.Kind)
		if c.Subject != "" {
			what += " of " + strconv.Quote(c.Subject)
		}
		return MarkedCondition{}, apicore.Seen(fmt.Errorf("%s: %w", what, workqueue.ErrNotFound), seeHealth)
	}
	defer o.lookAgain()
	at, until, err := o.store.PutMark(ctx, m)
	return MarkedCondition{ConditionName: c, State: string(m.State), By: m.Actor, At: &at, Until: until}, err
}

func (o *healthOps) bringBack(ctx context.Context, in *conditionInput) (MarkedCondition, error) {
	if err := in.Body.check(""); err != nil {
		return MarkedCondition{}, err
	}
	defer o.lookAgain()
	found, err := o.store.DropMarks(ctx, healthstore.ConditionKey(in.Body), in.Name)
	return MarkedCondition{ConditionName: in.Body, State: "cleared", By: in.Name, Unchanged: !found}, err
}

func (o *healthOps) lookAgain() {
	for _, watch := range o.watches {
		watch.Again()
	}
}
