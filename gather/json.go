package gather

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tranchehq/tranche/workqueue/order"
)

// The JSON form. Its names are stored with every run: they may be added to, not changed. What was added after the first
// version is left out where it is off, as those that were written before do.
type planJSON struct {
	Name       string     `json:"name"`
	Priority   int        `json:"priority,omitempty"`
	MaxFailed  string     `json:"max_failed,omitempty"`
	Canary     int        `json:"canary,omitempty"`
	CanaryAuto bool       `json:"canary_auto,omitempty"`
	OrderBy    string     `json:"order_by,omitempty"`
	Values     []string   `json:"values,omitempty"`
	Partitions int        `json:"partitions,omitempty"`
	OnFailure  string     `json:"on_failure,omitempty"`
	Steps      []stepJSON `json:"steps"`
}

type stepJSON struct {
	Name         string   `json:"name"`
	Endpoint     string   `json:"endpoint,omitempty"`
	Needs        []string `json:"needs,omitempty"`
	Chunk        int      `json:"chunk"`
	ChunkAuto    bool     `json:"chunk_auto,omitempty"`
	ChunkBytes   int      `json:"chunk_bytes,omitempty"`
	ChunkTime    Duration `json:"chunk_time,omitempty"`
	InFlight     int      `json:"in_flight"`
	InFlightAuto bool     `json:"in_flight_auto,omitempty"`
	Rate         float64  `json:"rate,omitempty"`
	MaxAttempts  int      `json:"max_attempts"`
	Timeout      Duration `json:"timeout"`
	RetryBackoff Duration `json:"retry_backoff"`
	MaxBackoff   Duration `json:"max_backoff,omitempty"`
	RetryCodes   []string `json:"retry_codes,omitempty"`
	NeverRetry   []string `json:"never_retry,omitempty"`
	Request      string   `json:"request,omitempty"`
	HTTP         *HTTP    `json:"http,omitempty"`
	SQL          *SQL     `json:"sql,omitempty"`
	Local        string   `json:"local,omitempty"`
	Inputs       []string `json:"inputs,omitzero"` // none is not the same as not said
	Optional     bool     `json:"optional,omitempty"`
	Barrier      bool     `json:"barrier,omitempty"`
}

// MarshalJSON writes the form in which a run keeps its plan. Every setting is written, so that a later version with
// other defaults runs the plan as it was.
func (p Plan) MarshalJSON() ([]byte, error) {
	out := planJSON{p.Name, p.Priority, p.MaxFailed, p.Canary, p.CanaryAuto, p.Order.By, p.Order.Values,
		p.Order.Partitions, p.OnFailure, make([]stepJSON, len(p.Steps))}
	for i := range p.Steps {
		s := &p.Steps[i]
		out.Steps[i] = stepJSON{s.Name, s.Endpoint, s.Needs, s.Chunk, s.ChunkAuto, s.ChunkBytes, Duration(s.ChunkTime),
			s.InFlight, s.InFlightAuto, s.Rate, s.MaxAttempts, Duration(s.Timeout), Duration(s.RetryBackoff),
			Duration(s.MaxBackoff), s.RetryCodes, s.NeverRetry, s.Request, s.HTTP, s.SQL, s.Local, s.Inputs, s.Optional,
			s.Barrier}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes, and has written in earlier versions: without in_flight_auto the limit is
// a fixed one, and without max_backoff that is 5 minutes. It does not validate, but a field that it does not know is an
// error: a newer version wrote it, and without it the plan would be another.
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
	*p = Plan{in.Name, in.Priority, in.MaxFailed, in.Canary, in.CanaryAuto, make([]Step, len(in.Steps)),
		order.Rule{By: in.OrderBy, Values: in.Values, Partitions: in.Partitions}, in.OnFailure}
	for i := range in.Steps {
		s := &in.Steps[i]
		p.Steps[i] = Step{s.Name, s.Endpoint, s.Needs, s.Chunk, s.ChunkAuto, s.ChunkBytes, time.Duration(s.ChunkTime),
			s.InFlight, s.InFlightAuto, s.Rate, s.MaxAttempts, time.Duration(s.Timeout), time.Duration(s.RetryBackoff),
			time.Duration(cmp.Or(s.MaxBackoff, Duration(longestBackoff(time.Duration(s.RetryBackoff))))),
			s.RetryCodes, s.NeverRetry, s.Request, s.HTTP, s.SQL, s.Local, s.Inputs, s.Optional, s.Barrier}
	}
	return nil
}
