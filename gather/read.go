package gather

import (
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue/order"
)

func readPlan(doc *strictyaml.Document, plan *Plan) error {
	return doc.Root.Fields([]strictyaml.Field{
		{Name: "name", Read: text(&plan.Name)},
		{Name: "priority", Read: number(&plan.Priority)},
		{Name: "max_failed", Read: failures(&plan.MaxFailed)},
		{Name: "canary", Read: number(&plan.Canary)},
		{Name: "canary_auto", Read: strictyaml.Truth(&plan.CanaryAuto)},
		{Name: "order_by", Read: text(&plan.Order.By)},
		{Name: "values", Read: strictyaml.SomeTexts(&plan.Order.Values)},
		{Name: "partitions", Read: partitions(&plan.Order.Partitions)},
		{Name: "on_failure", Read: onFailure(&plan.OnFailure)},
		{Name: "steps", Read: func(v strictyaml.Value) error {
			return v.List(func(v strictyaml.Value) error {
				step, err := readStep(doc, v)
				plan.Steps = append(plan.Steps, step)
				return err
			})
		}},
	}...)
}

func readStep(doc *strictyaml.Document, v strictyaml.Value) (Step, error) {
	step := defaultStep()
	var chunk, inFlight *Adaptive
	var chunkAuto, inFlightAuto *bool
	var chunkTime *time.Duration
	err := v.Fields([]strictyaml.Field{
		{Name: "name", Read: text(&step.Name)},
		{Name: "endpoint", Read: text(&step.Endpoint)},
		{Name: "request", Read: text(&step.Request)},
		{Name: "http", Read: readHTTP(&step.HTTP)},
		{Name: "sql", Read: readSQL(&step.SQL)},
		{Name: "local", Read: text(&step.Local)},
		{Name: "needs", Read: texts(&step.Needs)},
		{Name: "inputs", Read: inputs(&step.Inputs)},
		{Name: "optional", Read: strictyaml.Truth(&step.Optional)},
		{Name: "barrier", Read: strictyaml.Truth(&step.Barrier)},
		{Name: "chunk", Read: adaptive(&chunk)},
		{Name: "chunk_auto", Read: given(&chunkAuto, strictyaml.Truth)},
		{Name: "chunk_bytes", Read: size(&step.ChunkBytes)},
		{Name: "chunk_time", Read: given(&chunkTime, duration)},
		{Name: "in_flight", Read: adaptive(&inFlight)},
		{Name: "in_flight_auto", Read: given(&inFlightAuto, strictyaml.Truth)},
		{Name: "rate", Read: rate(&step.Rate)},
		{Name: "max_attempts", Read: number(&step.MaxAttempts)},
		{Name: "timeout", Read: duration(&step.Timeout)},
		{Name: "retry_backoff", Read: duration(&step.RetryBackoff)},
		{Name: "max_backoff", Read: duration(&step.MaxBackoff)},
		{Name: "retry_codes", Read: texts(&step.RetryCodes)},
		{Name: "never_retry", Read: texts(&step.NeverRetry)},
	}...)
	step.Chunk = step.defaultChunk()
	if err == nil {
		err = together(doc, v.Path()+".chunk", chunk, chunkAuto, step.setChunk)
	}
	if err == nil {
		err = together(doc, v.Path()+".in_flight", inFlight, inFlightAuto, step.setInFlight)
	}
	set(&step.ChunkTime, chunkTime)
	if !v.Given("name") {
		step.Name = step.ownName()
	}
	if !v.Given("max_backoff") {
		step.MaxBackoff = longestBackoff(step.RetryBackoff)
	}
	return step, err
}

// partitions reads a number of which 0, when it stands there, is not the same as not said.
func partitions(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		err := number(into)(v)
		if err == nil && *into == 0 {
			err = v.Fail("0; it is 1 to %d, or left out", order.MaxPartitions)
		}
		return err
	}
}

// onFailure reads what is done after a failure.
func onFailure(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		err := text(into)(v)
		if canonical, wrong := ParseOnFailure(*into); err == nil && wrong == nil {
			*into = canonical
		}
		return err
	}
}

// inputs reads a list of which none is not the same as not said.
func inputs(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = []string{}
		return texts(into)(v)
	}
}

// given makes a reader note whether there was a value.
func given[T any](into **T, read func(*T) func(strictyaml.Value) error) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = new(T)
		return read(*into)(v)
	}
}

// together sets a number that may be auto by its two fields: itself, which may say auto, and the one with _auto behind
// its name, which makes it the upper bound. Without either the default stays.
func together(doc *strictyaml.Document, path string, number *Adaptive, auto *bool, put func(Adaptive)) error {
	switch {
	case number == nil && auto == nil:
	case auto == nil:
		put(*number)
	case number == nil && *auto:
		put(Adaptive{Auto: true})
	case number == nil || number.Auto && !*auto:
		return doc.Fail(path+"_auto", "without auto, %s has to be a number", path[strings.LastIndexByte(path, '.')+1:])
	default:
		put(Adaptive{Value: number.Value, Auto: *auto})
	}
	return nil
}
