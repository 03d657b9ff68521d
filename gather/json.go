package gather

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

// planJSON is stored with each run: names may be added, not changed. Fields added after the first version are omitted
// when unset, as older versions did.
type planJSON struct {
	Name              string     `json:"name"`
	Priority          int        `json:"priority,omitempty"`
	DoneBy            string     `json:"done_by,omitempty"`
	Gentle            bool       `json:"gentle,omitempty"`
	MaxFailed         string     `json:"max_failed,omitempty"`
	FailFast          string     `json:"fail_fast,omitempty"`
	Canary            int        `json:"canary,omitempty"`
	CanaryAutoApprove bool       `json:"canary_auto_approve,omitempty"`
	OrderBy           string     `json:"order_by,omitempty"`
	Values            []string   `json:"values,omitempty"`
	Partitions        int        `json:"partitions,omitempty"`
	OnFailure         string     `json:"on_failure,omitempty"`
	Items             *Items     `json:"items,omitempty"`
	Steps             []stepJSON `json:"steps"`
}

type stepJSON struct {
	Name     string   `json:"name"`
	Endpoint string   `json:"endpoint,omitempty"`
	Needs    []string `json:"needs,omitempty"`
	workqueue.SettingsView
	Direct   string   `json:"direct,omitempty"`
	HTTP     *HTTP    `json:"http,omitempty"`
	SQL      *SQL     `json:"sql,omitempty"`
	Local    string   `json:"local,omitempty"`
	Inputs   []string `json:"inputs,omitzero"` // an empty list differs from nil
	Optional bool     `json:"optional,omitempty"`
	Barrier  barrier  `json:"barrier,omitempty"`
	Approval string   `json:"approvers,omitempty"`
}

// MarshalJSON encodes the plan as stored with a run. All settings are written, so that a version with other defaults
// runs the plan unchanged.
func (p Plan) MarshalJSON() ([]byte, error) {
	out := planJSON{Name: p.Name, Priority: p.Priority, DoneBy: p.DoneBy, Gentle: p.Gentle,
		MaxFailed: p.MaxFailed, FailFast: p.FailFast, Canary: p.Canary,
		CanaryAutoApprove: p.CanaryAutoApprove, OrderBy: p.Order.By, Values: p.Order.Values, Partitions: p.Order.Partitions,
		OnFailure: p.OnFailure, Steps: make([]stepJSON, len(p.Steps))}
	if p.Items.given() {
		out.Items = &p.Items
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		out.Steps[i] = stepJSON{Name: s.Name, Endpoint: s.Endpoint, Needs: s.Needs, SettingsView: s.View(),
			Direct: s.Direct, HTTP: s.HTTP, SQL: s.SQL, Local: s.Local, Inputs: s.Inputs, Optional: s.Optional,
			Barrier: barrierOf(s), Approval: s.Approval}
	}
	return json.Marshal(out)
}

// UnmarshalJSON decodes the output of MarshalJSON without validation. Unknown fields are an error: a newer version
// wrote them, and ignoring them would change the plan.
func (p *Plan) UnmarshalJSON(b []byte) error {
	var in planJSON
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read plan: something follows it")
	}
	*p = Plan{Name: in.Name, Priority: in.Priority, DoneBy: in.DoneBy, Gentle: in.Gentle,
		MaxFailed: in.MaxFailed, FailFast: in.FailFast, Canary: in.Canary,
		CanaryAutoApprove: in.CanaryAutoApprove, Steps: make([]Step, len(in.Steps)), OnFailure: in.OnFailure,
		Order: order.Rule{By: in.OrderBy, Values: in.Values, Partitions: in.Partitions}}
	if in.Items != nil {
		p.Items = *in.Items
	}
	for i := range in.Steps {
		s := &in.Steps[i]
		p.Steps[i] = Step{Name: s.Name, Endpoint: s.Endpoint, Needs: s.Needs, StepSettings: s.Settings(),
			Direct: s.Direct, HTTP: s.HTTP, SQL: s.SQL, Local: s.Local, Inputs: s.Inputs, Optional: s.Optional,
			Barrier: s.Barrier != "", Approval: s.Approval}
		if s.Barrier == barrierApprove {
			p.Steps[i].Approval = cmp.Or(s.Approval, ApproveAnyone)
		}
	}
	return nil
}

// barrier is how a step starts for all items at once: automatically (true) or on approval ("approve").
type barrier string

const (
	barrierPasses  barrier = "true"
	barrierApprove barrier = "approve"
)

func barrierOf(s *Step) barrier {
	switch {
	case s.Approval != "":
		return barrierApprove
	case s.Barrier:
		return barrierPasses
	}
	return ""
}

// MarshalJSON encodes true or "approve".
func (b barrier) MarshalJSON() ([]byte, error) {
	if b == barrierApprove {
		return json.Marshal(string(b))
	}
	return json.Marshal(b == barrierPasses)
}

// UnmarshalJSON decodes true, false or "approve".
func (b *barrier) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case "true":
		*b = barrierPasses
	case "false":
		*b = ""
	case `"approve"`:
		*b = barrierApprove
	default:
		return fmt.Errorf("barrier is %.40s; it is true, false or approve", text)
	}
	return nil
}
