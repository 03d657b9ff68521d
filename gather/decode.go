package gather

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// field is one field of a mapping: its name, and what reads its value.
type field struct {
	name string
	read func(v value) error
}

// value is a node on its way into a plan, and the field that it is the value of.
type value struct {
	node ast.Node
	path string
	at   *token.Position
}

func (r *reader) readPlan(root ast.Node, plan *Plan) error {
	v := value{node: root, path: "the plan", at: root.GetToken().Position}
	return r.mapping(v, "", []field{
		{"name", r.text(&plan.Name)},
		{"priority", r.number(&plan.Priority)},
		{"max_failed", r.failures(&plan.MaxFailed)},
		{"canary", r.number(&plan.Canary)},
		{"canary_auto", r.truth(&plan.CanaryAuto)},
		{"order_by", r.text(&plan.Order.By)},
		{"values", r.texts(&plan.Order.Values)},
		{"partitions", r.partitions(&plan.Order.Partitions)},
		{"on_failure", r.onFailure(&plan.OnFailure)},
		{"steps", func(v value) error { return r.steps(v, &plan.Steps) }},
	})
}

func (r *reader) steps(v value, steps *[]Step) error {
	return r.sequence(v, func(v value) error {
		step, err := r.step(v)
		*steps = append(*steps, step)
		return err
	})
}

func (r *reader) step(v value) (Step, error) {
	step := defaultStep()
	var chunk, inFlight *Adaptive
	var chunkAuto, inFlightAuto *bool
	var chunkTime *time.Duration
	err := r.mapping(v, v.path+".", []field{
		{"name", r.text(&step.Name)},
		{"endpoint", r.text(&step.Endpoint)},
		{"request", r.text(&step.Request)},
		{"http", r.http(&step.HTTP)},
		{"sql", r.sql(&step.SQL)},
		{"local", r.text(&step.Local)},
		{"needs", r.texts(&step.Needs)},
		{"inputs", r.inputs(&step.Inputs)},
		{"optional", r.truth(&step.Optional)},
		{"barrier", r.truth(&step.Barrier)},
		{"chunk", r.adaptive(&chunk)},
		{"chunk_auto", given(&chunkAuto, r.truth)},
		{"chunk_bytes", r.bytes(&step.ChunkBytes)},
		{"chunk_time", given(&chunkTime, r.duration)},
		{"in_flight", r.adaptive(&inFlight)},
		{"in_flight_auto", given(&inFlightAuto, r.truth)},
		{"rate", r.rate(&step.Rate)},
		{"max_attempts", r.number(&step.MaxAttempts)},
		{"timeout", r.duration(&step.Timeout)},
		{"retry_backoff", r.duration(&step.RetryBackoff)},
		{"max_backoff", r.duration(&step.MaxBackoff)},
		{"retry_codes", r.texts(&step.RetryCodes)},
		{"never_retry", r.texts(&step.NeverRetry)},
	})
	step.Chunk = step.defaultChunk()
	if err == nil {
		err = r.together(v, "chunk", chunk, chunkAuto, step.setChunk)
	}
	if err == nil {
		err = r.together(v, "in_flight", inFlight, inFlightAuto, step.setInFlight)
	}
	set(&step.ChunkTime, chunkTime)
	if !r.named(v, "name") {
		step.Name = step.ownName()
	}
	if !r.named(v, "max_backoff") {
		step.MaxBackoff = longestBackoff(step.RetryBackoff)
	}
	return step, err
}

// partitions reads a number of which 0, when it stands there, is not the same as not said.
func (r *reader) partitions(into *int) func(value) error {
	return func(v value) error {
		err := r.number(into)(v)
		if err == nil && *into == 0 {
			*into = -1 // for Validate to refuse
		}
		return err
	}
}

// onFailure reads what is done after a failure.
func (r *reader) onFailure(into *string) func(value) error {
	return func(v value) error {
		err := r.text(into)(v)
		if canonical, wrong := ParseOnFailure(*into); err == nil && wrong == nil {
			*into = canonical
		}
		return err
	}
}

// inputs reads a list of which none is not the same as not said.
func (r *reader) inputs(into *[]string) func(value) error {
	return func(v value) error {
		*into = []string{}
		return r.texts(into)(v)
	}
}

// given makes a reader note whether there was a value.
func given[T any](into **T, read func(*T) func(value) error) func(value) error {
	return func(v value) error {
		*into = new(T)
		return read(*into)(v)
	}
}

// together sets a number that may be auto by its two fields: itself, which may say auto, and the one with _auto behind
// its name, which makes it the upper bound. Without either the default stays.
func (r *reader) together(v value, name string, number *Adaptive, auto *bool, put func(Adaptive)) error {
	switch {
	case number == nil && auto == nil:
	case auto == nil:
		put(*number)
	case number == nil && *auto:
		put(Adaptive{Auto: true})
	case number == nil || number.Auto && !*auto:
		path := v.path + "." + name
		return r.fail(r.places[path+"_auto"], "%s_auto: without auto, %s has to be a number", path, name)
	default:
		put(Adaptive{Value: number.Value, Auto: *auto})
	}
	return nil
}

// named reports whether a field of the mapping at v was given.
func (r *reader) named(v value, name string) bool {
	_, named := r.places[v.path+"."+name]
	return named
}

// mapping reads the fields of a mapping, whose paths begin with prefix.
func (r *reader) mapping(v value, prefix string, fields []field) error {
	node, ok := v.node.(ast.MapNode)
	if !ok {
		return r.wrongKind(v, fmt.Errorf("want fields: %s", fieldNames(fields)))
	}
	seen := map[string]bool{}
	for entries := node.MapRange(); entries.Next(); {
		key := entries.Key().GetToken()
		read := lookUp(fields, key.Value)
		if _, plain := entries.Key().(*ast.StringNode); !plain || read == nil {
			return r.fail(key.Position, "unknown field %q; there are %s", key.Value, fieldNames(fields))
		}
		if seen[key.Value] {
			return r.fail(key.Position, "%s%s stands twice", prefix, key.Value)
		}
		seen[key.Value] = true
		if err := read(r.place(entries.Value(), prefix+key.Value, key)); err != nil {
			return err
		}
	}
	return nil
}

func lookUp(fields []field, name string) func(value) error {
	for _, f := range fields {
		if f.name == name {
			return f.read
		}
	}
	return nil
}

func fieldNames(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// place notes where a field's value stands; a value that is not there stands where its key does.
func (r *reader) place(node ast.Node, path string, key *token.Token) value {
	at := key.Position
	if _, null := node.(*ast.NullNode); !null && node.GetToken() != nil {
		at = node.GetToken().Position
	}
	if mapping, ok := node.(ast.MapNode); ok {
		if entries := mapping.MapRange(); entries.Next() {
			at = entries.Key().GetToken().Position
		}
	}
	r.places[path] = at
	return value{node: node, path: path, at: at}
}

var errNoList = errors.New("want a list, each entry after a dash")

func (r *reader) sequence(v value, read func(value) error) error {
	node, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return r.wrongKind(v, errNoList)
	}
	for i, entry := range node.Values {
		if err := read(r.place(entry, fmt.Sprintf("%s[%d]", v.path, i), node.GetToken())); err != nil {
			return err
		}
	}
	return nil
}
