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
	plain
	OrderBy    string     `json:"order_by,omitempty"`
	Values     []string   `json:"values,omitempty"`
	Partitions int        `json:"partitions,omitempty"`
	Items      *Items     `json:"items,omitempty"`
	Steps      []stepJSON `json:"steps"`
}

type plain Plan // without methods

type stepJSON struct {
	Step
	workqueue.SettingsView
	Barrier barrier `json:"barrier,omitempty"`
}

// MarshalJSON encodes the plan as stored with a run. All settings are written, so that a version with other defaults
// runs the plan unchanged.
func (p Plan) MarshalJSON() ([]byte, error) {
	out := planJSON{plain: plain(p), OrderBy: p.Order.By, Values: p.Order.Values, Partitions: p.Order.Partitions,
		Steps: make([]stepJSON, len(p.Steps))}
	if p.Items.given() {
		out.Items = &p.Items
	}
	for i, s := range p.Steps {
		out.Steps[i] = stepJSON{s, s.View(), barrierOf(&s)}
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
	*p = Plan(in.plain)
	p.Order = order.Rule{By: in.OrderBy, Values: in.Values, Partitions: in.Partitions}
	if in.Items != nil {
		p.Items = *in.Items
	}
	p.Steps = make([]Step, len(in.Steps))
	for i := range in.Steps {
		s := &in.Steps[i]
		p.Steps[i] = s.Step
		p.Steps[i].StepSettings, p.Steps[i].Barrier = s.Settings(), s.Barrier != ""
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
