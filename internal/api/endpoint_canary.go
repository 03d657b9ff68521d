package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// EndpointCanaryView is an endpoint's canary, with figures of both versions.
type EndpointCanaryView struct {
	pace.Canary

	Since    time.Time              `json:"since" doc:"start of the comparison"`
	State    string                 `json:"state" doc:"human-readable: where requests go now"`
	Compared []inspect.VersionStats `json:"compared,omitempty" doc:"only for one endpoint while the new version gets requests: that, then the old one"`
}

func addCanaries(byName map[string]*Endpoint, settings []pace.EndpointSetting) {
	for i := range settings {
		set := &settings[i]
		if e := byName[set.Endpoint]; e != nil && set.Canary != "" {
			e.Canary = &EndpointCanaryView{Canary: pace.Canary{Endpoint: set.Canary, Share: set.CanaryShare},
				Since: set.CanarySince, State: canaryState(set, byName[set.Canary])}
		}
	}
}

func canaryState(set *pace.EndpointSetting, to *Endpoint) string {
	switch {
	case set.CanaryShare == 0:
		return fmt.Sprintf("no requests go to %s", set.Canary)
	case set.CanaryShare == pace.WholeShare:
		return fmt.Sprintf("all requests go to %s", set.Canary)
	case to == nil || len(to.Listeners) == 0:
		return fmt.Sprintf("no service listens on %s, so all requests go to %s", set.Canary, set.Endpoint)
	case to.Pace != nil && to.Pace.Breaker == workqueue.BreakerOpen:
		return fmt.Sprintf("the breaker of %s is open, so all requests except probes go to %s", set.Canary, set.Endpoint)
	default:
		return fmt.Sprintf("%v%% of the requests go to %s", set.CanaryShare, set.Canary)
	}
}

// compare adds figures of both versions, or none if they cannot be read.
func (s *endpointRoutes) compare(ctx context.Context, e *Endpoint) {
	if e.Canary == nil || e.Canary.Share == 0 {
		return
	}
	to, err := inspect.New(s.Store).VersionStats(ctx, e.Canary.Endpoint, e.Canary.Since)
	old, failed := inspect.New(s.Store).VersionStats(ctx, e.Name, e.Canary.Since)
	if err = errors.Join(err, failed); err != nil {
		s.Log.Warn("compare an endpoint with its canary", zap.String("endpoint", e.Name), zap.Error(err))
		return
	}
	e.Canary.Compared = []inspect.VersionStats{to, old}
}

// checkCanary refuses a canary on which no service listens, or whose services read or answer otherwise than those of
// the endpoint. What services do not announce is not compared.
func (s *endpointRoutes) checkCanary(ctx context.Context, name string, c *pace.Canary) error {
	if c == nil || c.Share == 0 || c.Endpoint == name {
		return nil // nothing to ask about
	}
	to := c.Endpoint
	if to == "" {
		settings, err := pace.New(s.Store).EndpointSettings(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(settings, func(set pace.EndpointSetting) bool { return set.Endpoint == name })
		if i < 0 || settings[i].Canary == "" {
			return nil // the store refuses it
		}
		to = settings[i].Canary
	}
	if !s.NC.IsConnected() {
		return apicore.ErrNoNATS
	}
	heard, err := wire.Discover(ctx, s.NC, apicore.ListenWait)
	if err != nil {
		return err
	}
	flow, known := isFlow(heard, to)
	if !known {
		like := wire.Nearest(to, heard)
		if like != "" {
			like = "; did you mean " + like + "?"
		}
		return apicore.BadInput(fmt.Sprintf("canary %s: no service listens on it; start the new version under that name "+
			"first%s", to, like))
	}
	if old, known := isFlow(heard, name); known && old != flow {
		return apicore.BadInput(fmt.Sprintf("canary %s: only one of %[1]s and %s is a flow; both or neither must be",
			to, name))
	}
	return s.checkContracts(ctx, name, to)
}

// isFlow reports whether an endpoint's services are flows, and whether it has any.
func isFlow(heard []wire.Listener, endpoint string) (flow, known bool) {
	for i := range heard {
		if heard[i].Endpoint == endpoint {
			flow, known = flow || heard[i].Stages > 0, true
		}
	}
	return flow, known
}

func (s *endpointRoutes) checkContracts(ctx context.Context, name, to string) error {
	ctx, cancel := context.WithTimeout(ctx, apicore.ListenWait)
	defer cancel()
	was, err := wire.AskContract(ctx, s.NC, name)
	if err != nil {
		return err
	}
	is, err := wire.AskContract(ctx, s.NC, to)
	if err != nil {
		return err
	}
	for _, side := range []struct {
		verb    string
		old, of json.RawMessage
	}{{"reads", was.In, is.In}, {"answers", was.Out, is.Out}} {
		if !sameSchema(side.old, side.of) {
			return apicore.BadInput(fmt.Sprintf("canary %s: it %s other fields than %s, so a run would mix the two; compare "+
				"tranche endpoints show %[1]s and %[3]s, and start a run of the new version alone", to, side.verb, name))
		}
	}
	return nil
}

// sameSchema compares the schemas of two versions, if both announce one.
func sameSchema(a, b json.RawMessage) bool {
	if a == nil || b == nil {
		return true
	}
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}
