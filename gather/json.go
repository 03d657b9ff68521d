package gather

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The JSON form. Its names are stored with every run: they may be added to, not changed.
type planJSON struct {
	Name  string     `json:"name"`
	Steps []stepJSON `json:"steps"`
}

type stepJSON struct {
	Name         string   `json:"name"`
	Endpoint     string   `json:"endpoint"`
	Needs        []string `json:"needs,omitempty"`
	Chunk        int      `json:"chunk"`
	InFlight     int      `json:"in_flight"`
	MaxAttempts  int      `json:"max_attempts"`
	Timeout      duration `json:"timeout"`
	RetryBackoff duration `json:"retry_backoff"`
}

// duration is text like 1m30s in JSON.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	*d = duration(parsed)
	return err
}

// MarshalJSON writes the form in which a run keeps its plan. Every setting is written, so that a later version with
// other defaults runs the plan as it was.
func (p Plan) MarshalJSON() ([]byte, error) {
	out := planJSON{Name: p.Name, Steps: make([]stepJSON, len(p.Steps))}
	for i, s := range p.Steps {
		out.Steps[i] = stepJSON{s.Name, s.Endpoint, s.Needs, s.Chunk, s.InFlight, s.MaxAttempts,
			duration(s.Timeout), duration(s.RetryBackoff)}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate, but a field that it does not know is an error: a
// newer version wrote it, and without it the plan would be another.
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
	*p = Plan{Name: in.Name, Steps: make([]Step, len(in.Steps))}
	for i, s := range in.Steps {
		p.Steps[i] = Step{s.Name, s.Endpoint, s.Needs, s.Chunk, s.InFlight, s.MaxAttempts,
			time.Duration(s.Timeout), time.Duration(s.RetryBackoff)}
	}
	return nil
}
